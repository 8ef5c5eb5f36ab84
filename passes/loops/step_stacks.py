"""Stacks: the values of a loop's operands at all its steps, along a dimension of their own.

What is sliced from a stack already is taken from there; any other value is written to a new stack,
step by step. The steps' order does not matter, but must be the same for all operands of one
contraction.
"""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hlo_surgery.passes.dataflow.numbers import Numbers, is_permutation, values_over
from hlo_surgery.passes.emit.rebuild import add_carries, extend_results, extend_return
from hlo_surgery.passes.emit.scopes import STACK
from hlo_surgery.passes.emit.splice import splice
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.terms.axes import Axes
from hlo_surgery.passes.terms.steps import Step


@dataclass(frozen=True)
class Stacked:
    """Where an operand's values of all steps are: sliced from `source` along `dim` at `index`, in
    `order`.
    """

    source: Value
    dim: int
    index: Value
    order: tuple[int, ...]


@dataclass
class Stacks:
    """The stacks that a loop is given: value and index written, by value and order.

    `order`: that of operands which have no partner sliced from a stack.
    """

    counters: dict[Value, Numbers]
    order: Stacked | None
    written: dict[tuple[Value, tuple[int, ...]], Value] = field(
        default_factory=dict[tuple[Value, tuple[int, ...]], Value]
    )


Source = Stacked | Value
Made = dict[tuple[Value, tuple[int, ...]], Value]


def operand_sources(
    loop: Operation, sites: list[Step], stacks: Stacks
) -> list[list[Source]] | None:
    """For each operand of each contraction, where its stack is; new ones are noted in `stacks`."""
    noted = dict(stacks.written)
    found: list[list[Source]] = []
    for site in sites:
        sliced = [_stacked(loop, v, stacks.counters) if axis else None for v, axis in site.inputs]
        leader = next((s for s in sliced if s is not None), stacks.order)
        if leader is None:
            return None
        sources: list[Source] = []
        for (value, axis), own in zip(site.inputs, sliced, strict=True):
            if axis and (own is None or own.order != leader.order):
                noted[value, leader.order] = leader.index
                sources.append(Stacked(value, -1, leader.index, leader.order))
            else:
                sources.append(own if own is not None else value)
        found.append(sources)
    stacks.written.update(noted)
    return found


def _stacked(loop: Operation, value: Value, counters: dict[Value, Numbers]) -> Stacked | None:
    """A value that is one slice of a stack outside the loop, without the stack's dimension."""
    shaped = mlir.defining_operation(value)
    op = (
        mlir.defining_operation(shaped.operands[0])
        if shaped is not None and len(shaped.operands)
        else None
    )
    if (
        shaped is None
        or shaped.name != "stablehlo.reshape"
        or op is None
        or op.name != "stablehlo.dynamic_slice"
    ):
        return None
    source = op.operands[0]
    whole, part = mlir.shape(source), mlir.shape(op.results[0])
    cut = [d for d in range(len(whole)) if whole[d] != part[d]]
    if (
        len(cut) != 1
        or is_inside(source, loop)
        or mlir.shape(value) != (*whole[: cut[0]], *whole[cut[0] + 1 :])
    ):
        return None
    index = op.operands[1 + cut[0]]
    order = values_over(index, counters)
    if not is_permutation(order, whole[cut[0]]):
        return None
    return Stacked(source, cut[0], index, tuple(np.asarray(order).tolist()))


def is_inside(value: Value, loop: Operation) -> bool:
    """Whether a value is made in the loop, at any depth."""
    owner: Any = value.owner
    op = owner.owner.operation if mlir.defining_operation(value) is None else owner.operation
    while op is not None and op.name not in ("func.func", "builtin.module"):
        if (
            op.name == "stablehlo.while"
            and mlir.is_same(op, loop)
            and op is not mlir.defining_operation(value)
        ):
            return True
        op = op.parent.operation if op.parent is not None else None
    return False


def common_order(
    loop: Operation, sites: list[Step], counters: dict[Value, Numbers]
) -> Stacked | None:
    """The order of the first stack an operand is sliced from, so that new stacks can be shared."""
    sliced = (_stacked(loop, v, counters) for site in sites for v, axis in site.inputs if axis)
    return next((s for s in sliced if s is not None), None) or _by_counter(counters)


def _by_counter(counters: dict[Value, Numbers]) -> Stacked | None:
    """Stacking by a counter that runs from 0."""
    for counter, numbers in counters.items():
        if is_permutation(numbers, len(numbers)):
            return Stacked(counter, -1, counter, tuple(numbers.tolist()))
    return None


def write_stacks(
    axes: Axes, loop: Operation, stacks: Stacks, reached: set[Value]
) -> tuple[Operation, Made]:
    """Rebuild the loop so that it also stacks these values, each along a new first dimension; and
    where each is.
    """
    values = [value for value, _ in stacks.written]
    if not values:
        return loop, {}
    trips = len(next(iter(stacks.counters.values())))
    shapes = [((trips, *mlir.shape(v)), dtype_of(v)) for v in values]
    zeros = splice([], lambda: [jnp.zeros(*kind) for kind in shapes], loop, scope=STACK)
    arguments = add_carries(loop, zeros)
    end = mlir.return_operation(loop.regions[1].blocks[0])
    operands = [*arguments, *values, *stacks.written.values()]
    written = splice(operands, _write_each, end, scope=STACK)
    extend_return(end, written)
    renewed = extend_results(loop, zeros, len(zeros), axes.by_value, [axes.trained, reached])
    return renewed, dict(
        zip(stacks.written, mlir.results(renewed)[len(renewed.results) - len(zeros) :], strict=True)
    )


def _write_each(*operands: jax.Array) -> list[jax.Array]:
    """What `_write_one` makes of each stack, given all stacks, all values and all indices."""
    count = len(operands) // 3
    groups = (operands[first : first + count] for first in range(0, 3 * count, count))
    return list(map(_write_one, *groups))


def _write_one(stack: jax.Array, value: jax.Array, index: jax.Array) -> jax.Array:
    starts = [index, *(jnp.zeros((), index.dtype) for _ in value.shape)]
    return jax.lax.dynamic_update_slice(stack, value[None], starts, allow_negative_indices=False)


def resolve(source: Source, made: Made) -> tuple[Value, int | None]:
    """The stack and its dimension of steps; None for an operand that is no stack."""
    if not isinstance(source, Stacked):
        return source, None
    return (made[source.source, source.order], 0) if source.dim < 0 else (source.source, source.dim)
