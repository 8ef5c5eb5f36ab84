"""Ghost: norms and inner products of gradients from their einsums' factors, none in memory.

    M = sum over t of h[t] l[t]'     =>     |M|**2 = sum over t, u of (h[t] . h[u]) (l[t] . l[u])

With several einsums (a tied embedding and head), their cross terms are of the same form.
(Goodfellow, "Efficient Per-Example Gradient Computations"; Li et al., "Large Language Models Can Be
Strong Differentially Private Learners", for sequences.)
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement

import jax.numpy as jnp
from jax import Array, lax

from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import wide_dtype, widened
from hlo_surgery.passes.measures.measures import Gram, Measure, Norms, TokenNorms
from hlo_surgery.passes.measures.moments import at_least, without_padding
from hlo_surgery.passes.strategies.einsums.factors import (
    Share,
    factors_of,
    inner,
    is_narrow,
    positions_of,
    predicted,
    scale_of,
    shares_of,
)
from hlo_surgery.passes.strategies.gradient_costs import Predicted, Schedule
from hlo_surgery.passes.strategies.strategy import Asked, Measures, Strategy, Task, each_measure
from hlo_surgery.passes.terms.scaling import traced_once, wide_norms
from hlo_surgery.passes.terms.steps import Known, contracted

# Sites that take two factors, or one, as they are.
SINGLE = ("dot_general", "reduce")
Emit = Callable[[Asked, Known, Measure], Array]


def _applies(task: Task, measure: Measure) -> bool:
    """Whether each example's gradient is a sum of outer products; for all pairs, of a single one.

    Single positions have norms of their own if each is one term of a single sum.
    """
    if measure not in TABLE or not task.einsums:
        return False
    e, alone = task.einsums[0], len(task.einsums) == 1
    if measure == Gram():
        return alone and e.kind == "dot_general" and e.positions(task.examples.size) == 1
    return alone or measure == Norms()


def _predict(task: Task, measures: Measures, schedule: Schedule) -> Predicted:
    """Inner products of all pairs of an example's positions, every product exact. The largest
    elements of several are read before, and scaled operands written where XLA does not scale them
    on their way. Where devices have parts of a contraction's gradient, each gathers all elements
    of the operands for the products, and does all the work.
    """
    counts, device, positions = task.counts, task.device, positions_of(task)
    pairs = counts.size * positions**2
    flops = 2 * pairs * max(e.elements for e in task.einsums)
    narrow = device.narrow_operands and all(map(is_narrow, task.einsums))
    own = predicted(task, flops, device.exact_rate(narrow), 2 * pairs, 2 * pairs)
    again = (1 + device.scaling) * counts.read if positions > 1 else 0
    contracted = all(e.kind == "dot_general" for e in task.einsums)
    seconds = own.seconds + device.moving_seconds(again, counts.read)
    return replace(own, seconds=seconds * (schedule.parts if contracted else 1))


def _pays(task: Task, measure: Measure, schedule: Schedule, otherwise: Predicted) -> bool:
    """Whether pairs of positions are fewer than an example's gradient has elements, and are told to
    be no slower.
    """
    positions = positions_of(task)
    if measure != Norms() or positions <= 1:
        return True
    is_lighter = positions**2 <= math.prod(mlir.shape(task.sliced.value))
    return is_lighter and _predict(task, [measure], schedule).seconds <= otherwise.seconds


def _norms(asked: Asked, known: Known, measure: Measure) -> Array:
    """[B], from pairs, or from each example's own gradient where those have cancelled."""
    task, is_single = asked.task, positions_of(asked.task) <= 1
    if is_single and task.einsums[0].kind in SINGLE and "g" not in task.einsums[0].labels:
        return _of_single_products(task, known)
    norms, reliable = _norm(shares_of(task, known, factors_of(task, known)))
    if is_single:
        return norms

    def instantiated() -> Array:
        (made,) = asked.chosen.instantiating.emit([Asked(asked.chosen, [measure])], known)
        return made.measured[measure]

    return lax.cond(jnp.all(reliable), lambda: norms, instantiated)


def _of_single_products(task: Task, known: Known) -> Array:
    """The product of the norms of what sites take, as it lies: laid out as factors it would be
    copied. In float64 no product leaves the range.
    """
    (e,), real = task.einsums, task.examples.flags(known)
    sliced = [(known[v], axis.dim) for v, axis in e.site.inputs if isinstance(axis, PerExample)]
    norms = [wide_norms(x, [d for d in range(x.ndim) if d != dim]) for x, dim in sliced]
    product = math.prod(norms, start=jnp.abs(scale_of(task, e, known)))
    return without_padding(product.astype(jnp.finfo(task.dtype).dtype), real)


@traced_once
def _norm(shares: Sequence[Share]) -> tuple[Array, Array]:
    """Norms from inner products of all pairs of shares, and for each whether no sum cancelled."""
    positions = sum(share.second.shape[2] for share in shares)
    square = alone = jnp.zeros_like(shares[0].scale)
    for i, j in combinations_with_replacement(range(len(shares)), 2):
        one, other = shares[i], shares[j]
        terms = inner(one.first, other.first) * inner(one.second, other.second)
        scale = one.scale * other.scale
        square += (1 if i == j else 2) * scale * jnp.sum(terms, (1, 2, 3))
        if i == j:
            own = lax.iota(jnp.int32, terms.shape[-1])
            alone += scale * jnp.sum(terms[..., own, own], (1, 2))
    # The roundings of T positions add up to about eps T times the terms alone: less than 1e-3 of
    # what is left here.
    reliable = ~(square < max(1e-2, 1e-4 * positions) * alone)
    dtype = wide_dtype(shares[0].second.dtype)
    return jnp.sqrt(at_least(square, 0)).astype(dtype), reliable


def _gram(asked: Asked, known: Known, measure: Measure) -> Array:
    """Inner products of all pairs of gradients, [B, B], where each is one outer product."""
    (share,) = shares_of(asked.task, known, factors_of(asked.task, known))
    wide = [widened(x) for x in (share.first, share.second)]
    pairs = [jnp.einsum("agtd,bgtd->abg", x, x, precision="highest") for x in wide]
    products = jnp.sum(math.prod(pairs), -1)
    return (products * share.scale[:, None] * share.scale).astype(products.dtype)


def _token_norms(asked: Asked, known: Known, measure: Measure) -> Array:
    """The norm of each position's own outer product, [B, *positions], as if it were an example's;
    the positions as in the site's first operand. Where examples and positions are one dimension of
    that, it is one of positions here.
    """
    (e,), size = asked.task.einsums, asked.task.examples.size
    ((first, second),) = factors_of(asked.task, known)
    norms, _ = _norm(shares_of(asked.task, known, [(_one_by_one(first), _one_by_one(second))]))
    number, own = next(iter(contracted(e.site.op).items()))
    sizes = {dim: own.shape[dim] for dim in own.summed}
    axis = e.site.inputs[number][1]
    if isinstance(axis, PerExample) and axis.dim in sizes:
        sizes[axis.dim] //= size
        sizes = {dim: n for dim, n in sizes.items() if dim != axis.dim or not axis.is_whole}
    found = norms.reshape(size, *sizes.values())
    return found.transpose(0, *(1 + list(sizes).index(dim) for dim in sorted(sizes)))


def _one_by_one(x: Array) -> Array:
    """[B * positions, g, 1, elements] of [B, g, positions, elements]; rows are [B * positions]."""
    if x.ndim == 2:
        return x.reshape(-1, 1)
    return jnp.moveaxis(x, 2, 1).reshape(-1, x.shape[1], 1, x.shape[3])


TABLE: dict[Measure, Emit] = {Norms(): _norms, Gram(): _gram, TokenNorms(): _token_norms}
GHOST = Strategy(
    "ghost",
    _applies,
    _predict,
    each_measure(lambda asked, known, measure: TABLE[measure](asked, known, measure)),
    _pays,
    words="inner products of operands, no gradients made",
)
