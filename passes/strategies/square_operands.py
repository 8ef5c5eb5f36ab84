"""Square operands: where phi(ab) = phi(a) phi(b), the mean of phi is one more contraction.

    %g = dot_general %h[b, d], %l[b, f] over b   =>   %s = dot_general phi(%h), phi(%l) over b

Exact where one example's share of each element of the gradient is a single product: the sites
contract nothing but the examples, and the tail only moves and scales elements. (Roulet and
Agarwala, section 2.3: a dense layer's per-example gradients have rank one.)

Centred operands: given a contraction of the examples alone, gradients' variance without g**2.

    g_b - a0 d0  =  a_b (d_b - d0) + (a_b - a0) d0        a0, d0: the means over the examples

whose mean square is three contractions of thin factors. The mean of g_b**2 less the squared mean
loses whatever is below a rounding of g_b**2; this loses only what is below one of the two terms
where they cancel.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hlo_surgery.passes.dataflow.ancestors import is_splat
from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import widened
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.ir.traits import initial_operands, precision
from hlo_surgery.passes.measures.measures import Phi, variance_behind
from hlo_surgery.passes.measures.moments import central_moment, squared_magnitude
from hlo_surgery.passes.raising.raise_op import raise_op
from hlo_surgery.passes.strategies.reweight_examples import (
    along_examples,
    beyond_products,
    weighted_site,
)
from hlo_surgery.passes.terms.contract_monomials import balanced
from hlo_surgery.passes.terms.epilogue import Does, moved_statistic, reading_of, tail_powers
from hlo_surgery.passes.terms.monomials import Dims, paired_dims
from hlo_surgery.passes.terms.scaling import as_scaled, times_power_of_two
from hlo_surgery.passes.terms.steps import (
    Axis,
    Contracted,
    GradientSlice,
    Input,
    Split,
    Step,
    contracted,
    holds_all,
)

# A factor, as m and e of m * 2**e.
By = tuple[jax.Array | float, jax.Array | float]
# What `_squared_site` can contract; a convolution sums several products into an element.
SQUARED = {"stablehlo.dot_general", "stablehlo.reduce", "stablehlo.scatter"}
# By powers of two up to this one, as of batches of 65536 examples, numbers are doubled.
MOST_DOUBLINGS = 16


def is_squarable(sliced: GradientSlice, per_token: bool = False) -> bool:
    """Whether every element of an example's gradient is one product of one element of each operand.

    `per_token`: whether it is if each position that is contracted counts as an example of its own.
    """
    plain = all(axis is None or holds_all(axis) for _, axis in sliced.inputs)
    rank_one = plain and all(_is_rank_one(site, per_token) for site in sliced.sites)
    links = [reading_of(step, sliced.made) for step in sliced.tail]
    single = all(link is not None and link.does is not Does.ADDS for link in links)
    return bool(sliced.sites) and rank_one and single


def _is_rank_one(site: Step, per_token: bool) -> bool:
    """Whether an example adds at most one term to each element, on top of nothing."""
    op = site.op
    if len(op.results) != 1 or not all(is_splat(op.operands[i], 0) for i in initial_operands(op)):
        return False
    if op.name not in SQUARED:
        return False
    if op.name == "stablehlo.scatter" and not _scatters_widely(op):
        return False
    firsts = list(contracted(op).items())[:1]
    return any(per_token or _alone(own, site.inputs[number][1]) for number, own in firsts)


def _scatters_widely(op: Operation) -> bool:
    """Whether a scatter can be raised, and rounds nothing below float32."""
    return raise_op(op) is not None and mlir.is_at_least_float32(op.results[0])


def _alone(of: Contracted, axis: Axis) -> bool:
    """Whether the example axis is all that is summed over."""
    if not holds_all(axis):
        return False
    axes = [place.axis for place in axis.places] if isinstance(axis, Split) else [axis]
    along = [each.dim for each in axes if isinstance(each, PerExample) and each.is_whole]
    alone = of.positions == math.prod(of.shape[d] for d in along)
    return alone and bool(along) and set(along) <= set(of.summed)


def squared_mean(
    sliced: GradientSlice,
    given: Mapping[Input, jax.Array],
    phi: Phi,
    dtype: jnp.dtype,
    size: Any,
    mean_loss: bool,
    real: jax.Array | None = None,
) -> jax.Array:
    """The mean over `size` examples of phi of gradients, in `dtype`; where not all are `real`."""
    # Real, as phi of a complex number may be.
    scale, powers = jnp.asarray(1 / size, jnp.finfo(dtype).dtype), tail_powers(sliced, given)
    of_site = partial(
        _squared_site,
        phi=lambda x: phi(x.astype(dtype)),
        scale=scale,
        real=real,
    )
    # A gradient is so many times what its example adds. Phi of that number may leave the range.
    times = _as_powers(size, dtype) if mean_loss else (1.0, 0.0)
    by = times[0], sum(powers.values()) + times[1]
    sites = {
        s.op.results[0]: of_site(s, [given[key] for key in s.inputs], by=by) for s in sliced.sites
    }
    return moved_statistic(sliced, sites, given, phi, dtype, powers=powers)


def _as_powers(size: Any, dtype: jnp.dtype) -> By:
    """A number of examples as m * 2**e; of one that is known, numbers of Python."""
    if isinstance(size, int):
        exponent = size.bit_length() - 1
        return size / 2**exponent, float(exponent)
    return as_scaled(jnp.asarray(size, jnp.finfo(dtype).dtype))


def weighted_squares(
    sliced: GradientSlice,
    given: Mapping[Input, jax.Array],
    weights: jax.Array,
    dtype: jnp.dtype,
    factor: Any,
    finite: jax.Array | None,
) -> jax.Array:
    """The sum over the examples of |w_b g_b|**2: one operand of each site is weighted, then all are
    squared. `factor`: an example's gradient over its contribution; those not `finite` are left out.
    """

    def phi(x: jax.Array) -> jax.Array:
        return squared_magnitude(x.astype(dtype))

    def at_site(site: Step) -> jax.Array:
        own = [_widened_numbers(given[key]) for key in site.inputs]
        operands = weighted_site(site, own, {}, weights, finite)
        return _squared_site(site, operands, phi=phi, scale=scale, real=finite, by=(1.0, power))

    def of_padding(x: jax.Array) -> jax.Array:
        return jnp.sum(phi(weights)) * phi(x)

    powers = tail_powers(sliced, given)
    power, scale = sum(powers.values()), phi(jnp.asarray(factor, dtype))
    sites = {site.op.results[0]: at_site(site) for site in sliced.sites}
    moved = moved_statistic(sliced, sites, given, phi, dtype, of_padding, powers)
    return beyond_products(moved, sliced, weights)


def _widened_numbers(x: jax.Array) -> jax.Array:
    """Widened, but for indices."""
    return widened(x) if jnp.issubdtype(x.dtype, jnp.inexact) else x


def _squared_site(
    site: Step,
    operands: Sequence[jax.Array],
    phi: Phi,
    scale: jax.Array,
    real: jax.Array | None,
    by: By,
) -> jax.Array:
    """The contraction of phi of the operands, one of them multiplied `by` m * 2**e before.

    Its scale is taken in with the smaller one, not with the result.
    """
    op, (mantissa, power) = site.op, by
    if op.name == "stablehlo.dot_general":
        left, right = contracted(op).values()
        dims = ((left.summed, right.summed), (left.batch, right.batch))
        first, second = _balanced(site, operands, phi, power)
        factors = zip((first * mantissa, second), site.inputs, strict=True)
        lhs, rhs = (of_real_examples(phi(x), axis, real) for x, (_, axis) in factors)
        lhs, rhs = (lhs * scale, rhs) if lhs.size < rhs.size else (lhs, rhs * scale)
        return lax.dot_general(lhs, rhs, dims, precision(op), preferred_element_type=lhs.dtype)
    if op.name == "stablehlo.reduce":
        terms = phi(raised(operands[0], power) * mantissa)
        return (
            jnp.sum(of_real_examples(terms, site.inputs[0][1], real), contracted(op)[0].summed)
            * scale
        )
    scattered = raise_op(op)
    assert scattered is not None
    base, indices, updates = operands
    terms = phi(raised(updates, power) * mantissa)
    return scattered(
        jnp.zeros_like(base),
        indices,
        (of_real_examples(terms, site.inputs[2][1], real) * scale).astype(base.dtype),
    )[0]


def of_real_examples(x: jax.Array, axis: Axis, real: jax.Array | None) -> jax.Array:
    """The examples of an operand that are no padding; zero for the others."""
    if real is None or not holds_all(axis):
        return x
    return jnp.where(along_examples(real, axis, x, {}), x, jnp.zeros_like(x))


def raised(x: jax.Array, power: jax.Array | float) -> jax.Array:
    """x * 2**power, in at least float32, where that is not 1."""
    if isinstance(power, float | int) and power == 0:
        return x
    wide = widened(x)
    if isinstance(power, float | int) and power in range(1, MOST_DOUBLINGS + 1):
        return _doubled(wide, int(power))
    return times_power_of_two(wide, jnp.asarray(power, jnp.finfo(wide.dtype).dtype))


def _doubled(x: jax.Array, times: int) -> jax.Array:
    """x * 2**times by additions, which round nothing either. A constant factor that several sums
    have XLA writes out, on CPU, as an array like x, and keeps until the last of them.
    """
    return reduce(lambda y, _: y + y, range(times), x)


def _balanced(
    site: Step, operands: Sequence[jax.Array], phi: Phi, power: jax.Array | float
) -> tuple[jax.Array, jax.Array]:
    dims = paired_dims(site.op, [axis for _, axis in site.inputs])
    lhs, rhs = map(widened, operands)
    return (raised(lhs, power), rhs) if dims is None else balanced(lhs, rhs, dims, phi, power)


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
