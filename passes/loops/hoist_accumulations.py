"""Hoist accumulations: given a loop that adds contractions, stacked operands contracted behind it.

    %g = while (%c) { add %c, (dot_general %h_t, %l_t over b) }
    =>  %H, %L = while { stack %h_t, %l_t } ; %g = dot_general %H, %L over (t, b)

So a recurrent weight's gradient becomes one contraction over steps and examples, to which every
strategy applies.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp

from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.dataflow.counters import counter_values
from hlo_surgery.passes.emit.scopes import HOIST
from hlo_surgery.passes.emit.splice import splice
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.linearity import SUMMING, initial_operands
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.loops.added_values import added_values
from hlo_surgery.passes.loops.lift_values import reached_values
from hlo_surgery.passes.loops.step_stacks import (
    Made,
    Source,
    Stacks,
    common_order,
    operand_sources,
    resolve,
    write_stacks,
)
from hlo_surgery.passes.raising.raise_op import Raised, raise_op
from hlo_surgery.passes.terms.axes import Axes
from hlo_surgery.passes.terms.epilogue import Link, epilogue
from hlo_surgery.passes.terms.example_axes import example_axis
from hlo_surgery.passes.terms.gradient_slices import gradient_step
from hlo_surgery.passes.terms.steps import Step

CONTRACTIONS = SUMMING | {"stablehlo.reduce"}


@dataclass(frozen=True)
class Term:
    """One contraction that a loop adds to a carry, and the ops between."""

    site: Step
    links: Sequence[Link]

    @property
    def others(self) -> list[Value]:
        """What the ops between take beside it."""
        return [v for link in self.links for v in link.others]


def hoist_accumulations(axes: Axes, block: mlir.Block, outputs: Sequence[Value]) -> bool:
    """Hoist what the outputs rest on, in this block's loops and those inside them. True if anything
    changed.

    Ops and values are new then, and must be classified again.
    """
    reached = reached_values(axes, outputs)
    loops = [
        op
        for op in mlir.nested_operations(cast(Any, block.owner).operation)
        if op.name == "stablehlo.while"
    ]
    hoisted = [_hoist(axes, loop, reached) for loop in reversed(loops)]
    return any(hoisted)


def _hoist(axes: Axes, loop: Operation, reached: set[Value]) -> bool:
    counters = counter_values(loop)
    if not counters:
        return False
    body = loop.regions[1].blocks[0]
    numbers = [i for i, argument in enumerate(body.arguments) if argument in reached]
    sums = {i: terms for i in numbers if (terms := _terms(axes, loop, i)) is not None}
    stacks = Stacks(
        counters, common_order(loop, [t.site for terms in sums.values() for t in terms], counters)
    )
    plans = {
        i: plan
        for i, terms in sums.items()
        if (plan := operand_sources(loop, [term.site for term in terms], stacks)) is not None
    }
    if not plans:
        return False
    renewed, made = write_stacks(axes, loop, stacks, reached)
    for i, plan in plans.items():
        _contract_behind(renewed, i, sums[i], plan, made)
    return True


def _terms(axes: Axes, loop: Operation, number: int) -> list[Term] | None:
    """The contractions that are added to a carry, if it is nothing but their sum."""
    body = loop.regions[1].blocks[0]
    added = added_values(loop, number)
    terms = [term_of(axes, body, value) for value in added or []]
    known = [term for term in terms if term is not None]
    return known if added is not None and len(known) == len(terms) else None


def term_of(axes: Axes, body: Any, value: Value) -> Term | None:
    """A contraction over the examples behind moves and scales that are the same at each step."""
    made, links = epilogue(axes, value)
    op = mlir.defining_operation(made)
    if op is None or not axes.is_sum(axes.of(made)) or not _is_hoistable(op):
        return None
    if op.block != body or all(example_axis(axes, v) is None for v in op.operands):
        return None
    term = Term(gradient_step(axes, op), links)
    alone = _has_rows_alone(term.site) and not any(_is_of(v, body) for v in term.others)
    return term if alone else None


def _has_rows_alone(site: Step) -> bool:
    """Whether all operands of examples hold them in rows over which the site sums."""
    return all(axis is None or isinstance(axis, PerExample) for _, axis in site.inputs)


def _is_hoistable(op: Operation) -> bool:
    zero = all(is_splat(op.operands[i], 0) for i in initial_operands(op))
    return op.name in CONTRACTIONS and len(op.results) == 1 and zero and raise_op(op) is not None


def _is_of(value: Value, body: Any) -> bool:
    """Whether a value is made in the loop's body."""
    op = mlir.defining_operation(value)
    return cast(Any, value.owner) == body if op is None else op.block == body


def _contract_behind(
    loop: Operation,
    number: int,
    terms: list[Term],
    plan: list[list[Source]],
    made: Made,
) -> None:
    """Make the carry idle, and its result all steps' contractions, summed, behind the loop."""
    sources = [[resolve(s, made) for s in term_sources] for term_sources in plan]
    others = [v for term in terms for v in term.others]
    stacks = [v for row in sources for v, _ in row]
    values = list(dict.fromkeys([loop.operands[number], *others, *stacks]))

    def contracted(*operands: jax.Array) -> list[jax.Array]:
        known = dict(zip(values, operands, strict=True))
        sums = [
            _contract(term, [(known[v], dim) for v, dim in row], known)
            for term, row in zip(terms, sources, strict=True)
        ]
        initial = [] if is_splat(loop.operands[number], 0) else [known[loop.operands[number]]]
        return [functools.reduce(jnp.add, [*initial, *sums])]

    (total,) = splice(values, contracted, after_loop(loop), terms[0].site.op, scope=HOIST)
    body = loop.regions[1].blocks[0]
    mlir.return_operation(body).operands[number] = body.arguments[number]
    loop.results[number].replace_all_uses_with(total)


def after_loop(loop: Operation) -> Operation:
    """The op behind a loop."""
    block = mlir.operations(cast(Any, loop.block))
    return block[
        next(
            i
            for i, op in enumerate(block)
            if op.name == "stablehlo.while" and mlir.is_same(op, loop)
        )
        + 1
    ]


def _contract(
    term: Term, stacks: list[tuple[jax.Array, int | None]], known: dict[Value, jax.Array]
) -> jax.Array:
    """One contraction over steps and examples, and what lies behind it."""
    operands = [
        _joined(x, dim, axis) if isinstance(axis, PerExample) and dim is not None else x
        for (x, dim), (_, axis) in zip(stacks, term.site.inputs, strict=True)
    ]
    return contract(term, operands, known)


def contract(term: Term, operands: list[jax.Array], known: dict[Value, jax.Array]) -> jax.Array:
    """A contraction of these operands, and what lies behind it."""
    (made,) = cast(Raised, raise_op(term.site.op))(*operands)
    for link in term.links:
        taken = [made if i in link.sums else known[v] for i, v in enumerate(link.op.operands)]
        (made,) = cast(Raised, raise_op(link.op))(*taken)
    return made


def _joined(stack: jax.Array, dim: int, axis: PerExample) -> jax.Array:
    """Join steps with examples: [.., T, .., before*B*after, ..] -> [.., before*T*B*after, ..]."""
    moved = jnp.moveaxis(stack, dim, 0)
    shape = moved.shape[1:]
    inner = shape[axis.dim] // axis.before
    parted = moved.reshape(
        moved.shape[0], *shape[: axis.dim], axis.before, inner, *shape[axis.dim + 1 :]
    )
    beside = jnp.moveaxis(parted, 0, axis.dim + 1)
    return beside.reshape(
        *shape[: axis.dim], math.prod((moved.shape[0], shape[axis.dim])), *shape[axis.dim + 1 :]
    )
