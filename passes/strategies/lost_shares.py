"""Lost shares: what examples add to a mean may be lost beside a factor that makes it count.

A mean over B examples multiplies cotangents by 1 / B, and XLA flushes to zero what is no normal
number then: 1e-37 / 16. Beside an operand of 1e38 that is an example's gradient, or a part of it,
which a batch of one would have had. No zero says where it comes from, so that all statistics which
rest on such an example are NaN. Examples are asked of once for all gradients: a few ops each.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import jax
import jax.numpy as jnp

from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.ir.constants import dtype_of, wide_dtype, widened
from hlo_surgery.passes.measures.measures import Defined, Gram, Measure, TokenNorms
from hlo_surgery.passes.strategies.strategy import Examples, Known, Task
from hlo_surgery.passes.terms.monomials import Dims, lost_beside, magnitudes, paired_dims
from hlo_surgery.passes.terms.steps import Step

# The largest magnitudes of both factors of a site, [B or 1, positions].
Pair = tuple[jax.Array, jax.Array]


def may_lose(task: Task) -> bool:
    """Whether examples may lose shares of a gradient: those of a mean, at sites of two factors."""
    is_mean = task.examples.is_mean and task.examples.size > 1
    return is_mean and any(_meeting(site) for site in task.sliced.sites)


def lost_examples(tasks: Sequence[Task], known: Known) -> jax.Array:
    """Which examples may have lost a share of any of these gradients, [B]."""
    examples = tasks[0].examples
    sites = dict.fromkeys(site for task in tasks for site in task.sliced.sites if _meeting(site))
    found = _lost_at([_pair(site, examples, known) for site in sites], examples.size)
    lost, real = jnp.any(jnp.stack(list(found)), 0), examples.flags(known)
    return lost if real is None else lost & real


def _meeting(site: Step) -> tuple[Dims, Dims] | None:
    """The dimensions in which two factors of one type meet place by place."""
    dims = paired_dims(site.op, [axis for _, axis in site.inputs])
    types = {wide_dtype(dtype_of(value)) for value, _ in site.inputs}
    return dims if len(types) == 1 else None


def _lost_at(pairs: Iterable[Pair], size: int) -> Iterable[jax.Array]:
    """Those of all sites of one element type, which are compared at once."""
    of_type = sorted(pairs, key=lambda pair: str(pair[0].dtype))
    for _, alike in groupby(of_type, key=lambda pair: pair[0].dtype):
        sides = zip(*alike, strict=True)
        one, other = (jnp.concatenate([_rows(x, size) for x in side], 1) for side in sides)
        yield jnp.any(lost_beside(one, other), 1)


def _rows(x: jax.Array, size: int) -> jax.Array:
    return jnp.broadcast_to(x, (size, x.shape[1]))


def _pair(site: Step, examples: Examples, known: Known) -> Pair:
    dims = _meeting(site)
    assert dims is not None
    pairs = zip(site.inputs, dims, strict=True)
    one, other = (magnitudes(widened(known[value]), own) for (value, _), own in pairs)
    at = _examples_along(site, dims[0], one, examples.size)
    return _by_example(one, at), _by_example(other, at)


def _examples_along(site: Step, dims: Dims, x: jax.Array, size: int) -> int | None:
    """The one dimension of magnitudes along which the examples lie; None where they have several,
    and a share that is lost is anybody's.
    """
    axis = site.inputs[0][1]
    if not isinstance(axis, PerExample) or x.shape[dims.index(axis.dim)] != size:
        return None
    return dims.index(axis.dim)


def _by_example(x: jax.Array, at: int | None) -> jax.Array:
    return x.reshape(1, -1) if at is None else jnp.moveaxis(x, at, 0).reshape(x.shape[at], -1)


def nan_where_lost(
    measured: Mapping[Measure, jax.Array], lost: jax.Array
) -> dict[Measure, jax.Array]:
    """The measures of a gradient, NaN where they rest on such an example."""
    # A sum, as most measures are, so that devices send both together.
    nan = jnp.sum(jnp.where(lost, jnp.float32(jnp.nan), jnp.float32(0)))
    return {m: _marked(m, found, lost, nan) for m, found in measured.items()}


def _marked(measure: Measure, found: jax.Array, lost: jax.Array, nan: jax.Array) -> jax.Array:
    """Its rows, if it has one for each example, or all of it."""
    if not jnp.issubdtype(found.dtype, jnp.inexact):
        return found
    if isinstance(measure, Gram):
        return jnp.where(lost[:, None] | lost, jnp.nan, found)
    by_example = isinstance(measure, Defined) and not measure.is_sum
    if by_example or isinstance(measure, TokenNorms):
        spread = lost.reshape(lost.shape + (1,) * (found.ndim - lost.ndim))
        return jnp.where(spread, jnp.nan, found)
    return found + nan.astype(found.dtype)
