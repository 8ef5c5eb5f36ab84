"""Kronecker: the factors of gradients, from the operands of their sites, one contraction each.

    %g = dot_general %h[b, t, d], %l[b, t, f] over b, t
        =>  dot_general %h, %h over b, t  and  dot_general %l, %l over b, t

Of a scatter the rows are counted instead. Nothing as large as an example's gradient is made.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.passes.costs.gradient_costs import Predicted
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.measures.kronecker import (
    KroneckerFactor,
    KroneckerFactors,
    rotated_square,
    stacked_axes,
)
from hlo_surgery.passes.measures.measure import Measure
from hlo_surgery.passes.strategies.by_gradient.by_example import sum_over_examples
from hlo_surgery.passes.strategies.einsums.einsums import Einsum
from hlo_surgery.passes.strategies.einsums.factors import (
    Factors,
    distinct,
    factors_of,
    positions_of,
    predicted,
    scaled_by,
    sum_at,
)
from hlo_surgery.passes.strategies.einsums.sides import Sides, common_sides, sides_of
from hlo_surgery.passes.strategies.strategy import Asked, Chosen, Strategy, each_measure
from hlo_surgery.passes.strategies.task import Known, Schedule, Task


def _applies(task: Task, measure: Measure) -> bool:
    """Whether all einsums of a gradient have their factors over the same axes."""
    return isinstance(measure, KroneckerFactor) and common_sides(task.einsums) is not None


def _sides(task: Task) -> Sides:
    sides = common_sides(task.einsums)
    assert sides is not None
    return sides


def _predict(task: Task, measures: Sequence[Measure], schedule: Schedule) -> Predicted:
    """Each factor contracted with itself, but for a diagonal one."""
    sides, device, positions = _sides(task), task.device, task.examples.size * positions_of(task)
    _, *lengths = sides.sizes(mlir.shape(task.sliced.value))
    dense = [n for k, n in enumerate(lengths) if k != sides.diagonal]
    squares = sum(n**2 for n in dense)
    rate = device.contraction_rate(device.depth, False)
    return predicted(task, 2 * positions * squares, rate, sum(dense) * positions + squares, 0)


def _emit(asked: Asked, known: Known, measure: Measure) -> jax.Array:
    """One of the factors."""
    assert isinstance(measure, KroneckerFactor)
    task, number = asked.task, ("left", "right").index(measure.side)
    x = _left_and_right(task, known)[number]
    stacked, *elements = _sides(task).sizes(mlir.shape(task.sliced.value))
    is_rows, reduces = x.ndim == 2, measure.form == "reduce"
    positions = x.shape[1 if is_rows else 2]
    if is_rows:
        # Counts are as wide as the other side.
        found = _counts(x, reduces, elements[number], task.dtype)[None]
    else:
        own = jnp.sum(x, 2, keepdims=True) if reduces else x
        found = jnp.einsum("bgti,bgtj->gij", own, own, precision="highest")
    divisor = (positions**2, 1) if reduces else (1, positions)
    mean = found / (task.examples.count(known) * divisor[number])
    # All that are stacked may share one.
    every = jnp.broadcast_to(mean, (math.prod(stacked), *mean.shape[1:]))
    return every.reshape(*stacked, *mean.shape[1:])


def _left_and_right(task: Task, known: Known) -> Factors:
    """[B, stacked, positions, elements] of the positions of all uses; 1 for stacked where all of
    these share it. Of rows [B, positions], -1 for none.
    """
    factor = task.examples.factor(known)
    uses = zip(task.einsums, factors_of(task, known), strict=True)
    left, right = zip(*(_of_einsum(e, pair, known, factor) for e, pair in uses), strict=True)
    return _joined(left), _joined(right)


def _joined(x: Sequence[jax.Array]) -> jax.Array:
    """Positions behind one another."""
    return x[0] if len(x) == 1 else jnp.concatenate(x, 1 if x[0].ndim == 2 else 2)


def _of_einsum(e: Einsum, factors: Factors, known: Known, factor: Any) -> Factors:
    """The scale lies in right, or in left where right is rows."""
    sides = sides_of(e)
    assert sides is not None
    first, second = _every_row(factors, e, sides) if sides.each_row else factors
    left, right = (second, first) if sides.swapped else (first, second)
    if sides.diagonal == 1:
        return scaled_by(left, e, known, factor), right
    if sides.apart:
        # [B, stacked, positions, elements] from [B, 1, positions, stacked and elements].
        count = math.prod(e.sizes[axis] for axis in sides.stacked)
        right = jnp.moveaxis(right[:, 0].reshape(*right.shape[::2], count, -1), 2, 1)
    return left, scaled_by(right, e, known, factor)


def _every_row(factors: Factors, e: Einsum, sides: Sides) -> Factors:
    """Of ones, which are zeros for padding: every row's number, at each position, and its
    elements.
    """
    ones, x = factors
    rows = sides.unused + jnp.arange(math.prod(e.sizes[axis] for axis in sides.left))
    numbers = jnp.where(ones[:, 0] > 0, rows.astype(jnp.int32), -1).reshape(len(x), -1)
    return numbers, x.reshape(len(x), 1, numbers.shape[1], -1)


def _counts(rows: jax.Array, reduces: bool, elements: int, dtype: Any) -> jax.Array:
    """How often each row occurs, of rows [B, positions]; or the sum over the examples of the
    squares of how often.
    """
    times = jnp.ones((*rows.shape, 1), dtype)
    if reduces:
        rows, often = distinct(rows, times)
        times = jnp.square(often)
    return sum_at(rows, times, elements)[:, 0]


KRONECKER = Strategy(
    "kronecker",
    _applies,
    _predict,
    each_measure(_emit),
    words="each operand of the contraction with itself, no gradient being made",
)


def rotated_squares(chosen: Chosen, known: Known, basis: KroneckerFactors) -> jax.Array:
    """The mean of |P' g_b Q|**2 over the examples, P and Q of orthonormal columns, like the
    gradient, in at least float32.

    g_b = l_b r_b'     =>     (P' l_b)**2 (Q' r_b)**2', one contraction of squares
    g_b of several positions, or P and Q not over the axes of l and r: each example's own in turn
    """
    task, count = chosen.task, chosen.task.examples.count(known)
    flat = [side.reshape(-1, *side.shape[stacked_axes(basis) :]) for side in basis]
    if task.examples.size > 1 and common_sides(task.einsums) is not None:
        factors = _left_and_right(task, known)
        if _are_along(factors, flat):
            squares = map(_squares_along, factors, flat)
            total = jnp.einsum("bgti,bgtj->gij", *squares, precision="highest")
            return total.reshape(mlir.shape(task.sliced.value)) / count
    total = sum_over_examples([chosen], known, lambda own: rotated_square(own[0], basis))
    return total / count


def _are_along(factors: Factors, flat: Sequence[jax.Array]) -> bool:
    """Whether examples have one position, and a basis, [stacked, D, D] or [stacked, D], parts the
    gradient's axes where its site does: elsewhere the two factors of an example's gradient are none
    of the rotated one.
    """
    if not all(x.ndim == 4 and x.shape[2] == 1 for x in factors):
        return False
    layers = max(x.shape[1] for x in factors)
    pairs = zip(factors, flat, strict=True)
    return all(side.shape[:2] == (layers, x.shape[3]) for x, side in pairs)


def _squares_along(x: jax.Array, side: jax.Array) -> jax.Array:
    """Along the columns of a side; of a diagonal as it is."""
    turned = x if side.ndim == 2 else jnp.einsum("bgtd,gdi->bgti", x, side, precision="highest")
    return jnp.square(turned)
