"""Unmet: why a measure by positions is not to be had of a gradient, and at which line.

%g = add %sum, %c             =>  at the line of %c, which no example is in
%g = add %scattered, %product =>  at that of the scatter, beside which the other use is named
"""

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.ir.source_lines import reason_at, source_line
from hlo_surgery.passes.measures.kronecker import KroneckerFactor
from hlo_surgery.passes.measures.measure import OfPositions
from hlo_surgery.passes.strategies.einsums.einsums import first_unread
from hlo_surgery.passes.strategies.einsums.sides import sides_of
from hlo_surgery.passes.strategies.task import Task
from hlo_surgery.passes.terms.steps import GradientSlice, Split

TERM_HELP = "leave terms without examples, such as weight decay, to the optimizer"
USES_HELP = (
    "pass the parameter to the loss once for each kind of use, as in loss(w, w), and differentiate "
    "by all of them, as with argnums=(0, 1): each then has factors of its own"
)
BEFORE_HELP = (
    "take the gradient of the examples' mean loss, and not the mean of their gradients, as with "
    "jax.grad(lambda w, x: jnp.mean(jax.vmap(partial(loss, w))(x)))"
)


class _Unmet(NamedTuple):
    """`what` is not as it has to be, made by `op`; `help`: a way out beside the measure's own."""

    op: Operation
    what: str
    help: str = ""


def unmet(task: Task, measure: OfPositions) -> Reason:
    """Why no strategy makes this measure of this gradient."""
    sliced, by_sides = task.sliced, isinstance(measure, KroneckerFactor)
    lacking = "complex" if by_sides and mlir.is_complex(sliced.value) else "not such a sum"
    why = f"{measure.needs}, and the gradient {task.name} is {lacking}"
    found = next(chain(_no_sum(task), _no_sides(task) if by_sides else ()), None)
    if found is not None:
        help = f"{found.help}; or {measure.help}" if found.help else measure.help
        return reason_at(found.op, f"{why}: {found.what}", help)
    op = sliced.sites[0].op if sliced.sites else mlir.defining_operation(sliced.value)
    if op is None:
        return Reason(why, "func.return", "module", measure.help)
    return reason_at(op, why, measure.help)


def _no_sum(task: Task) -> Iterator[_Unmet]:
    """What keeps a gradient from being read as einsums."""
    if task.made_before is not None:
        what = "this makes each example's own, and all that is done to them is to add them up"
        yield _Unmet(task.made_before, what, BEFORE_HELP)
    yield from _terms_without_examples(task.sliced)
    step = first_unread(task.sliced)
    if step is not None:
        what = "is no contraction of whole rows by whole rows"
        behind = "does more than move what is contracted, and scale it by a number"
        yield _Unmet(step.op, f"this {what if step.is_site else behind}")


def _terms_without_examples(sliced: GradientSlice) -> Iterator[_Unmet]:
    """What is added that rests on no example, as of a penalty of weights, or on one alone."""
    for step in sliced.tail:
        added = step.inputs if step.op.name in ("stablehlo.add", "stablehlo.subtract") else ()
        for value, axis in added:
            op = mlir.defining_operation(value) or step.op
            if value in sliced.made or is_splat(value, 0):
                continue
            if isinstance(axis, Split):
                yield _Unmet(op, "this term of it is single examples' alone", BEFORE_HELP)
            yield _Unmet(op, "this term of it rests on no example", TERM_HELP)


def _no_sides(task: Task) -> Iterator[_Unmet]:
    """A use whose factors are not of the kind of the first one's, or that have no sides."""
    sides = [(e, sides_of(e)) for e in task.einsums]
    kinds = [own for _, own in sides if own is not None]
    odd = [e.site.op for e, own in sides if own is not None and own != kinds[0]]
    for op in odd:
        what = (
            "it is used in two ways that have no factors in common, as a table is that is looked "
        )
        where = source_line(task.einsums[0].site.op)
        yield _Unmet(op, f"{what}up and multiplied by; the other way at {where}", USES_HELP)
    for e in (e for e, own in sides if own is None):
        what = "its axes, in the order that they have, are not first those of one factor and then "
        part = "this uses a part of it alone"
        yield _Unmet(e.pad or e.site.op, part if e.pad else f"{what}those of the other")
