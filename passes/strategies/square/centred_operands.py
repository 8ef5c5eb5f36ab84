"""Centred operands: given a contraction of the examples alone, gradients' variance without g**2.

    g_b - a0 d0  =  a_b (d_b - d0) + (a_b - a0) d0        a0, d0: the means over the examples

whose mean square is three contractions of thin factors. The mean of g_b**2 less the squared mean
loses whatever is below a rounding of g_b**2; this loses only what is below one of the two terms
where they cancel.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hlo_surgery.passes.ir.attributes import precision
from hlo_surgery.passes.measures.moments import central_moment, squared_magnitude
from hlo_surgery.passes.strategies.square.square_operands import (
    of_real_examples,
    raised,
)
from hlo_surgery.passes.terms.contracted_dims import contracted
from hlo_surgery.passes.terms.monomials.balanced_factors import balanced
from hlo_surgery.passes.terms.monomials.paired_dims import Dims
from hlo_surgery.passes.terms.steps import Axis, GradientSlice, Input, Step
from hlo_surgery.passes.terms.tail_statistics import tail_powers, variance_behind

# Where the mean square is so many variances, centred factors take over. Elsewhere they need not be
# the better: factors that are large for different examples have small products with large
# deviations.
CANCELLED = 64
# By the ops that it is taken at, how many times the op's own work: the mean of what is off, the
# mean square, and the three terms of the centred one; of a plain sum the mean, what is off from it,
# and its square.
CENTRED = {"stablehlo.dot_general": 5, "stablehlo.reduce": 3}


def centred_variance(
    sliced: GradientSlice,
    given: Mapping[Input, jax.Array],
    dtype: jnp.dtype,
    size: Any,
    mean_loss: bool,
    real: jax.Array | None = None,
) -> jax.Array:
    """The mean of |g_b - mean|**2 over `size` examples, in `dtype`; where not all are `real`."""
    factor = jnp.asarray(size if mean_loss else 1, jnp.finfo(dtype).dtype)
    powers = tail_powers(sliced, given)
    power = sum(powers.values())
    sites = {
        s.op.results[0]: _at_site(s, given, dtype, size, factor, real, power) for s in sliced.sites
    }
    return variance_behind(sliced, sites, given, dtype, powers)


def _at_site(
    site: Step,
    given: Mapping[Input, jax.Array],
    dtype: jnp.dtype,
    size: Any,
    factor: jax.Array,
    real: jax.Array | None,
    power: jax.Array | float,
) -> jax.Array:
    """The variance of what each example adds to a site, `factor` times, and times 2**power."""
    own = [given[key].astype(dtype) for key in site.inputs]
    centred = partial(_centred, size=size, real=real)
    if site.op.name == "stablehlo.reduce":
        dims = contracted(site.op)[0].summed
        _, _, off = centred(raised(own[0], power) * factor, dims, site.inputs[0][1])
        return central_moment(
            jnp.sum(squared_magnitude(off), dims) / size, jnp.sum(off, dims) / size
        )
    left, right = contracted(site.op).values()
    batching, summed = (left.batch, right.batch), (left.summed, right.summed)
    # One exponent for all examples, whose means would be others with one for each.
    lhs, rhs = balanced(own[0], own[1], batching, squared_magnitude, power)
    contract = partial(_contracted, batching=batching, summed=summed, precision=precision(site.op))
    factors = zip((lhs * factor, rhs), summed, site.inputs, strict=True)
    first, second = (centred(x, dims, axis) for x, dims, (_, axis) in factors)
    return _of_product(first, second, contract, size)


def _of_product(
    first: tuple[jax.Array, ...],
    second: tuple[jax.Array, ...],
    contract: Callable[..., jax.Array],
    size: Any,
) -> jax.Array:
    """The variance of a product of centred factors; where it is no small part of the mean square,
    less |mean|**2.
    """
    off = contract([first[2]], [second[2]]) / size
    square = (
        jnp.real(contract([squared_magnitude(first[0])], [squared_magnitude(second[0])])) / size
    )
    plain = central_moment(square, contract([first[1]], [second[1]]) + off)
    return jnp.where(
        plain * CANCELLED >= square,
        plain,
        central_moment(_squares(first, second, contract) / size, off),
    )


def _centred(
    x: jax.Array, dims: Dims, axis: Axis, size: Any, real: jax.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """An operand without padding, its mean over the examples, and how far off each is from that."""
    kept = of_real_examples(x, axis, real)
    mean = jnp.sum(kept, dims, keepdims=True) / size
    return kept, mean, of_real_examples(kept - mean, axis, real)


def _squares(
    first: tuple[jax.Array, ...], second: tuple[jax.Array, ...], contract: Callable[..., jax.Array]
) -> jax.Array:
    """The sum of |a (d - d0) + (a - a0) d0|**2."""
    (a, _, off), (_, mean, other_off) = first, second
    constant = jnp.broadcast_to(squared_magnitude(mean), other_off.shape)
    terms = [squared_magnitude(a), 2 * a * jnp.conj(off), squared_magnitude(off)]
    others = [squared_magnitude(other_off), other_off * jnp.conj(mean), constant]
    return jnp.real(contract(terms, others))


def _contracted(
    terms: Sequence[jax.Array],
    others: Sequence[jax.Array],
    batching: Any,
    summed: tuple[Dims, Dims],
    precision: Any,
) -> jax.Array:
    """The sum of several contractions, as one.

    They lie along a dimension of their own, which is summed too, so that examples stay on their
    devices.
    """
    dtype = jnp.result_type(*terms, *others)
    lhs, rhs = (jnp.stack([x.astype(dtype) for x in each], -1) for each in (terms, others))
    along = (*summed[0], lhs.ndim - 1), (*summed[1], rhs.ndim - 1)
    return lax.dot_general(lhs, rhs, (along, batching), precision)
