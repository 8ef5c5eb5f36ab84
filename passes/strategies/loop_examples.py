"""Loops over examples: a chunk of their gradients at a time, in little more memory than one takes.

A batch that lies on several devices is looped over on each: the examples are [shards, B / shards],
a step takes a chunk of each shard's, and only what has been accumulated is summed over the shards.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from hlo_surgery.passes.ir.constants import Arrays
from hlo_surgery.passes.strategies.gradient_costs import Schedule
from hlo_surgery.passes.terms.convolutions import in_groups
from hlo_surgery.passes.terms.slice_functions import (
    SliceFunction,
    example_positions,
    exposed_examples,
    from_exposed,
)
from hlo_surgery.passes.terms.steps import Known

# What is summed over the examples, and what is stacked, of one gradient, or several: arrays.
Taken = tuple[Any, Any]
Take = Callable[..., Taken]
# Arrays, each with the dimension that holds the examples, if it has one.
Exposed = Sequence[tuple[Array, int | None]]


def looped_gradients(
    function: SliceFunction,
    known: Known,
    size: int,
    schedule: Schedule,
    take: Take,
    beside: Arrays = (),
    counted: Array | None = None,
) -> Taken:
    """The sum over the examples of the arrays that `take` has first, and those that it has second,
    stacked, [B, ...]; of those that are `counted` alone, [B], if given; rows of others are zero.

    It is given one example's gradient, or several, as `function` makes it, and the example's entry
    of each of the arrays `beside`, [B, ...].
    """
    flags = () if counted is None else (counted,)
    own = [*beside, *flags]
    arrays = [*exposed_examples(function, known, size), *own]
    each = list(zip(arrays, [*example_positions(function), *[0] * len(own)], strict=True))
    of_example = _of_example(function, take, len(beside))
    shards = math.gcd(size, schedule.shards)
    count = size // shards
    chunk = min(schedule.chunk, count)
    if shards == chunk == 1:
        one = _one_taken(of_example, each)
        return _accumulated(one, size, schedule.written_out)
    taken = _taken(of_example, each, shards)
    whole = count // chunk * chunk
    sums, stacks = _accumulated(
        lambda number: taken(number * chunk, chunk), whole // chunk, schedule.written_out
    )
    # [steps, shards, chunk, ...] as [shards, examples of one shard, ...].
    rows = jax.tree.map(
        lambda x: jnp.moveaxis(x, 0, 1).reshape(shards, whole, *x.shape[3:]), stacks
    )
    if whole < count:
        added, rest = taken(jnp.int32(whole), count - whole)
        sums = jax.tree.map(jnp.add, sums, added)
        rows = jax.tree.map(lambda one, more: jnp.concatenate([one, more], 1), rows, rest)
    total = jax.tree.map(partial(_summed, 0), sums)
    return total, jax.tree.map(lambda x: x.reshape(size, *x.shape[2:]), rows)


def _of_example(function: SliceFunction, take: Take, beside: int) -> Take:
    """What is taken of an example, by its exposed operands, so many arrays beside them, and whether
    it is counted, if that is told.
    """
    of_one, operands = from_exposed(function, function.of_one), len(function.inputs)

    def of_example(*own: Array) -> Taken:
        others, flags = own[operands : operands + beside], own[operands + beside :]
        found = take(of_one(*own[:operands]), *others)
        if not flags:
            return found
        return jax.tree.map(lambda x: jnp.where(flags[0], x, jnp.zeros_like(x)), found)

    return of_example


def _accumulated(taken: Callable[[Array], Taken], steps: int, written_out: bool) -> Taken:
    """The sum over all steps of the first that is taken of each, and the second, stacked."""

    def step(sums: Any, number: Array) -> Taken:
        added, rows = taken(number)
        return jax.tree.map(jnp.add, sums, added), rows

    kinds, row = jax.eval_shape(taken, jnp.int32(0))
    sums = jax.tree.map(lambda kind: jnp.zeros(kind.shape, kind.dtype), kinds)
    if not written_out and steps > 1:
        return _in_loop(step, sums, row, steps)
    rows: list[Any] = []
    for number in range(steps):
        sums, own = step(sums, jnp.int32(number))
        rows.append(own)
    return sums, jax.tree.map(lambda *each: jnp.stack(each), *rows)


def _in_loop(step: Callable[[Any, Array], Taken], sums: Any, row: Any, steps: int) -> Taken:
    """What `lax.scan` makes of a step, whose counter has 32 bits in any module: `lax.scan` counts
    in JAX's default integers, of which the compiler for TPU makes two words where they have 64.
    """
    stacks = jax.tree.map(lambda each: jnp.zeros((steps, *each.shape), each.dtype), row)

    def go_on(state: tuple[Array, Any, Any]) -> tuple[Array, Any, Any]:
        number, summed, stacked = state
        summed, own = step(summed, number)
        put = partial(
            lax.dynamic_update_index_in_dim, index=number, axis=0, allow_negative_indices=False
        )
        return number + 1, summed, jax.tree.map(put, stacked, own)

    return lax.while_loop(lambda state: state[0] < steps, go_on, (jnp.int32(0), sums, stacks))[1:]


def _one_taken(of_example: Take, each: Exposed) -> Callable[[Array], Taken]:
    """What is taken of an example by its number, with no `vmap`, and no dimensions of size 1, as on
    one device.
    """
    at = partial(lax.dynamic_index_in_dim, keepdims=False, allow_negative_indices=False)
    return lambda number: of_example(*(x if d is None else at(x, number, d) for x, d in each))


def _taken(of_example: Take, each: Exposed, shards: int) -> Callable[[Array, int], Taken]:
    """A function of a number and a width: sums over so many examples of each shard from this number
    on, [shards, ...], and rows, [shards, width, ...].
    """
    arrays = [x if d is None else in_groups(x, d, shards) for x, d in each]
    dims = [d for _, d in each]

    def taken(start: Array, width: int) -> Taken:
        take = partial(
            lax.dynamic_slice_in_dim,
            start_index=start,
            slice_size=width,
            allow_negative_indices=False,
        )
        pairs = zip(arrays, dims, strict=True)
        chunk = [x if d is None else take(x, axis=d + 1) for x, d in pairs]
        of_shard = jax.vmap(of_example, dims, axis_size=width)
        added, rows = jax.vmap(of_shard, dims, axis_size=shards)(*chunk)
        return jax.tree.map(partial(_summed, 1), added), rows

    return taken


def _summed(dim: int, x: Array) -> Array:
    return jnp.sum(x, dim, dtype=x.dtype)
