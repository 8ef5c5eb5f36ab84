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
from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from hlo_surgery.passes.dataflow.ancestors import sums_from_zero
from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import Arrays, widened
from hlo_surgery.passes.ir.traits import precision
from hlo_surgery.passes.measures.measures import Phi
from hlo_surgery.passes.measures.moments import central_moment, squared_magnitude
from hlo_surgery.passes.raising.raise_op import raise_op
from hlo_surgery.passes.strategies.reweight_examples import (
    beyond_products,
    of_real_examples,
    weighted_site,
    widened_numbers,
)
from hlo_surgery.passes.strategies.strategy import Task
from hlo_surgery.passes.terms.contract_monomials import balanced
from hlo_surgery.passes.terms.epilogue import Does, moved_statistic, reading_of, tail_powers
from hlo_surgery.passes.terms.monomials import Dims, paired_dims
from hlo_surgery.passes.terms.scaling import exponent_of, raised, times_power_of_two
from hlo_surgery.passes.terms.steps import (
    Axis,
    Contracted,
    GradientSlice,
    Known,
    Split,
    Step,
    contracted,
    holds_all,
)

# A factor, as m and e of m * 2**e.
By = tuple[Array | float, Array | float]
# What `_squared_site` can contract; a convolution sums several products into an element.
SQUARED = {"stablehlo.dot_general", "stablehlo.reduce", "stablehlo.scatter"}
# A factor, its mean over the examples, and how far off each of them is from that.
Centred = tuple[Array, Array, Array]
Contract = Callable[..., Array]


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
    if op.name not in SQUARED or not sums_from_zero(op):
        return False
    is_wide = mlir.is_at_least_float32(op.result)
    if op.name == "stablehlo.scatter" and (raise_op(op) is None or not is_wide):
        return False
    number, own = next(iter(contracted(op).items()))
    return per_token or _alone(own, site.inputs[number][1])


def _alone(of: Contracted, axis: Axis) -> bool:
    """Whether the example axis is all that is summed over."""
    if not holds_all(axis):
        return False
    axes = [place.axis for place in axis.places] if isinstance(axis, Split) else [axis]
    along = [each.dim for each in axes if isinstance(each, PerExample) and each.is_whole]
    alone = of.positions == math.prod(of.shape[d] for d in along)
    return alone and bool(along) and set(along) <= set(of.summed)


def squared_mean(task: Task, known: Known, phi: Phi) -> Array:
    """The mean of phi of gradients over the examples that are no padding."""
    examples, size = task.examples, task.examples.count(known)
    # Real, as phi of a complex number may be.
    scale = jnp.asarray(1 / size, jnp.finfo(task.dtype).dtype)
    # A gradient is so many times what its example adds. Phi of that number may leave the range.
    mantissa, exponent = _as_powers(size, task.dtype) if examples.is_mean else (1.0, 0.0)

    def at_site(site: Step, operands: Arrays, power: Any) -> Array:
        by = mantissa, power + exponent
        return _squared_site(site, operands, phi, scale, examples.flags(known), by)

    return _behind_sites(task, known, at_site, phi)


def _behind_sites(
    task: Task,
    known: Known,
    at_site: Callable[[Step, Arrays, Any], Array],
    phi: Phi,
    of_padding: Phi | None = None,
) -> Array:
    """A statistic of a gradient, from that of what each site sums, its operands in front of it.

    `at_site`: of a site, these operands, and the power of two that the tail scales by.
    """
    sliced = task.sliced
    given = {key: known[key[0]] for key in sliced.inputs}
    powers = tail_powers(sliced, given)
    power = sum(powers.values())
    sites = {
        site.op.results[0]: at_site(site, [given[key] for key in site.inputs], power)
        for site in sliced.sites
    }
    return moved_statistic(sliced, sites, given, phi, task.dtype, of_padding, powers)


def _as_powers(size: Any, dtype: jnp.dtype) -> By:
    """A number of examples as m * 2**e; of one that is known, numbers of Python."""
    if isinstance(size, int):
        exponent = size.bit_length() - 1
        return size / 2**exponent, float(exponent)
    wide = jnp.asarray(size, jnp.finfo(dtype).dtype)
    exponent = exponent_of(wide)
    return times_power_of_two(wide, -exponent), exponent


def weighted_squares(task: Task, known: Known, weights: Array, finite: Array | None) -> Array:
    """The sum over the examples of |w_b g_b|**2: one operand of each site is weighted, then all are
    squared. Those not `finite` are left out.
    """

    def phi(x: Array) -> Array:
        return squared_magnitude(x.astype(task.dtype))

    def at_site(site: Step, operands: Arrays, power: Any) -> Array:
        own = weighted_site(site, list(map(widened_numbers, operands)), {}, weights, finite)
        return _squared_site(site, own, phi, scale, finite, (1.0, power))

    def of_padding(x: Array) -> Array:
        return jnp.sum(phi(weights)) * phi(x)

    scale = phi(jnp.asarray(task.examples.factor(known)))
    moved = _behind_sites(task, known, at_site, phi, of_padding)
    return beyond_products(moved, task.sliced, weights)


def _squared_site(
    site: Step,
    operands: Arrays,
    phi: Phi,
    scale: Array,
    real: Array | None,
    by: By,
) -> Array:
    """The contraction of phi of the operands, one of them multiplied `by` m * 2**e before.

    Its scale is taken in with the smaller one, not with the result.
    """
    op, (mantissa, power) = site.op, by
    if op.name == "stablehlo.dot_general":
        left, right = contracted(op).values()
        dims = ((left.summed, right.summed), (left.batch, right.batch))
        first, second = map(widened, operands)
        if (kept := paired_dims(op, [axis for _, axis in site.inputs])) is None:
            first = raised(first, power)
        else:
            first, second = balanced(first, second, kept, phi, power)
        factors = zip((first * mantissa, second), site.inputs, strict=True)
        lhs, rhs = (of_real_examples(phi(x), axis, real, {}) for x, (_, axis) in factors)
        lhs, rhs = (lhs * scale, rhs) if lhs.size < rhs.size else (lhs, rhs * scale)
        return lax.dot_general(lhs, rhs, dims, precision(op), preferred_element_type=lhs.dtype)
    number = 2 if op.name == "stablehlo.scatter" else 0
    own = phi(raised(operands[number], power) * mantissa)
    terms = of_real_examples(own, site.inputs[number][1], real, {})
    if op.name == "stablehlo.reduce":
        return jnp.sum(terms, contracted(op)[0].summed) * scale
    scattered = raise_op(op)
    assert scattered is not None
    base, indices, _ = operands
    return scattered(jnp.zeros_like(base), indices, (terms * scale).astype(base.dtype))[0]


# Where the mean square is so many variances, centred factors take over. Elsewhere they need not be
# the better: factors that are large for different examples have small products with large
# deviations.
CANCELLED = 64
# By the ops that it is taken at, how many times the op's own work: the mean of what is off, the
# mean square, and the three terms of the centred one; of a plain sum the mean, what is off from it,
# and its square.
CENTRED = {"stablehlo.dot_general": 5, "stablehlo.reduce": 3}


def centred_variance(task: Task, known: Known) -> Array:
    """The mean of |g_b - mean|**2 over the examples that are no padding."""
    at_site = partial(_variance_at_site, task, known)
    return _behind_sites(task, known, at_site, squared_magnitude, jnp.zeros_like)


def _variance_at_site(task: Task, known: Known, site: Step, operands: Arrays, power: Any) -> Array:
    """The variance of what each example's gradient has of a site, and times 2**power."""
    examples, axes = task.examples, [axis for _, axis in site.inputs]
    size, real = examples.count(known), examples.flags(known)
    factor = jnp.asarray(examples.factor(known), jnp.finfo(task.dtype).dtype)
    own = [x.astype(task.dtype) for x in operands]
    if site.op.name == "stablehlo.reduce":
        dims = contracted(site.op)[0].summed
        *_, off = _centred(raised(own[0], power) * factor, dims, axes[0], size, real)
        square = jnp.sum(squared_magnitude(off), dims)
        return central_moment(square / size, jnp.sum(off, dims) / size)
    left, right = contracted(site.op).values()
    batching, summed = (left.batch, right.batch), (left.summed, right.summed)
    # One exponent for all examples, whose means would be others with one for each.
    lhs, rhs = balanced(own[0], own[1], batching, squared_magnitude, power)
    contract = partial(_contracted, batching=batching, summed=summed, precision=precision(site.op))
    first = _centred(lhs * factor, left.summed, axes[0], size, real)
    return _of_product(first, _centred(rhs, right.summed, axes[1], size, real), contract, size)


def _of_product(first: Centred, second: Centred, contract: Contract, size: Any) -> Array:
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


def _centred(x: Array, dims: Dims, axis: Axis, size: Any, real: Array | None) -> Centred:
    """An operand without padding, its mean over the examples, and how far off each is from that."""
    kept = of_real_examples(x, axis, real, {})
    mean = jnp.sum(kept, dims, keepdims=True) / size
    return kept, mean, of_real_examples(kept - mean, axis, real, {})


def _squares(first: Centred, second: Centred, contract: Contract) -> Array:
    """The sum of |a (d - d0) + (a - a0) d0|**2."""
    (a, _, off), (_, mean, other_off) = first, second
    constant = jnp.broadcast_to(squared_magnitude(mean), other_off.shape)
    terms = [squared_magnitude(a), 2 * a * jnp.conj(off), squared_magnitude(off)]
    others = [squared_magnitude(other_off), other_off * jnp.conj(mean), constant]
    return jnp.real(contract(terms, others))


def _contracted(
    terms: Arrays,
    others: Arrays,
    batching: Any,
    summed: tuple[Dims, Dims],
    precision: Any,
) -> Array:
    """The sum of several contractions, as one.

    They lie along a dimension of their own, which is summed too, so that examples stay on their
    devices.
    """
    dtype = jnp.result_type(*terms, *others)
    lhs, rhs = (jnp.stack([x.astype(dtype) for x in each], -1) for each in (terms, others))
    along = (*summed[0], lhs.ndim - 1), (*summed[1], rhs.ndim - 1)
    return lax.dot_general(lhs, rhs, (along, batching), precision)
