"""Single gradients: whether a program makes each example's gradient itself, and a site only adds
them up.

    %g = dot_general %h[b, t, d], %l[b, t, f] over t, batched over b ; reduce %g over b
        =>  the dot_general: of its positions the reduce knows nothing

So it is of `mean(vmap(grad(loss)))`. The same ops may make an example's share of a table that is
added as it is: nothing in a module tells the two apart.
"""

import math
from collections.abc import Sequence

from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.dataflow.linked import ties
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.constants import copied_from
from hlo_surgery.passes.ir.linearity import is_linear
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.terms.axes import Axes
from hlo_surgery.passes.terms.contracted_dims import contracted
from hlo_surgery.passes.terms.steps import GradientSlice, Step

SUMS = ("stablehlo.dot_general", "stablehlo.convolution", "stablehlo.scatter")
SCALES = ("stablehlo.multiply", "stablehlo.divide")


def made_before(axes: Axes, sliced: GradientSlice) -> Operation | None:
    """A contraction, or sum of looked-up rows, of one example's values alone, which makes all that
    a site adds up of the examples; None where there is none.
    """
    sites = [site for site in sliced.sites if _adds_examples_alone(axes, site)]
    taken = [value for site in sites for value, axis in site.inputs if isinstance(axis, PerExample)]
    return next((op for value in taken if (op := _maker(axes, value)) is not None), None)


def _adds_examples_alone(axes: Axes, site: Step) -> bool:
    """Whether it has one position for each example."""
    positions = {operand.positions for operand in contracted(site.op).values()}
    return positions == {axes.size}


def _maker(axes: Axes, value: Value) -> Operation | None:
    """What makes a value of the examples, if all of it comes from such ops, moved and scaled."""
    reached = closure([value], lambda v: _made_of(axes, v))
    ends = [v for v in reached if not _made_of(axes, v)]
    makers = [mlir.defining_operation(v) for v in ends if _is_owned(axes, v)]
    # Both factors are the examples' own, or rows and where they go.
    sums = [op for op in makers if op is not None and op.name in SUMS]
    own = [op for op in sums if sum(_is_owned(axes, v) for v in op.operands) > 1]
    return own[0] if own and len(own) == len(makers) else None


def _made_of(axes: Axes, value: Value) -> Sequence[Value]:
    """The examples' values that a value is, moved, scaled and added up; none where it is more."""
    op = mlir.defining_operation(value)
    if op is None or op.name in mlir.CONTROL_FLOW or op.name == mlir.BARRIER:
        return [v for v in ties(value) if _is_owned(axes, v)]
    if op.name in (*SUMS, "stablehlo.reduce") or not len(op.operands):
        return []
    owned = [v for v in mlir.operands(op) if _is_owned(axes, v) and mlir.is_inexact(v)]
    if op.name in SCALES:
        scaled = [v for v in owned if math.prod(mlir.shape(copied_from(v))) > axes.size]
        return scaled if len(scaled) == 1 else []
    return owned if op.name == "stablehlo.select" or is_linear(op, frozenset([0])) else []


def _is_owned(axes: Axes, value: Value) -> bool:
    return axes.is_rows(axes.of(value))
