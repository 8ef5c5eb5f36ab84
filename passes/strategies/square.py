"""Square: phi of the operands in place of the operands, where phi(ab) = phi(a) phi(b).

Lost shares: what examples add to a mean may be lost beside a factor that makes it count.

A mean over B examples multiplies cotangents by 1 / B, and XLA flushes to zero what is no normal
number then: 1e-37 / 16. Beside an operand of 1e38 that is an example's gradient, or a part of it,
which a batch of one would have had. No zero says where it comes from, so that such statistics are
NaN.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.ir.constants import widened
from hlo_surgery.passes.measures.measures import (
    Defined,
    Gram,
    MeanOf,
    Measure,
    TokenMeanOf,
    TokenNorms,
    Variance,
    precise_phi,
)
from hlo_surgery.passes.strategies.gradient_costs import Predicted, site_seconds
from hlo_surgery.passes.strategies.square_operands import (
    CENTRED,
    centred_variance,
    is_squarable,
    squared_mean,
)
from hlo_surgery.passes.strategies.strategy import (
    Asked,
    Computed,
    Examples,
    Known,
    Measured,
    Schedule,
    Strategy,
    Task,
    one_by_one,
)
from hlo_surgery.passes.terms.monomials import lost_beside, magnitudes, paired_dims
from hlo_surgery.passes.terms.steps import Step


def _applies(task: Task, measure: Measure) -> bool:
    """Whether each element of an example's gradient is one product, and the measure takes that."""
    sliced = task.sliced
    match measure:
        case TokenMeanOf():
            return is_squarable(sliced, per_token=True)
        case MeanOf():
            return is_squarable(sliced) and _factors(task, measure)
        case Variance():
            return is_squarable(sliced) and all(site.op.name in CENTRED for site in sliced.sites)
        case _:
            return False


def _factors(task: Task, measure: MeanOf) -> bool:
    """Whether phi(ab) = phi(a) phi(b) for the gradient's kind of numbers."""
    # The rows of a table that an example does not look up are zero without a product.
    looked_up = any(site.op.name == "stablehlo.scatter" for site in task.sliced.sites)
    if looked_up and measure.factorable and not measure.vanishes_at_zero:
        return False
    return measure.factors(task.sliced.value)


def _predict(task: Task, measures: Sequence[Measure], schedule: Schedule) -> Predicted:
    """The contractions of all these measures, one after the other, of operands written before."""
    ops = [site.op.name for site in task.sliced.sites]
    seconds, held = 0.0, 0
    for measure in measures:
        times = [CENTRED[op] if isinstance(measure, Variance) else 1 for op in ops]
        each = list(zip(times, task.counts.sites, strict=True))
        seconds += sum(n * site_seconds(site, task.device, copies=3) for n, site in each)
        held = max(held, sum(n * site.read for n, site in each))
    return Predicted(seconds, held)


def _emit(asked: Asked, known: Known) -> Computed:
    task, examples = asked.task, asked.task.examples
    given = {key: known[key[0]] for key in task.function.inputs}
    over = (task.dtype, examples.count(known), examples.is_mean, examples.flags(known))
    measured: Measured = {}
    for measure in asked.measures:
        if isinstance(measure, MeanOf | TokenMeanOf):
            phi = precise_phi(measure.phi, task.dtype)
            measured[measure] = squared_mean(task.sliced, given, phi, *over)
        else:
            measured[measure] = centred_variance(task.sliced, given, *over)
    return Computed(measured)


SQUARE = Strategy(
    "square",
    _applies,
    _predict,
    one_by_one(_emit),
    words="the contraction once more, of its operands each with the function applied",
)


def nan_where_lost(
    task: Task, measured: Mapping[Measure, jax.Array], known: Known
) -> dict[Measure, jax.Array]:
    """The measures, NaN where they rest on an example that may have lost a share."""
    lost = _lost(task, known)
    if lost is None:
        return dict(measured)
    return {m: _marked(m, found, lost) for m, found in measured.items()}


def _marked(measure: Measure, found: jax.Array, lost: jax.Array) -> jax.Array:
    """Its rows, if it has one for each example, or all of it."""
    if not jnp.issubdtype(found.dtype, jnp.inexact):
        return found
    by_example = isinstance(measure, TokenNorms) or (
        isinstance(measure, Defined) and not measure.is_sum
    )
    nan = jnp.asarray(jnp.nan, found.dtype)
    if isinstance(measure, Gram):
        return jnp.where(lost[:, None] | lost, nan, found)
    if by_example:
        spread = lost.reshape(lost.shape + (1,) * (found.ndim - lost.ndim))
        return jnp.where(spread, nan, found)
    # A sum, as the measure is, so that devices send both together.
    return found + jnp.sum(jnp.where(lost, nan, jnp.zeros_like(nan)))


def _lost(task: Task, known: Known) -> jax.Array | None:
    """Which examples, [B]; None where none can be."""
    examples = task.examples
    if not examples.is_mean or examples.size == 1:
        return None
    each = [_lost_at(site, examples, known) for site in task.sliced.sites]
    found = [one for one in each if one is not None]
    if not found:
        return None
    lost, real = jnp.any(jnp.stack(found), 0), examples.flags(known)
    return lost if real is None else lost & real


def _lost_at(site: Step, examples: Examples, known: Known) -> jax.Array | None:
    """Those of one contraction; all or none, where they lie along several dimensions."""
    axes = [axis for _, axis in site.inputs]
    dims = paired_dims(site.op, axes)
    if dims is None:
        return None
    pairs = zip(site.inputs, dims, strict=True)
    one, other = (magnitudes(widened(known[value]), own) for (value, _), own in pairs)
    if one.dtype != other.dtype:
        return None
    lost = lost_beside(one, other) | lost_beside(other, one)
    axis = axes[0]
    if not isinstance(axis, PerExample) or lost.shape[dims[0].index(axis.dim)] != examples.size:
        return jnp.broadcast_to(jnp.any(lost), (examples.size,))
    at = dims[0].index(axis.dim)
    return jnp.any(lost, [d for d in range(lost.ndim) if d != at])
