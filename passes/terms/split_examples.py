"""Split examples: the rows of a `Split` operand as [B, ...], and weights laid along them.

a digit to the front:         [.., before * n * after, ..]  ->  [n, .., before * after, ..]
a loop's step, or one place:  [..]                          ->  [n, ..], zero but for one
spread:                       [.., n, ..]                   ->  [n, .., n, ..], zero but for one
"""

from collections.abc import Mapping
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
        own = _exposed(own, number, front, place, number in split.spread, known)
    sizes = tuple(place.size for place in split.places)
    own = jnp.broadcast_to(own, (*sizes, *own.shape[front:])).reshape(-1, *own.shape[front:])
    if split.is_site or not jnp.issubdtype(x.dtype, jnp.inexact):
        return own
    return (widened(own) * jnp.asarray(count, widened(own).dtype)).astype(x.dtype)


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
    found = weights.reshape([place.size for place in split.places])
    dims: list[int] = []
    for number in reversed(range(len(split.places))):
        place = split.places[number]
        at = _current(place, known)
        if place.axis is not None:
            found = jax.lax.slice_in_dim(
                found, place.first, place.first + place.length, axis=number
            )
            dims.insert(0, number)
        else:
            assert at is not None, "an operand of examples has all digits of the batch"
            found = jax.lax.dynamic_index_in_dim(found, at, number, keepdims=False)
    return _over_dims(found, [split.places[number] for number in dims], x)


def _over_dims(weights: jax.Array, places: list[Place], x: jax.Array) -> jax.Array:
    """Weights with an axis for each place, over the dimensions of x, repeated along what else these
    hold.
    """
    shape: list[int] = []
    where: list[int] = [0] * len(places)
    for dim, size in enumerate(x.shape):
        own = [(p.axis.before, k) for k, p in enumerate(places) if p.axis and p.axis.dim == dim]
        left = size
        for before, k in sorted(own):
            done = size // left
            shape += [before // done, places[k].length]
            where[k] = len(shape) - 1
            left = size // (before * places[k].length)
        shape.append(left)
    laid = [1] * len(shape)
    for k, axis in enumerate(where):
        laid[axis] = places[k].length
    order = sorted(range(len(places)), key=lambda k: where[k])
    spread = jnp.transpose(weights, order).reshape(laid)
    return jnp.broadcast_to(spread, shape).reshape(x.shape)
