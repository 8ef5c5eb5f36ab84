"""Kronecker: the factors of gradients, from the operands of their sites, one contraction each.

    %g = dot_general %h[b, t, d], %l[b, t, f] over b, t
        =>  dot_general %h, %h over b, t  and  dot_general %l, %l over b, t

Of a scatter the rows are counted instead. Nothing as large as an example's gradient is made.

Project: of gradients that are sums of outer products, each factor is projected by itself.

    %g = dot_general %h[b, t, d], %l[b, t, f] over b, t
        =>  for each b: the sum over t of (P' %h[b, t]) (Q' %l[b, t])'

Nothing as large as an example's gradient is made; of a scatter the rows of P are gathered.
"""

import math
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import Arrays
from hlo_surgery.passes.ir.traits import precision
from hlo_surgery.passes.measures.kronecker import (
    KroneckerFactor,
    KroneckerFactors,
    rotated_square,
    stacked_axes,
)
from hlo_surgery.passes.measures.measures import Measure
from hlo_surgery.passes.measures.projections import Projected, sides
from hlo_surgery.passes.strategies.einsums.einsums import Einsum, Sides, common_sides, sides_of
from hlo_surgery.passes.strategies.einsums.factors import (
    Factors,
    distinct,
    factors_of,
    positions_of,
    predicted,
    scaled_by,
    sum_at,
)
from hlo_surgery.passes.strategies.gradient_costs import Predicted, Schedule
from hlo_surgery.passes.strategies.lift import LIFT, LOOP, sum_over_examples
from hlo_surgery.passes.strategies.strategy import (
    Asked,
    Chosen,
    Measures,
    Strategy,
    Task,
    each_measure,
)
from hlo_surgery.passes.terms.steps import Dims, Known


def _applies(task: Task, measure: Measure) -> bool:
    """Whether all einsums of a gradient have their factors over the same axes."""
    return isinstance(measure, KroneckerFactor) and common_sides(task.einsums) is not None


def _sides(task: Task) -> Sides:
    sides = common_sides(task.einsums)
    assert sides is not None
    return sides


def _predict(task: Task, measures: Measures, schedule: Schedule) -> Predicted:
    """Each factor contracted with itself, but for a diagonal one."""
    sides, device, positions = _sides(task), task.device, task.examples.size * positions_of(task)
    _, *lengths = sides.sizes(mlir.shape(task.sliced.value))
    dense = [n for k, n in enumerate(lengths) if k != sides.diagonal]
    squares = sum(n**2 for n in dense)
    rate = device.contraction_rate(device.depth, False)
    return predicted(task, 2 * positions * squares, rate, sum(dense) * positions + squares, 0)


def _emit(asked: Asked, known: Known, measure: Measure) -> Array:
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


def _joined(x: Arrays) -> Array:
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


def _counts(rows: Array, reduces: bool, elements: int, dtype: Any) -> Array:
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
    words="operands by themselves",
)


def rotated_squares(chosen: Chosen, known: Known, basis: KroneckerFactors) -> Array:
    """The mean of |P' g_b Q|**2 over the examples, P and Q of orthonormal columns, like the
    gradient, in at least float32.

    g_b = l_b r_b'     =>     (P' l_b)**2 (Q' r_b)**2', one contraction of squares
    g_b of several positions, or P and Q not over the axes of l and r: each example's own in turn
    """
    task, count = chosen.task, chosen.task.examples.count(known)
    if task.examples.size > 1 and common_sides(task.einsums) is not None:
        flat = [side.reshape(-1, *side.shape[stacked_axes(basis) :]) for side in basis]
        factors = _left_and_right(task, known)
        if _are_along(factors, flat):
            squares = map(_squares_along, factors, flat)
            total = jnp.einsum("bgti,bgtj->gij", *squares, precision="highest")
            return total.reshape(mlir.shape(task.sliced.value)) / count
    total = sum_over_examples([chosen], known, lambda own: rotated_square(own[0], basis))
    return total / count


def _are_along(factors: Factors, flat: Arrays) -> bool:
    """Whether examples have one position, and a basis, [stacked, D, D] or [stacked, D], parts the
    gradient's axes where its site does: elsewhere the two factors of an example's gradient are none
    of the rotated one.
    """
    if not all(x.ndim == 4 and x.shape[2] == 1 for x in factors):
        return False
    layers = max(x.shape[1] for x in factors)
    pairs = zip(factors, flat, strict=True)
    return all(side.shape[:2] == (layers, x.shape[3]) for x, side in pairs)


def _squares_along(x: Array, side: Array) -> Array:
    """Along the columns of a side; of a diagonal as it is."""
    turned = x if side.ndim == 2 else jnp.einsum("bgtd,gdi->bgti", x, side, precision="highest")
    return jnp.square(turned)


# What is predicted of a loop is no better than that: of kernels [256, 1024] on TPU v5e it takes
# three times as long as factors do, by the compiler's estimate, where both are said to be equal.
TOLD_APART = 1.25


def _projects(task: Task, measure: Measure) -> bool:
    """Whether the factors of all einsums go over the dimensions of the projection's two factors."""
    wide = {*_wide_sides(task)}
    alike = all(e.halves is not None and {*e.halves} == wide for e in task.einsums)
    return isinstance(measure, Projected) and bool(task.einsums) and alike


def _wide_sides(task: Task) -> tuple[Dims, Dims]:
    """Those dimensions, but for those of one element."""
    shape = mlir.shape(task.sliced.value)
    first, second = (tuple(d for d in dims if shape[d] > 1) for dims in sides(shape))
    return first, second


def _predict_projection(task: Task, measures: Measures, schedule: Schedule) -> Predicted:
    """Both factors of each position projected, and the outer products of what they are then."""
    k = max(measure.k for measure in measures if isinstance(measure, Projected))
    projected = task.examples.size * positions_of(task) * k
    flops = 2 * projected * (max(e.elements for e in task.einsums) + k)
    rate = task.device.contraction_rate(task.device.depth, True)
    return predicted(task, flops, rate, 4 * projected, 2 * projected)


def _pays(task: Task, measure: Measure, schedule: Schedule, otherwise: Predicted) -> bool:
    """Whether a loop over the examples is not told to be faster, and lifting takes more time or
    memory.
    """
    own, loop, lift = (
        predict(task, [measure], schedule)
        for predict in (_predict_projection, LOOP.predict, LIFT.predict)
    )
    is_lighter = own.temporaries < lift.temporaries
    is_faster = own.seconds <= TOLD_APART * loop.seconds
    return is_faster and (is_lighter or own.seconds < lift.seconds)


def _emit_projections(asked: Asked, known: Known, measure: Measure) -> Array:
    """[B, k, k]; [B, k] of a vector."""
    assert isinstance(measure, Projected)
    task, shape = asked.task, mlir.shape(asked.task.sliced.value)
    first, second = sides(shape)
    # A vector has no second half: what lies there are numbers.
    others = measure.signs(shape, second) if second else jnp.ones((1, 1), jnp.float32)
    signs, factor = (measure.signs(shape, first), others), task.examples.factor(known)
    uses = zip(task.einsums, factors_of(task, known), strict=True)
    each = [scaled_by(_share(task, e, pair, signs), e, known, factor) for e, pair in uses]
    found = jnp.sum(jnp.stack(each), 0)
    return found / measure.k if second else found[:, :, 0] / math.sqrt(measure.k)


def _share(task: Task, e: Einsum, factors: Factors, signs: Factors) -> Array:
    """[B, k, k], not scaled yet."""
    asked, swapped = _precision(e), e.halves != _wide_sides(task)
    pairs = zip(factors[::-1] if swapped else factors, signs, strict=True)
    left, right = (_signed(*pair, asked, task.device.copies_merged) for pair in pairs)
    return jnp.einsum("bgti,bgtj->bij", left, right, precision=asked)


def _precision(e: Einsum) -> lax.Precision:
    """That of the site, so that an accelerator rounds factors as for the gradient, and signs, which
    are exact, cost it one pass of its matrix units and not six.
    """
    op = e.site.op
    if e.kind != "dot_general" or "algorithm" in op.attributes:
        return lax.Precision.HIGHEST
    return max(precision(op) or [lax.Precision.DEFAULT], key=lambda each: each.value)


def _signed(x: Array, signs: Array, asked: lax.Precision, alone: bool) -> Array:
    """[B, g, positions, k] of a factor; of row numbers the signs of their rows. `alone`: other
    factors' contractions with the same signs are not to be merged with this one.
    """
    if x.ndim == 2:
        found = signs.at[x].get(mode="clip")
        return jnp.where(x[..., None] < 0, jnp.zeros_like(found), found)[:, None]
    own = signs.astype(x.dtype)
    # Behind one barrier both are this factor's: signs that another has too are other operands.
    x, own = lax.optimization_barrier((x, own)) if alone else (x, own)
    return jnp.einsum("bgte,ei->bgti", x, own, precision=asked)


PROJECT = Strategy(
    "project",
    _projects,
    _predict_projection,
    each_measure(_emit_projections),
    _pays,
    words="operands by random signs",
)
