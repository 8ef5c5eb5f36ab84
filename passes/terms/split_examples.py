"""Split examples: the rows of a `Split` operand as [B, ...], and weights laid along them.

a digit to the front:         [.., before * n * after, ..]  ->  [n, .., before * after, ..]
a loop's step, or one place:  [..]                          ->  [n, ..], zero but for one
spread:                       [.., n, ..]                   ->  [n, .., n, ..], zero but for one
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.passes.ir.element_types import widened
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.terms.steps import Place, Split

Known = Mapping[Value, jax.Array]


def exposed_split(x: jax.Array, split: Split, known: Known, count: Any) -> jax.Array:
    """[B, *operand of one example], `count` times where the op that takes it sums no rows."""
    front = len(split.places)
    own = x[(None,) * front]
    for number, place in enumerate(split.places):
        moved = [p for n, p in enumerate(split.places[:number]) if n not in split.spread]
        own = _exposed(own, number, front, _left(place, moved), number in split.spread, known)
    sizes = tuple(place.size for place in split.places)
    own = jnp.broadcast_to(own, (*sizes, *own.shape[front:])).reshape(-1, *own.shape[front:])
    if split.is_site or not jnp.issubdtype(x.dtype, jnp.inexact):
        return own
    return (widened(own) * jnp.asarray(count, widened(own).dtype)).astype(x.dtype)


def _left(place: Place, moved: Sequence[Place]) -> Place:
    """A place in what is left of its dimension where other digits of it are at the front."""
    axis = place.axis
    for other in (p for p in moved if axis and p.axis and p.axis.dim == axis.dim):
        assert axis is not None
        assert other.axis is not None
        if other.axis.before < axis.before:
            axis = replace(axis, before=axis.before // other.length)
        else:
            axis = replace(axis, after=axis.after // other.length)
    return replace(place, axis=axis)


def _exposed(
    x: jax.Array, number: int, front: int, place: Place, spread: bool, known: Known
) -> jax.Array:
    if place.axis is None:
        at = _current(place, known)
        return x if at is None else _unless(x, _one_hot(x, number, place.size) == at)
    dim, axis = place.axis.dim + front, place.axis
    split = x.reshape(*x.shape[:dim], axis.before, place.length, axis.after, *x.shape[dim + 1 :])
    if spread:
        rows = jnp.arange(place.length, dtype=jnp.int32) + jnp.int32(place.first)
        rows = rows.reshape([place.length if d == dim + 1 else 1 for d in range(split.ndim)])
        kept = _unless(split, _one_hot(split, number, place.size) == rows)
        return kept.reshape(*kept.shape[:dim], *x.shape[dim:])
    moved = jnp.moveaxis(split, dim + 1, number)
    left = jnp.squeeze(moved, number + 1)
    left = left.reshape(*left.shape[:dim], -1, *left.shape[dim + 2 :])
    padding = [(0, 0)] * left.ndim
    padding[number] = (place.first, place.size - place.first - place.length)
    return jnp.pad(left, padding)


def _one_hot(x: jax.Array, number: int, size: int) -> jax.Array:
    return jnp.arange(size, dtype=jnp.int32).reshape(
        [size if d == number else 1 for d in range(x.ndim)]
    )


def _unless(x: jax.Array, kept: jax.Array) -> jax.Array:
    return jnp.where(kept, x, jnp.zeros_like(x))


def _current(place: Place, known: Known) -> jax.Array | int | None:
    """The place along a digit that the step at hand, or the program, takes; None where all do."""
    if place.step is None:
        return place.at
    number = known[place.step]
    steps = tuple(range(len(place.numbers)))
    step = number
    if place.numbers != steps:
        step = jnp.argmax(jnp.asarray(place.numbers, number.dtype) == number)
    return step if place.table == steps else jnp.asarray(place.table)[step]


def laid_along_split(weights: jax.Array, split: Split, known: Known, x: jax.Array) -> jax.Array:
    """Numbers of the examples, [B], along the dimensions of an operand that hold them."""
    by_digit = weights.reshape([place.size for place in split.places])
    return by_digit[tuple(_places_along(place, known, x) for place in split.places)]


def _places_along(place: Place, known: Known, x: jax.Array) -> jax.Array | int:
    """The place along a digit that each element of x is at, of size 1 along other dimensions."""
    if place.axis is None:
        at = _current(place, known)
        assert at is not None, "an operand of examples has all digits of the batch"
        return at
    dim, axis = place.axis.dim, place.axis
    own = jnp.arange(x.shape[dim], dtype=jnp.int32) // axis.after % place.length + place.first
    return jnp.expand_dims(own, [d for d in range(x.ndim) if d != dim])
