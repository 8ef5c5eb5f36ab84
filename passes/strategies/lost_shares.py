"""Lost shares: what examples add to a mean may be lost beside a factor that makes it count.

A mean over B examples multiplies cotangents by 1 / B, and XLA flushes to zero what is no normal
number then: 1e-37 / 16. Beside an operand of 1e38 that is an example's gradient, or a part of it,
which a batch of one would have had. No zero says where it comes from, so that such statistics are
NaN. Each gradient is asked for itself: what waited for all of them would be held for so long.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.ir.constants import widened
from hlo_surgery.passes.measures.measures import Defined, Gram, Measure, TokenNorms
from hlo_surgery.passes.strategies.strategy import Examples, Known, Task
from hlo_surgery.passes.terms.monomials import lost_beside, magnitudes, paired_dims
from hlo_surgery.passes.terms.steps import Step


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
    nan = jnp.asarray(jnp.nan, found.dtype)
    if isinstance(measure, Gram):
        return jnp.where(lost[:, None] | lost, nan, found)
    by_example = isinstance(measure, Defined) and not measure.is_sum
    if by_example or isinstance(measure, TokenNorms):
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
    lost, real = found[0], examples.flags(known)
    for more in found[1:]:
        lost = lost | more
    return lost if real is None else lost & real


def _lost_at(site: Step, examples: Examples, known: Known) -> jax.Array | None:
    """Those of one contraction; all or none, where they lie along several dimensions."""
    axis = site.inputs[0][1]
    dims = paired_dims(site.op, [axis for _, axis in site.inputs])
    if dims is None:
        return None
    pairs = zip(site.inputs, dims, strict=True)
    one, other = (magnitudes(widened(known[value]), own) for (value, _), own in pairs)
    if one.dtype != other.dtype:
        return None
    lost = lost_beside(one, other)
    if not isinstance(axis, PerExample) or lost.shape[dims[0].index(axis.dim)] != examples.size:
        return jnp.broadcast_to(jnp.any(lost), (examples.size,))
    at = dims[0].index(axis.dim)
    return jnp.any(lost, [d for d in range(lost.ndim) if d != at])
