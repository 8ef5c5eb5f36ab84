"""Ghost norms: given a gradient's paths, the norms of all examples' gradients, none in memory.

    M = sum over t of h[t] l[t]'     =>     |M|**2 = sum over t, u of (h[t] . h[u]) (l[t] . l[u])

With several paths (a tied embedding and head), their cross terms are of the same form; a scatter's
rows are picked by their indices. (Goodfellow, "Efficient Per-Example Gradient Computations"; Li et
al., "Large Language Models Can Be Strong Differentially Private Learners", for sequences.)
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from hlo_surgery.passes.costs.roofline import Roofline
from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.ir.element_types import widened
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.measures.limits import at_least
from hlo_surgery.passes.measures.scaled_norms import (
    norms_in_one_reading,
    norms_of_rows,
    scaled_norms,
)
from hlo_surgery.passes.strategies.ghost.ghost_factors import (
    Given,
    Share,
    inner,
    path_scale,
    shares_of,
)
from hlo_surgery.passes.strategies.ghost.ghost_paths import Path, is_single_product
from hlo_surgery.passes.strategies.ghost.token_positions import by_position
from hlo_surgery.passes.terms.monomials.binary_exponents import (
    Scaled,
    as_scaled,
    from_scaled,
    product_of,
    times_power_of_two,
    traced_once,
)
from hlo_surgery.passes.terms.slice_functions import SliceFunction, over_examples

Result = TypeVar("Result")


def ghost_norms(
    function: SliceFunction,
    paths: Sequence[Path],
    known: Mapping[Value, jax.Array],
    size: int,
    factor: Any,
    device: Roofline,
) -> tuple[jax.Array, jax.Array]:
    """The norms [B] and, for each, whether it is free of cancellation. `factor`: of a contribution
    in a gradient; `device`: says how it contracts and sums best.
    """
    if len(paths) == 1 and is_single_product(paths[0], size):
        return _single_norms(paths[0], known, factor, device.joint_sums), jnp.ones(size, bool)

    def of_one(given: Given) -> tuple[jax.Array, jax.Array]:
        return _norm(shares_of(paths, given, factor, device.narrow_operands))

    return _over_examples(function, known, size, of_one)


def ghost_gram(
    function: SliceFunction, path: Path, known: Mapping[Value, jax.Array], size: int, factor: Any
) -> jax.Array:
    """Inner products of all pairs of gradients, [B, B], where each is one outer product."""

    def of_one(given: Given) -> tuple[jax.Array, jax.Array, Scaled]:
        (share,) = shares_of([path], given, factor)
        return share.first.x[:, 0], share.second.x[:, 0], share.scale

    first, second, (scale, exponent) = _over_examples(function, known, size, of_one)
    pairs = [
        jnp.einsum("agd,bgd->abg", x, x, precision=lax.Precision.HIGHEST) for x in (first, second)
    ]
    products = jnp.sum(pairs[0] * pairs[1], -1) * scale[:, None] * scale
    return from_scaled((products, exponent[:, None] + exponent))


def token_norms(
    function: SliceFunction, path: Path, known: Mapping[Value, jax.Array], size: int, factor: Any
) -> jax.Array:
    """The norm of each position's own outer product, [B, *positions]."""

    def of_one(given: Given) -> jax.Array:
        (share,) = shares_of([path], given, factor)
        norms = [_position_norms(f.x) for f in (share.first, share.second) if f.rows is None]
        mantissa, exponent = as_scaled(norms_of_rows(math.prod(norms[1:], start=norms[0]).T))
        found = jnp.abs(from_scaled(product_of([(mantissa, exponent), share.scale])))
        return by_position(found, path, given)

    return _over_examples(function, known, size, of_one)


def _position_norms(x: jax.Array) -> jax.Array:
    """[batch, positions] of [batch, positions, elements]."""
    return norms_of_rows(x.reshape(-1, x.shape[2])).reshape(x.shape[:2])


def _single_norms(
    path: Path, known: Mapping[Value, jax.Array], factor: Any, one_reading: bool
) -> jax.Array:
    """The norm of one outer product is the product of the norms."""
    operands = [
        (known[v], axis.dim) for v, axis in path.site.inputs if isinstance(axis, PerExample)
    ]
    of_rows = norms_in_one_reading if one_reading else scaled_norms
    norms = [of_rows(widened(x), dim) for x, dim in operands]
    given = {key: known[key[0]] for key, _ in path.scales}
    return jnp.abs(from_scaled(product_of([*norms, path_scale(path, given, factor)])))


def _over_examples(
    function: SliceFunction,
    known: Mapping[Value, jax.Array],
    size: int,
    of_one: Callable[[Given], Result],
) -> Result:
    """A function of one example's inputs, by input, for all examples at once."""
    return over_examples(
        function, known, size, lambda *x: of_one(dict(zip(function.inputs, x, strict=True)))
    )


@traced_once
def _norm(shares: Sequence[Share]) -> tuple[jax.Array, jax.Array]:
    """A norm from inner products of all pairs of shares, and whether no sum cancelled."""
    largest = jnp.max(jnp.stack([exponent for _, exponent in (share.scale for share in shares)]))
    positions = sum(share.second.x.shape[1] for share in shares)
    scales = [
        times_power_of_two(m, exponent - largest)
        for m, exponent in (share.scale for share in shares)
    ]
    square = jnp.zeros_like(largest)
    alone = jnp.zeros_like(largest)
    for i, j in combinations_with_replacement(range(len(shares)), 2):
        one, other = shares[i], shares[j]
        terms = inner(one.first, other.first) * inner(one.second, other.second)
        scale = scales[i] * scales[j]
        square += (1 if i == j else 2) * scale * jnp.sum(terms)
        if i == j:
            own = lax.iota(jnp.int32, terms.shape[-1])
            alone += scale * jnp.sum(terms[..., own, own])
    # The roundings of T positions add up to about eps T times the terms alone: less than 1e-3 of
    # what is left here.
    reliable = ~(square < max(1e-2, 1e-4 * positions) * alone)
    return from_scaled((jnp.sqrt(at_least(square, 0)), largest)), reliable
