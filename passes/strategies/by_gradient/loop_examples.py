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

from hlo_surgery.passes.emit.counted_loop import counted_loop
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.measures.joint_sums import summed_together
from hlo_surgery.passes.strategies.task import Schedule
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
) -> tuple[Any, Any]:
    """The sum over the examples of `summand`'s arrays, and those of `row`, stacked, [B, ...].

    Both take one example's gradient, or several, as `function` makes it; the summand also the
    example's entry of each of the arrays `beside`, [B, ...].
    """
    shards = math.gcd(size, schedule.shards)
    count = size // shards
    chunk = min(schedule.chunk, count)
    batch = _Batch(function, known, size, shards, beside, schedule.joint_sums)

    def step(sums: Any, number: jax.Array) -> tuple[Any, Any]:
        added, rows = batch.taken(summand, row, number * chunk, chunk)
        return _added(sums, added), rows

    whole = count // chunk * chunk
    kinds, made = jax.eval_shape(partial(batch.taken, summand, row, width=chunk), jnp.int32(0))
    zeros = jax.tree.map(lambda kind: jnp.zeros(kind.shape, kind.dtype), kinds)
    sums, stacks = counted_loop(step, zeros, whole // chunk, schedule.written_out, made)
    rows = jax.tree.map(partial(_by_shard, (shards, whole)), stacks)
    if whole < count:
        added, rest = batch.taken(summand, row, jnp.int32(whole), count - whole)
        sums = _added(sums, added)
        rows = jax.tree.map(lambda one, more: jnp.concatenate([one, more], 1), rows, rest)
    total = jax.tree.map(partial(_summed, 0), sums)
    return total, jax.tree.map(lambda x: x.reshape(size, *x.shape[2:]), rows)


class _Batch:
    """What a slice function takes of all examples, [shards, examples of one shard] each."""

    def __init__(
        self,
        function: SliceFunction,
        known: Mapping[Value, jax.Array],
        size: int,
        shards: int,
        beside: tuple[jax.Array, ...],
        joint_sums: bool,
    ) -> None:
        self._function, self._shards, self._joint_sums = function, shards, joint_sums
        self._positions = example_positions(function)
        pairs = zip(exposed_examples(function, known, size), self._positions, strict=True)
        self._operands = [x if p is None else _split(x, p, shards) for x, p in pairs]
        self._beside = [_split(x, 0, shards) for x in beside]

    def taken(self, summand: Take, row: Take, start: jax.Array, width: int) -> tuple[Any, Any]:
        """Sums over `width` examples of each shard, [shards, ...], and rows, [shards, width, ...].

        They are those from number `start` on.
        """
        take = partial(
            lax.dynamic_slice_in_dim,
            start_index=start,
            slice_size=width,
            allow_negative_indices=False,
        )
        pairs = zip(self._operands, self._positions, strict=True)
        operands = [x if p is None else take(x, axis=p + 1) for x, p in pairs]
        gradients = _gradients(self._function, self._positions, operands, self._shards, width)
        each = _over_two(summand)(gradients, *(take(x, axis=1) for x in self._beside))
        return self._summed_over(each), _over_two(row)(gradients)

    def _summed_over(self, each: Any) -> Any:
        """Over the examples of each shard."""
        return (
            summed_together(each, 1)
            if self._joint_sums
            else jax.tree.map(partial(_summed, 1), each)
        )


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
    """Gradients [shards, width, *parameter] of a chunk of every shard; one without `vmap`."""
    of_one = from_exposed(function, function.of_one)
    if shards == width == 1:
        squeezed = [
            x if p is None else jnp.squeeze(x, (p, p + 1))
            for x, p in zip(chunk, positions, strict=True)
        ]
        return jax.tree.map(_alone, of_one(*squeezed))
    of_shard = jax.vmap(of_one, positions, axis_size=width)
    return jax.vmap(of_shard, positions, axis_size=shards)(*chunk)


def _alone(gradient: jax.Array) -> jax.Array:
    return gradient[None, None]


def _over_two(function: Take) -> Take:
    return jax.vmap(jax.vmap(function))
