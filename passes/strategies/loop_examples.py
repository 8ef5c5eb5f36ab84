"""Loop: a chunk of the examples' gradients at a time, accumulated, in little more memory than one.

acc = 0 ; for b in range(B): g = slice(operands[b]) ; acc += (g, phi(g)) ; mean = acc / B

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
from hlo_surgery.passes.terms.slice_functions import (
    SliceFunction,
    example_positions,
    exposed_examples,
    from_exposed,
)

Summand = Callable[..., jax.Array]


def looped_gradients(
    function: SliceFunction,
    known: Mapping[Value, jax.Array],
    size: int,
    summands: Sequence[Summand],
    rows: Sequence[Summand],
    beside: tuple[jax.Array, ...] = (),
    chunk: int = 1,
    shards: int = 1,
    written_out: bool = False,
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Sums over examples of each summand that `function` makes, and each of its `rows`, stacked.

    The summands also take each example's entry of the arrays `beside`. `written_out`: step after
    step without a loop.
    """
    shards = math.gcd(size, shards)
    count = size // shards
    chunk = min(chunk, count)
    positions = example_positions(function)
    exposed = exposed_examples(function, known, size)
    split = [
        x if p is None else _split(x, p, shards) for x, p in zip(exposed, positions, strict=True)
    ]
    along = [_split(x, 0, shards) for x in beside]

    def made(start: jax.Array, width: int) -> tuple[list[jax.Array], list[jax.Array]]:
        take = partial(
            lax.dynamic_slice_in_dim,
            start_index=start,
            slice_size=width,
            allow_negative_indices=False,
        )
        taken = [
            x if p is None else take(x, axis=p + 1) for x, p in zip(split, positions, strict=True)
        ]
        gradients = _gradients(function, positions, taken, shards, width)
        more = [take(x, axis=1) for x in along]
        each = [_over_two(summand)(gradients, *more) for summand in summands]
        return [jnp.sum(x, 1, dtype=x.dtype) for x in each], [
            _over_two(row)(gradients) for row in rows
        ]

    def step(sums: list[jax.Array], number: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
        added, stacked = made(number * chunk, chunk)
        return [total + x for total, x in zip(sums, added, strict=True)], stacked

    whole = count // chunk * chunk
    kinds, _ = jax.eval_shape(partial(made, width=chunk), jnp.int32(0))
    zeros = [jnp.zeros(kind.shape, kind.dtype) for kind in kinds]
    sums, stacks = counted_loop(step, zeros, whole // chunk, written_out)
    found = [jnp.moveaxis(stack, 0, 1).reshape(shards, whole, *stack.shape[3:]) for stack in stacks]
    if whole < count:
        added, rest = made(jnp.int32(whole), count - whole)
        sums = [total + x for total, x in zip(sums, added, strict=True)]
        found = [jnp.concatenate(pair, 1) for pair in zip(found, rest, strict=True)]
    return [jnp.sum(x, 0, dtype=x.dtype) for x in sums], [
        x.reshape(size, *x.shape[2:]) for x in found
    ]


def _split(x: jax.Array, dim: int, shards: int) -> jax.Array:
    """The examples' dimension as [shards, examples of one shard]."""
    return x.reshape(*x.shape[:dim], shards, x.shape[dim] // shards, *x.shape[dim + 1 :])


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


def _over_two(function: Summand) -> Summand:
    return jax.vmap(jax.vmap(function))
