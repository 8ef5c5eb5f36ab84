"""Project: of gradients that are sums of outer products, each factor is projected by itself.

    %g = dot_general %h[b, t, d], %l[b, t, f] over b, t
        =>  for each b: the sum over t of (P' %h[b, t]) (Q' %l[b, t])'

Nothing as large as an example's gradient is made; of a scatter the rows of P are gathered.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hlo_surgery.passes.costs.gradient_costs import Predicted
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import precision
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.measures.measure import Measure
from hlo_surgery.passes.measures.projections import Dims, Projected, sides
from hlo_surgery.passes.measures.real_examples import without_padding
from hlo_surgery.passes.strategies.by_gradient.lift import LIFT
from hlo_surgery.passes.strategies.by_gradient.loop import LOOP
from hlo_surgery.passes.strategies.ghost.ghost_factors import Factor, Given, factors_of, scaled_by
from hlo_surgery.passes.strategies.ghost.ghost_paths import Path, factor_dims, path_counts
from hlo_surgery.passes.strategies.strategy import Asked, Computed, Measured, Strategy, one_by_one
from hlo_surgery.passes.strategies.task import Known, Schedule, Task
from hlo_surgery.passes.terms.slice_functions import over_examples

# Projections are float32, or wider where gradients are.
WORD = 4
# What is predicted of a loop is no better than that: of kernels [256, 1024] on TPU v5e it takes
# three times as long as factors do, by the compiler's estimate, where both are said to be equal.
TOLD_APART = 1.25


def _applies(task: Task, measure: Measure) -> bool:
    """Whether the factors of all paths go over the dimensions of the projection's two factors."""
    shape = mlir.shape(task.sliced.value)
    return (
        isinstance(measure, Projected)
        and bool(task.paths)
        and all(_factored_alike(path, shape) for path in task.paths)
    )


def _factored_alike(path: Path, shape: Sequence[int]) -> bool:
    found = factor_dims(path)
    return found is not None and {_wide(shape, dims) for dims in found} == {
        _wide(shape, dims) for dims in sides(shape)
    }


def _wide(shape: Sequence[int], dims: Dims | frozenset[int]) -> frozenset[int]:
    """Those of the dimensions that have more than one element."""
    return frozenset(d for d in dims if shape[d] > 1)


def _predict(task: Task, measures: Sequence[Measure], schedule: Schedule) -> Predicted:
    """Both factors of each position projected, and the outer products of what they are then."""
    counts, device = task.counts, task.device
    k = max(measure.k for measure in measures if isinstance(measure, Projected))
    each = [path_counts(path, counts.size) for path in task.paths]
    positions = counts.size * sum(count for count, _ in each)
    elements = max(elements for _, elements in each)
    flops = 2 * positions * k * (elements + k)
    moved = counts.read + 4 * positions * k * WORD
    rate = device.contraction_rate(device.depth, True)
    return Predicted(max(flops / rate, moved / device.bandwidth), 2 * positions * k * WORD)


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


def _emit(asked: Asked, known: Known) -> Computed:
    padding = asked.task.examples.padding(known)
    measured: Measured = {}
    for measure in asked.measures:
        assert isinstance(measure, Projected)
        measured[measure] = without_padding(_projected(asked.task, measure, known), padding)
    return Computed(measured)


def _projected(task: Task, measure: Projected, known: Mapping[Value, jax.Array]) -> jax.Array:
    """[B, k, k]; [B, k] of a vector."""
    factor = task.examples.factor(known)

    def of_one(*operands: jax.Array) -> jax.Array:
        given = dict(zip(task.function.inputs, operands, strict=True))
        shares = [_share(task, path, measure, given, factor) for path in task.paths]
        return jnp.sum(jnp.stack(shares), 0)

    return over_examples(task.function, known, task.examples.size, of_one)


def _share(task: Task, path: Path, measure: Projected, given: Given, factor: Any) -> jax.Array:
    """One path of one example."""
    shape, dims = mlir.shape(task.sliced.value), factor_dims(path)
    assert dims is not None
    first, second = sides(shape)
    # A vector has no second half: what lies there are numbers.
    halves = [
        measure.signs(shape, first),
        measure.signs(shape, second) if second else jnp.ones((1, 1), jnp.float32),
    ]
    swapped = _wide(shape, dims[0]) != _wide(shape, first)
    one, other = factors_of(path, given)
    asked, alone = _precision(path), task.device.copies_merged
    signs = halves[::-1] if swapped else halves
    left, right = (
        _signed(*each, asked, alone) for each in zip((one, Factor(other)), signs, strict=True)
    )
    pairs = "gtj,gti->ij" if swapped else "gti,gtj->ij"
    found = jnp.einsum(pairs, left, right, precision=asked)
    scaled = scaled_by(found, path, given, factor)
    return scaled / measure.k if second else scaled[:, 0] / math.sqrt(measure.k)


def _precision(path: Path) -> lax.Precision:
    """That of the site, so that an accelerator rounds factors as for the gradient, and signs, which
    are exact, cost it one pass of its matrix units and not six.
    """
    op = path.site.op
    if op.name != "stablehlo.dot_general" or "algorithm" in op.attributes:
        return lax.Precision.HIGHEST
    return max(precision(op) or [lax.Precision.DEFAULT], key=lambda each: each.value)


def _signed(factor: Factor, signs: jax.Array, asked: lax.Precision, alone: bool) -> jax.Array:
    """[batch, positions, k] of a factor; of row numbers the signs of their rows. `alone`: other
    factors' contractions with the same signs are not to be merged with this one.
    """
    if factor.rows is None:
        x, own = factor.x, signs.astype(factor.x.dtype)
        # Behind one barrier both are this factor's: signs that another has too are other operands.
        x, own = lax.optimization_barrier((x, own)) if alone else (x, own)
        return jnp.einsum("gte,ei->gti", x, own, precision=asked)
    rows = signs.at[factor.x].get(mode="clip")
    return jnp.where(factor.x[..., None] < 0, jnp.zeros_like(rows), rows)


PROJECT = Strategy(
    "project",
    _applies,
    _predict,
    one_by_one(_emit),
    _pays,
    words="projections of what the contraction sums, no gradient being made",
)
