"""Ghost norms: given the paths of a gradient, the norms of all examples' gradients without any of them in memory.

    M = sum over t of h[t] l[t]'     =>     |M|**2 = sum over t, u of (h[t] . h[u]) (l[t] . l[u])

With several paths (a tied embedding and head), their cross terms are of the same form; a scatter's rows are picked by
their indices. (Goodfellow, "Efficient Per-Example Gradient Computations"; Li et al., "Large Language Models Can Be
Strong Differentially Private Learners", for sequences.)
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from hlo_surgery import mlir
from hlo_surgery.mlir import Value, stablehlo
from hlo_surgery.passes.ghost_paths import Dims, Path, factor_dims, is_single_product
from hlo_surgery.passes.gradient_slices import Input
from hlo_surgery.passes.lattice import PerExample
from hlo_surgery.passes.raising_attributes import integers
from hlo_surgery.passes.scaled_norms import norms_along, norms_of_rows, power_of_two
from hlo_surgery.passes.slice_functions import SliceFunction, example_position, exposed_examples, merge_example

Given = Mapping[Input, jax.Array]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Factor:
    """[batch, positions, elements] of one factor of an outer product; or, for a scatter, the rows' numbers.

    `rows`: how many rows there are, where `x` is [1, positions] of their numbers; -1 stands for none.
    """

    x: jax.Array
    rows: int | None = None


@dataclass(frozen=True)
class Share:
    """One path of one example: two factors without their scale, and the scale."""

    first: Factor
    second: Factor
    scale: jax.Array


def ghost_norms(
    function: SliceFunction, paths: Sequence[Path], known: Mapping[Value, jax.Array], size: int, factor: float
) -> tuple[jax.Array, jax.Array]:
    """The norms [B] and, for each, whether it is free of cancellation. `factor`: of a contribution in a gradient."""
    if len(paths) == 1 and is_single_product(paths[0], size):
        norms = _single_norms(paths[0], known) * abs(factor)
        return norms, jnp.ones(size, bool)

    def of_one(given: Given) -> tuple[jax.Array, jax.Array]:
        return _norm(_shares(paths, given, factor))

    return over_examples(function, known, size, of_one)


def ghost_gram(
    function: SliceFunction, path: Path, known: Mapping[Value, jax.Array], size: int, factor: float
) -> jax.Array:
    """Inner products of all pairs of examples' gradients, [B, B], where each is one outer product."""

    def of_one(given: Given) -> tuple[jax.Array, jax.Array, jax.Array]:
        (share,) = _shares([path], given, factor)
        return share.first.x[:, 0], share.second.x[:, 0], share.scale

    first, second, scale = over_examples(function, known, size, of_one)
    pairs = [jnp.einsum("agd,bgd->abg", x, x, precision=lax.Precision.HIGHEST) for x in (first, second)]
    return jnp.sum(pairs[0] * pairs[1], -1) * scale[:, None] * scale


def token_norms(
    function: SliceFunction, path: Path, known: Mapping[Value, jax.Array], size: int, factor: float
) -> jax.Array:
    """The norm of each position's own outer product, [B, positions]."""

    def of_one(given: Given) -> jax.Array:
        (share,) = _shares([path], given, factor)
        norms = [_position_norms(f.x) for f in (share.first, share.second) if f.rows is None]
        return jnp.abs(share.scale) * norms_of_rows(math.prod(norms[1:], start=norms[0]).T)

    return over_examples(function, known, size, of_one)


def _position_norms(x: jax.Array) -> jax.Array:
    """[batch, positions] of [batch, positions, elements]."""
    return norms_of_rows(x.reshape(-1, x.shape[2])).reshape(x.shape[:2])


def _single_norms(path: Path, known: Mapping[Value, jax.Array]) -> jax.Array:
    """The norm of one outer product is the product of the norms."""
    operands = [(known[v], axis.dim) for v, axis in path.site.inputs if isinstance(axis, PerExample)]
    wide = [(x.astype(jnp.promote_types(x.dtype, jnp.float32)), dim) for x, dim in operands]
    scales = [(jnp.abs(known[value].ravel()[0]), divides) for (value, _), divides in path.scales]
    norms = math.prod([norms_along(x, dim) for x, dim in wide[1:]], start=norms_along(*wide[0]))
    for number, divides in scales:
        norms = norms / number if divides else norms * number
    return norms


def over_examples(
    function: SliceFunction, known: Mapping[Value, jax.Array], size: int, of_one: Callable[[Given], Result]
) -> Result:
    """Any function of one example's inputs, for all examples at once."""
    axes = [axis for _, axis in function.inputs]

    def from_operands(*example: jax.Array) -> Result:
        merged = [merge_example(x, axis) for x, axis in zip(example, axes, strict=True)]
        return of_one(dict(zip(function.inputs, merged, strict=True)))

    exposed = exposed_examples(function, known, size)
    return jax.vmap(from_operands, in_axes=[example_position(axis) for axis in axes], axis_size=size)(*exposed)


def _norm(shares: Sequence[Share]) -> tuple[jax.Array, jax.Array]:
    """A norm from the inner products of all pairs of shares, and whether their sum has not cancelled."""
    largest = power_of_two(jnp.max(jnp.abs(jnp.stack([share.scale for share in shares]))))
    positions = sum(share.second.x.shape[1] for share in shares)
    square = jnp.zeros_like(largest)
    alone = jnp.zeros_like(largest)
    for i, j in combinations_with_replacement(range(len(shares)), 2):
        one, other = shares[i], shares[j]
        terms = inner(one.first, other.first) * inner(one.second, other.second)
        scale = (one.scale / largest) * (other.scale / largest)
        square += (1 if i == j else 2) * scale * jnp.sum(terms)
        if i == j:
            alone += scale * jnp.sum(jnp.diagonal(terms, axis1=-2, axis2=-1))
    # The roundings of T positions add up to about eps T times the terms alone: less than 1e-3 of what is left here.
    reliable = ~(square < max(1e-2, 1e-4 * positions) * alone)
    return largest * jnp.sqrt(jnp.maximum(square, 0)), reliable


def inner(one: Factor, other: Factor) -> jax.Array:
    """Inner products of the elements of two factors, [batch, positions of the one, positions of the other]."""
    if one.rows is None and other.rows is None:
        if one.x.shape[1] == other.x.shape[1] == 1:
            # A sum that is fused with what makes its terms, where a contraction would need them in memory.
            return jnp.sum(one.x * other.x, 2, keepdims=True)
        return jnp.einsum("gld,gmd->glm", one.x, other.x, precision=lax.Precision.HIGHEST)
    if one.rows is not None and other.rows is not None:
        return ((one.x[:, :, None] == other.x[:, None, :]) & (one.x >= 0)[:, :, None]).astype(jnp.float32)
    if one.rows is None:
        return jnp.where(other.x[:, None, :] >= 0, jnp.take(one.x, other.x[0], axis=2, mode="clip"), 0)
    return jnp.swapaxes(inner(other, one), 1, 2)


def _shares(paths: Sequence[Path], given: Given, factor: float) -> list[Share]:
    """The shares of one example, their factors over the same dimensions in the same order."""
    leading = factor_dims(paths[0])
    shares: list[Share] = []
    for path in paths:
        share = FACTORS[path.site.op.name](path, given)
        scale = share.scale * (-factor if path.negated else factor)
        for key, divides in path.scales:
            number = given[key].ravel()[0].astype(scale.dtype)
            scale = scale / number if divides else scale * number
        swapped = factor_dims(path) != leading
        first, second = (share.second, share.first) if swapped else (share.first, share.second)
        shares.append(Share(first, second, scale))
    return shares


def _product(path: Path, given: Given) -> Share:
    """Both operands of a dot_general as [batch, positions, free]."""
    op = path.site.op
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    lhs, rhs = (given[key] for key in path.site.inputs)
    left = (tuple(numbers.lhs_batching_dimensions), tuple(numbers.lhs_contracting_dimensions))
    right = (tuple(numbers.rhs_batching_dimensions), tuple(numbers.rhs_contracting_dimensions))
    batch, free = len(left[0]), lhs.ndim - len(left[0]) - len(left[1])
    ends = (range(batch, batch + free), range(batch + free, len(mlir.shape(op.results[0]))))
    factors = [
        _factor(x, *dims, _positions_of(path.order, end))
        for x, dims, end in zip((lhs, rhs), (left, right), ends, strict=True)
    ]
    return _scaled(*factors)


def _positions_of(order: Sequence[int] | None, dims: range) -> list[int]:
    """The dimensions of one factor in the order in which the output has them."""
    return [d - dims.start for d in order or dims if d in dims]


def _factor(x: jax.Array, batching: Dims, contracting: Dims, order: Sequence[int]) -> jax.Array:
    free = [d for d in range(x.ndim) if d not in (*batching, *contracting)]
    moved = x.transpose(*batching, *contracting, *(free[i] for i in order))
    sizes = [math.prod(x.shape[d] for d in dims) for dims in (batching, contracting, free)]
    return moved.reshape(sizes).astype(jnp.promote_types(x.dtype, jnp.float32))


def _rows(path: Path, given: Given) -> Share:
    """The updates of a scatter as [1, positions, window], and the numbers of the rows to which they are added."""
    op = path.site.op
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    _, indices, updates = (given[key] for key in path.site.inputs)
    shape = mlir.shape(op.operands[0])
    scattered, window = list(numbers.scattered_dims_to_operand_dims), tuple(numbers.update_window_dims)
    order = path.order or tuple(range(len(shape)))
    columns = indices if numbers.index_vector_dim < indices.ndim else indices[..., None]
    columns = jnp.moveaxis(columns, numbers.index_vector_dim, -1).reshape(-1, len(scattered))
    rows, number, exists = 1, jnp.zeros(columns.shape[0], jnp.int32), jnp.ones(columns.shape[0], bool)
    for dim in (d for d in order if d in scattered):
        column = columns[:, scattered.index(dim)].astype(jnp.int32)
        exists &= (column >= 0) & (column < shape[dim])
        rows, number = rows * shape[dim], number * shape[dim] + column
    kept = [d for d in range(len(shape)) if d not in scattered]
    outside = tuple(d for d in range(updates.ndim) if d not in window)
    dense = _factor(updates, (), outside, [kept.index(d) for d in order if d in kept])
    scale = power_of_two(jnp.max(jnp.abs(dense), initial=0))
    return Share(Factor(jnp.where(exists, number, -1)[None], rows), Factor(dense / scale), scale)


def _ones(path: Path, given: Given) -> Share:
    """A sum as a product with ones."""
    x = given[path.site.inputs[0]]
    summed = integers(path.site.op, "dimensions")
    second = _factor(x, (), summed, _positions_of(path.order, range(x.ndim - len(summed))))
    return _scaled(jnp.ones_like(second[..., :1]), second)


FACTORS = {"stablehlo.dot_general": _product, "stablehlo.scatter": _rows, "stablehlo.reduce": _ones}


def _scaled(first: jax.Array, second: jax.Array) -> Share:
    """Factors whose largest elements are near 1, and their scale: no square overflows or underflows."""
    scales = [power_of_two(jnp.max(jnp.abs(x), initial=0)) for x in (first, second)]
    return Share(Factor(first / scales[0]), Factor(second / scales[1]), scales[0] * scales[1])
