"""Project: of gradients that are sums of outer products, each factor is projected by itself.

    %g = dot_general %h[b, t, d], %l[b, t, f] over b, t
        =>  for each b: the sum over t of (P' %h[b, t]) (Q' %l[b, t])'

Nothing as large as an example's gradient is made; of a scatter the rows of P are gathered.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from hlo_surgery.passes.costs.gradient_costs import Predicted
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import precision
from hlo_surgery.passes.measures.measure import Measure
from hlo_surgery.passes.measures.projections import Dims, Projected, sides
from hlo_surgery.passes.strategies.by_gradient.lift import LIFT
from hlo_surgery.passes.strategies.by_gradient.loop import LOOP
from hlo_surgery.passes.strategies.einsums.einsums import Einsum
from hlo_surgery.passes.strategies.einsums.factors import (
    Factors,
    factors_of,
    positions_of,
    predicted,
    scaled_by,
)
from hlo_surgery.passes.strategies.strategy import Asked, Strategy, each_measure
from hlo_surgery.passes.strategies.task import Known, Schedule, Task

# What is predicted of a loop is no better than that: of kernels [256, 1024] on TPU v5e it takes
# three times as long as factors do, by the compiler's estimate, where both are said to be equal.
TOLD_APART = 1.25


def _applies(task: Task, measure: Measure) -> bool:
    """Whether the factors of all einsums go over the dimensions of the projection's two factors."""
    wide = {*_wide_sides(task)}
    alike = all(e.halves is not None and {*e.halves} == wide for e in task.einsums)
    return isinstance(measure, Projected) and bool(task.einsums) and alike


def _wide_sides(task: Task) -> tuple[Dims, Dims]:
    """Those dimensions, but for those of one element."""
    shape = mlir.shape(task.sliced.value)
    first, second = (tuple(d for d in dims if shape[d] > 1) for dims in sides(shape))
    return first, second


def _predict(task: Task, measures: Sequence[Measure], schedule: Schedule) -> Predicted:
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
        predict(task, [measure], schedule) for predict in (_predict, LOOP.predict, LIFT.predict)
    )
    is_lighter = own.temporaries < lift.temporaries
    is_faster = own.seconds <= TOLD_APART * loop.seconds
    return is_faster and (is_lighter or own.seconds < lift.seconds)


def _emit(asked: Asked, known: Known, measure: Measure) -> jax.Array:
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


def _share(task: Task, e: Einsum, factors: Factors, signs: Factors) -> jax.Array:
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


def _signed(x: jax.Array, signs: jax.Array, asked: lax.Precision, alone: bool) -> jax.Array:
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
    _applies,
    _predict,
    each_measure(_emit),
    _pays,
    words="projections of what the contraction sums, no gradient being made",
)
