"""Loops over examples: a chunk of their gradients at a time, in little more memory than one takes.

A batch that lies on several devices is looped over on each: the examples are [shards, B / shards],
a step takes a chunk of each shard's, and only what has been accumulated is summed over the shards.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hlo_surgery.passes.emit.rebuild import counted_loop
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.measures.moments import rows_where
from hlo_surgery.passes.strategies.gradient_costs import Schedule
from hlo_surgery.passes.terms.slice_functions import (
    SliceFunction,
    example_positions,
    exposed_examples,
    from_exposed,
)

Take = Callable[..., Any]


def looped_gradients(
    function: SliceFunction,
    known: Mapping[Value, jax.Array],
    size: int,
    schedule: Schedule,
    summand: Take,
    row: Take,
    beside: tuple[jax.Array, ...] = (),
    counted: jax.Array | None = None,
) -> tuple[Any, Any]:
    """The sum over the examples of `summand`'s arrays, and those of `row`, stacked, [B, ...]; of
    those that are `counted` alone, [B], if given; rows of the others are zero.

    Both take one example's gradient, or several, as `function` makes it; the summand also the
    example's entry of each of the arrays `beside`, [B, ...].
    """
    if counted is not None:
        summand, beside = partial(_if_counted, summand), (counted, *beside)
    shards = math.gcd(size, schedule.shards)
    count = size // shards
    chunk = min(schedule.chunk, count)
    if shards == chunk == 1:
        one = _one_taken(function, known, size, beside, summand, row)
        sums, rows = _accumulated(one, size, schedule.written_out)
        return sums, jax.tree.map(partial(rows_where, counted), rows)
    taken = partial(_taken(function, known, size, shards, beside), summand, row)
    whole = count // chunk * chunk
    sums, stacks = _accumulated(
        lambda number: taken(number * chunk, chunk), whole // chunk, schedule.written_out
    )
    rows = jax.tree.map(partial(_by_shard, (shards, whole)), stacks)
    if whole < count:
        added, rest = taken(jnp.int32(whole), count - whole)
        sums = _added(sums, added)
        rows = jax.tree.map(lambda one, more: jnp.concatenate([one, more], 1), rows, rest)
    total = jax.tree.map(partial(_summed, 0), sums)
    whole_rows = jax.tree.map(lambda x: x.reshape(size, *x.shape[2:]), rows)
    return total, jax.tree.map(partial(rows_where, counted), whole_rows)


def _accumulated(
    taken: Callable[[jax.Array], tuple[Any, Any]], steps: int, written_out: bool
) -> tuple[Any, Any]:
    """The sum over all steps of the first that is taken of each, and the second, stacked."""

    def step(sums: Any, number: jax.Array) -> tuple[Any, Any]:
        added, rows = taken(number)
        return _added(sums, added), rows

    kinds, made = jax.eval_shape(taken, jnp.int32(0))
    zeros = jax.tree.map(lambda kind: jnp.zeros(kind.shape, kind.dtype), kinds)
    return counted_loop(step, zeros, steps, written_out, made)


def _exposed(
    function: SliceFunction,
    known: Mapping[Value, jax.Array],
    size: int,
    beside: tuple[jax.Array, ...],
) -> list[tuple[jax.Array, int | None]]:
    """The arrays that a step takes of, each with the examples' dimension, if it has them."""
    dims = [*example_positions(function), *[0] * len(beside)]
    return list(zip([*exposed_examples(function, known, size), *beside], dims, strict=True))


def _one_taken(
    function: SliceFunction,
    known: Mapping[Value, jax.Array],
    size: int,
    beside: tuple[jax.Array, ...],
    summand: Take,
    row: Take,
) -> Callable[[jax.Array], tuple[Any, Any]]:
    """A function of a number: the example's summand and row, with no `vmap`, and no dimensions of
    size 1, as on one device.
    """
    of_one, exposed = (
        from_exposed(function, function.of_one),
        _exposed(function, known, size, beside),
    )
    at = partial(lax.dynamic_index_in_dim, keepdims=False, allow_negative_indices=False)

    def taken(number: jax.Array) -> tuple[Any, Any]:
        own = [x if dim is None else at(x, number, dim) for x, dim in exposed]
        operands, others = own[: len(own) - len(beside)], own[len(own) - len(beside) :]
        gradient = of_one(*operands)
        return summand(gradient, *others), row(gradient)

    return taken


def _if_counted(summand: Take, gradient: Any, counted: jax.Array, *beside: jax.Array) -> Any:
    added = summand(gradient, *beside)
    return jax.tree.map(lambda x: jnp.where(counted, x, jnp.zeros_like(x)), added)


def _taken(
    function: SliceFunction,
    known: Mapping[Value, jax.Array],
    size: int,
    shards: int,
    beside: tuple[jax.Array, ...],
) -> Callable[[Take, Take, jax.Array, int], tuple[Any, Any]]:
    """A function of a summand, a row, a number and a width: sums over so many examples of each
    shard from this number on, [shards, ...], and rows, [shards, width, ...].
    """
    positions = example_positions(function)
    exposed = _exposed(function, known, size, beside)
    each = [(x if p is None else _split(x, p, shards), p) for x, p in exposed]

    def taken(summand: Take, row: Take, start: jax.Array, width: int) -> tuple[Any, Any]:
        take = partial(
            lax.dynamic_slice_in_dim,
            start_index=start,
            slice_size=width,
            allow_negative_indices=False,
        )
        chunk = [x if p is None else take(x, axis=p + 1) for x, p in each]
        operands, others = chunk[: len(positions)], chunk[len(positions) :]
        gradients = _gradients(function, positions, operands, shards, width)
        added = jax.tree.map(partial(_summed, 1), _over_two(summand)(gradients, *others))
        return added, _over_two(row)(gradients)

    return taken


def _split(x: jax.Array, dim: int, shards: int) -> jax.Array:
    """The examples' dimension as [shards, examples of one shard]."""
    return x.reshape(*x.shape[:dim], shards, x.shape[dim] // shards, *x.shape[dim + 1 :])


def _by_shard(counts: tuple[int, int], stack: jax.Array) -> jax.Array:
    """[steps, shards, chunk, ...] as [shards, examples of one shard, ...]."""
    return jnp.moveaxis(stack, 0, 1).reshape(*counts, *stack.shape[3:])


def _summed(dim: int, x: jax.Array) -> jax.Array:
    return jnp.sum(x, dim, dtype=x.dtype)


def _added(sums: Any, more: Any) -> Any:
    return jax.tree.map(jnp.add, sums, more)


def _gradients(
    function: SliceFunction,
    positions: Sequence[int | None],
    chunk: Sequence[jax.Array],
    shards: int,
    width: int,
) -> Any:
    """Gradients [shards, width, *parameter] of a chunk of every shard."""
    of_one = from_exposed(function, function.of_one)
    of_shard = jax.vmap(of_one, positions, axis_size=width)
    return jax.vmap(of_shard, positions, axis_size=shards)(*chunk)


def _over_two(function: Take) -> Take:
    return jax.vmap(jax.vmap(function))
