"""Hoist: contractions that a loop adds up, or stacks, made behind it of their stacked operands.

    %g = while (%c) { add %c, (dot_general %h_t, %l_t over b) }
    =>  %H, %L = while { stack %h_t, %l_t } ; %g = dot_general %H, %L over (t, b)

    %g = while (%c) { dynamic_update_slice %c, (dot_general %h_i, %l_i over b), %i }
    =>  %H, %L = while { stack %h_i, %l_i } ; %g = dot_general %H, %L over b, batched over i

So a recurrent weight's gradient becomes one contraction over steps and examples, to which every
strategy applies; and a scan over layers leaves its gradients where the weights of the examples,
which rest on all layers, are known.

Stacks: the values of a loop's operands at all its steps, along a dimension of their own.

What is sliced from a stack already is taken from there; any other value is written to a new stack,
step by step, in the same order.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import Array

from hlo_surgery.passes.dataflow.ancestors import behind_barriers, is_splat, sums_from_zero
from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.emit.splice import HOIST, HOISTED_STACK, splice_known
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import Arrays
from hlo_surgery.passes.ir.mlir import Operation, Value, Values
from hlo_surgery.passes.ir.traits import SUMMING
from hlo_surgery.passes.loops.loop_sums import (
    Order,
    Part,
    Scan,
    added_values,
    ops_behind,
    order_along,
    reached_values,
    scanned_carry,
    stacked,
)
from hlo_surgery.passes.raising.raise_op import Raised, raise_op
from hlo_surgery.passes.terms.epilogue import Reading, epilogue
from hlo_surgery.passes.terms.gradient_slices import example_axis, gradient_step
from hlo_surgery.passes.terms.site_functions import apart
from hlo_surgery.passes.terms.steps import Axes, Known, Step

# Where a value's steps are: a stack of them, and its dimension along which they lie.
Stacked = tuple[Value, int]


def _sliced(axes: Axes, loop: Operation, value: Value) -> tuple[Stacked, Order] | None:
    """The stack outside the loop of which a value is one slice, without that dimension."""
    reshape = mlir.made_by(value, "stablehlo.reshape")
    op = reshape and mlir.made_by(reshape.operands[0], "stablehlo.dynamic_slice")
    along = op and order_along(axes, loop, op)
    if op is None or along is None or loop in mlir.loops_around(op.operands[0]):
        return None
    (dim, order), stack = along, op.operands[0]
    whole = mlir.shape(stack)
    is_slice = mlir.shape(value) == (*whole[:dim], *whole[dim + 1 :])
    return ((stack, dim), order) if is_slice else None


CONTRACTIONS = SUMMING | {"stablehlo.reduce"}


@dataclass(frozen=True)
class Term:
    """A contraction in a loop's body, and the ops behind it, which take `others` beside."""

    site: Step
    readings: Sequence[Reading]

    @property
    def others(self) -> Values:
        """What the ops between take beside it."""
        return [v for each in self.readings for v in each.others]

    def of(self, operands: Arrays, known: Known) -> Array:
        """The contraction of these operands, and what lies behind it."""
        (made,) = cast(Raised, raise_op(self.site.op))(*operands)
        for each in self.readings:
            taken = [made if i in each.sums else known[v] for i, v in enumerate(each.op.operands)]
            (made,) = cast(Raised, raise_op(each.op))(*taken)
        return made


@dataclass(frozen=True)
class Carry:
    """A loop's result that is made of contractions alone: their sum, or the stack of a `scan`."""

    number: int
    terms: Sequence[Term]
    scan: Scan | None = None


def hoist(axes: Axes, block: mlir.Block, outputs: Values, *, stacks: bool) -> bool:
    """Hoist what the outputs rest on: sums out of all loops in this block, those within first; or
    stacks, out of its own. True if anything changed.

    Ops and values are new then, and must be classified again.
    """
    reached = reached_values(axes, outputs)
    ops = mlir.operations_within(block)[::-1]
    loops = [op for op in ops if op.name == "stablehlo.while"]
    if stacks:
        loops = [loop for loop in loops if loop.block == block]
    changed = [_hoist(axes, loop, reached, stacks) for loop in loops]
    return any(changed)


def _hoist(axes: Axes, loop: Operation, reached: set[Value], stacks: bool) -> bool:
    found = (_stacks if stacks else _sums)(axes, loop, reached)
    sliced = {v: where for v in _rows(found) if (where := _sliced(axes, loop, v))}
    # In the order in which a loop stacks contractions it has to stack their operands.
    orders = [e.scan.order for e in found if e.scan] or [order for _, order in sliced.values()]
    order = next(iter(orders or _counted(axes, loop)), None)
    if not found or order is None:
        return False
    kept = [each for each in found if each.scan is None or each.scan.order == order]
    made = {v: stack for v, (stack, own) in sliced.items() if own == order}
    new = [v for v in dict.fromkeys(_rows(kept)) if v not in made]
    if new:
        parts = [Part(v, order) for v in new]
        loop, results = stacked(axes, loop, parts, [reached])
        made |= {v: (stack, 0) for v, stack in zip(new, results, strict=True)}
    for each in kept:
        _contract_behind(loop, each, made)
    return True


def _counted(axes: Axes, loop: Operation) -> list[Order]:
    """The order of the steps themselves, where a counter tells it."""
    counted = axes.state.structure.loop_of(loop)
    step = counted and counted.step
    return [Order(step, tuple(range(counted.trips)))] if counted and step else []


def _rows(found: Sequence[Carry]) -> Values:
    """The operands of contractions that hold examples."""
    sites = [term.site for each in found for term in each.terms]
    return [v for site in sites for v, axis in site.inputs if axis]


def _sums(axes: Axes, loop: Operation, reached: set[Value]) -> list[Carry]:
    """The carries that are nothing but a sum of contractions."""
    body, found = mlir.blocks(loop)[1], list[Carry]()
    for number in (i for i, argument in enumerate(body.arguments) if argument in reached):
        added = added_values(loop, number) or []
        terms = [term for value in added if (term := _term(axes, body, value))]
        if added and len(terms) == len(added):
            found.append(Carry(number, terms))
    return found


def _stacks(axes: Axes, loop: Operation, reached: set[Value]) -> list[Carry]:
    """The results that stack a contraction of each step."""
    body = mlir.blocks(loop)[1]
    scans = [scanned_carry(axes, v) for v in loop.results if behind_barriers(v) in reached]
    pairs = [(scan, _term(axes, body, scan.write.operands[1])) for scan in scans if scan]
    return [Carry(scan.number, [term], scan) for scan, term in pairs if term]


def _term(axes: Axes, body: Any, value: Value) -> Term | None:
    """A contraction over the examples behind moves and scales that are the same at each step."""
    made, readings = epilogue(axes, value)
    op = mlir.defining_operation(made)
    if op is None or not axes.sums(made) or not _is_hoistable(op):
        return None
    if op.block != body or all(example_axis(axes, v) is None for v in op.operands):
        return None
    term = Term(gradient_step(axes, op), readings)
    in_rows = all(axis is None or isinstance(axis, PerExample) for _, axis in term.site.inputs)
    beside = [*term.others, *(v for v, axis in term.site.inputs if axis is None)]
    return term if in_rows and not any(_is_of(v, body) for v in beside) else None


def _is_hoistable(op: Operation) -> bool:
    return op.name in CONTRACTIONS and sums_from_zero(op) and raise_op(op) is not None


def _is_of(value: Value, body: Any) -> bool:
    """Whether a value is made in the loop's body."""
    op = mlir.defining_operation(value)
    return cast(Any, value.owner) == body if op is None else op.block == body


def _contract_behind(loop: Operation, found: Carry, made: Mapping[Value, Stacked]) -> None:
    """Make the carry idle, and its result what all steps have, at once, behind the loop."""
    number, initial = found.number, loop.operands[found.number]
    operands = [v for term in found.terms for v, _ in term.site.inputs]
    others = [v for term in found.terms for v in term.others]
    sources = [made[v][0] if v in made else v for v in operands]

    def contracted(given: Known) -> Arrays:
        known = {**given, **{v: given[s] for v, s in zip(operands, sources, strict=True)}}
        dims = {v: dim for v, (_, dim) in made.items()}
        if found.scan is None:
            sums = [_summed(term, known, dims) for term in found.terms]
            start = [] if is_splat(initial, 0) else [known[initial]]
            return [functools.reduce(jnp.add, [*start, *sums])]
        of_step = jax.vmap(
            lambda *step: found.terms[0].of(step, known), [dims.get(v) for v in operands]
        )
        each = of_step(*(known[v] for v in operands))
        shape = mlir.shape(loop.results[number])
        return [jnp.moveaxis(each, 0, found.scan.dim).reshape(shape)]

    scope = HOISTED_STACK if found.scan else HOIST
    op = found.terms[0].site.op
    values = [initial, *others, *sources]
    (result,) = splice_known(values, contracted, ops_behind(loop)[0], op, scope=scope)
    body = mlir.blocks(loop)[1]
    mlir.return_operation(body).operands[number] = body.arguments[number]
    loop.results[number].replace_all_uses_with(result)


def _summed(term: Term, known: Known, dims: Mapping[Value, int]) -> Array:
    """One contraction over steps and examples."""
    operands = [
        _joined(known[v], dims[v], axis) if isinstance(axis, PerExample) else known[v]
        for v, axis in term.site.inputs
    ]
    return term.of(operands, known)


def _joined(stack: Array, dim: int, axis: PerExample) -> Array:
    """Join steps with examples: [.., T, .., before*B*after, ..] -> [.., before*T*B*after, ..]."""
    parted = apart(jnp.moveaxis(stack, dim, 0), axis.dim + 1, -1, axis)
    joined, end = jnp.moveaxis(parted, 0, axis.dim + 1), axis.dim + 4
    return joined.reshape(*joined.shape[: axis.dim], -1, *joined.shape[end:])
