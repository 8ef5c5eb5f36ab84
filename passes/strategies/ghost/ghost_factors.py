"""Ghost factors: given a gradient's paths, one example's shares as scaled sums of outer products.

dot_general %x[t, d], %l[t, f]  =>  x, l        scatter %u[t, d] at %i[t]  =>  rows i[t], u
reduce %l[t, f]                 =>  ones, l     convolution %x, %l[t, f]   =>  patches of x at t, l
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import scatter_numbers
from hlo_surgery.passes.ir.element_types import dtype_of, wide_dtype, widened
from hlo_surgery.passes.strategies.ghost.ghost_paths import Path, factor_dims
from hlo_surgery.passes.terms.contracted_dims import Contracted, contracted
from hlo_surgery.passes.terms.convolution_patches import positions_of_convolution
from hlo_surgery.passes.terms.monomials.binary_exponents import (
    LOWEST,
    Scaled,
    as_scaled,
    exponent_of,
    inverse_of,
    product_of,
    times_power_of_two,
    traced_once,
)
from hlo_surgery.passes.terms.steps import Input

Given = Mapping[Input, jax.Array]


@partial(jax.tree_util.register_dataclass, data_fields=["x"], meta_fields=["rows"])
@dataclass(frozen=True)
class Factor:
    """[batch, positions, elements] of a factor of an outer product; for a scatter, row numbers.

    `rows`: how many rows there are, where `x` is [1, positions] of their numbers; -1 stands for
    none.
    """

    x: jax.Array
    rows: int | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Share:
    """One path of an example: two factors without scale, and the scale, of exponent LOWEST if 0."""

    first: Factor
    second: Factor
    scale: Scaled

    @property
    def factors(self) -> list[Factor]:
        """Both."""
        return [self.first, self.second]


def inner(one: Factor, other: Factor) -> jax.Array:
    """Inner products of two factors' elements, [batch, positions of one, positions of other]."""
    if one.rows is None and other.rows is None:
        if one.x.shape[1] == other.x.shape[1] == 1:
            # A sum that is fused with what makes its terms, where a contraction would need them in
            # memory.
            return jnp.sum(widened(one.x) * widened(other.x), 2, keepdims=True)
        return _contracted(one.x, other.x)
    if one.rows is not None and other.rows is not None:
        return ((one.x[:, :, None] == other.x[:, None, :]) & (one.x >= 0)[:, :, None]).astype(
            jnp.float32
        )
    if one.rows is None:
        taken = jnp.take(widened(one.x), other.x[0], axis=2, mode="clip")
        return jnp.where(other.x[:, None, :] >= 0, taken, 0)
    return jnp.swapaxes(inner(other, one), 1, 2)


def _contracted(one: jax.Array, other: jax.Array) -> jax.Array:
    """Inner products, every term and sum in at least float32. Matrix units multiply bfloat16 so in
    one pass.
    """
    exact = one.dtype == other.dtype == jnp.bfloat16
    return jnp.einsum(
        "gld,gmd->glm",
        *((one, other) if exact else (widened(one), widened(other))),
        precision=lax.Precision.DEFAULT if exact else lax.Precision.HIGHEST,
        preferred_element_type=wide_dtype(one.dtype),
    )


def shares_of(
    paths: Sequence[Path], given: Given, factor: Any, narrow: bool = False
) -> list[Share]:
    """The shares of one example, their factors over the same dimensions in the same order.

    `narrow`: those that come in bfloat16 stay in it. Nothing is rounded by that, as they are
    multiplied by powers of two alone, and bfloat16 has the exponents of float32.
    """
    leading = factor_dims(paths[0])
    shares: list[Share] = []
    for path in paths:
        share = _scaled(*factors_of(path, given))
        scale = product_of([share.scale, path_scale(path, given, factor)])
        swapped = factor_dims(path) != leading
        factors = [_narrowed(f) if narrow and is_narrow(path) else f for f in share.factors]
        first, second = reversed(factors) if swapped else factors
        shares.append(Share(first, second, scale))
    return shares


def _narrowed(factor: Factor) -> Factor:
    """The same in bfloat16; row numbers as they are."""
    return factor if factor.rows is not None else Factor(factor.x.astype(jnp.bfloat16))


def is_narrow(path: Path) -> bool:
    """Whether a site takes bfloat16 alone."""
    dtypes = [dtype_of(value) for value, _ in path.site.inputs if mlir.is_inexact(value)]
    return all(dtype == jnp.bfloat16 for dtype in dtypes)


def factors_of(path: Path, given: Given) -> tuple[Factor, jax.Array]:
    """A path's factors as they are, the second [batch, positions, elements]."""
    return FACTORS[path.site.op.name](path, given)


def path_scale(path: Path, given: Mapping[Input, jax.Array], factor: Any) -> Scaled:
    """The product of all numbers by which a path multiplies its site."""
    numbers = [as_scaled(jnp.asarray(-factor if path.negated else factor, jnp.float32))]
    for key, divides in path.scales:
        number = as_scaled(widened(given[key].ravel()[0]))
        numbers.append(inverse_of(number) if divides else number)
    return product_of(numbers)


def scaled_by(x: jax.Array, path: Path, given: Given, factor: Any) -> jax.Array:
    """What lies at a site, as it comes out at the end of the path."""
    scaled = x * (-factor if path.negated else factor)
    for key, divides in path.scales:
        number = given[key].ravel()[0].astype(x.dtype)
        scaled = scaled / number if divides else scaled * number
    return scaled


def _product(path: Path, given: Given) -> tuple[Factor, jax.Array]:
    """Both operands of a dot_general as [batch, positions, free]."""
    one, other = map(widened, operands_of(path, given))
    return Factor(one), other


def operands_of(path: Path, given: Given) -> tuple[jax.Array, jax.Array]:
    """The same, in their own element types."""
    left, right = contracted(path.site.op).values()
    first = len(left.batch)
    second = first + len(left.free)
    stacked = _positions_of(path.order, range(first))
    ends = range(first, second), range(second, second + len(right.free))
    one, other = (
        _laid_out(given[key], own, _positions_of(path.order, end), stacked)
        for key, own, end in zip(path.site.inputs, (left, right), ends, strict=True)
    )
    return one, other


def _positions_of(order: Sequence[int] | None, dims: range) -> list[int]:
    """The dimensions of one factor in the order in which the output has them; what it drops, of
    size 1, comes last.
    """
    kept = [d for d in order or () if d in dims]
    return [d - dims.start for d in (*kept, *(d for d in dims if d not in kept))]


def _factor(x: jax.Array, own: Contracted, order: Sequence[int]) -> jax.Array:
    """An operand without batch, laid out, in at least float32."""
    return widened(_laid_out(x, own, order))


def _laid_out(
    x: jax.Array, own: Contracted, order: Sequence[int], stacked: Sequence[int] = ()
) -> jax.Array:
    """[batch, positions, free], its free dimensions in this order, and its batch's as `stacked`."""
    batch = [own.batch[i] for i in stacked]
    moved = x.transpose(*batch, *own.summed, *(own.free[i] for i in order))
    sizes = [math.prod(x.shape[d] for d in dims) for dims in (own.batch, own.summed, own.free)]
    return moved.reshape(sizes)


def rows_of(path: Path, given: Given) -> tuple[jax.Array, jax.Array, int]:
    """A scatter's rows [positions], -1 where it has none, the updates [positions, window], and how
    many rows exist.
    """
    op = path.site.op
    numbers = scatter_numbers(op)
    _, indices, updates = (given[key] for key in path.site.inputs)
    shape = mlir.shape(op.operands[0])
    scattered = list(numbers.scattered_dims_to_operand_dims)
    order = _positions_of(path.order, range(len(shape)))
    columns = indices if numbers.index_vector_dim < indices.ndim else indices[..., None]
    columns = jnp.moveaxis(columns, numbers.index_vector_dim, -1).reshape(-1, len(scattered))
    rows, number, exists = (
        1,
        jnp.zeros(columns.shape[0], jnp.int32),
        jnp.ones(columns.shape[0], bool),
    )
    for dim in (d for d in order if d in scattered):
        column = columns[:, scattered.index(dim)]
        # A narrow type does not hold the table's length, and int32 not what a wide one may address
        # outside of it.
        column = column if column.dtype.itemsize > 4 else column.astype(jnp.int32)
        exists &= (column >= 0) & (column < shape[dim])
        rows, number = rows * shape[dim], number * shape[dim] + column.astype(jnp.int32)
    kept = [d for d in range(len(shape)) if d not in scattered]
    free = [kept.index(d) for d in order if d in kept]
    dense = _factor(updates, contracted(op)[2], free)
    dense = jnp.where(exists[:, None], dense, jnp.zeros_like(dense))
    return jnp.where(exists, number, -1), dense[0], rows


def _rows(path: Path, given: Given) -> tuple[Factor, jax.Array]:
    """A scatter's updates as [1, positions, window], and the numbers of their rows."""
    numbers, dense, rows = rows_of(path, given)
    return Factor(numbers[None], rows), dense[None]


def _ones(path: Path, given: Given) -> tuple[Factor, jax.Array]:
    """A sum as a product with ones."""
    own = contracted(path.site.op)[0]
    order = _positions_of(path.order, range(len(own.free)))
    second = _factor(given[path.site.inputs[0]], own, order)
    return Factor(jnp.ones_like(second[..., :1])), second


def _patches(path: Path, given: Given) -> tuple[Factor, jax.Array]:
    """A convolution as a sum over positions of patches times features."""
    image, window = (given[key] for key in path.site.inputs)
    first, second = positions_of_convolution(path.site.op, image, window)
    return Factor(widened(first[None])), widened(second[None])


FACTORS = {
    "stablehlo.convolution": _patches,
    "stablehlo.dot_general": _product,
    "stablehlo.scatter": _rows,
    "stablehlo.reduce": _ones,
}


@traced_once
def _scaled(first: Factor, second: jax.Array) -> Share:
    """Factors with elements of at most about 1, and their scale: no square overflows, and none that
    counts underflows.

    Each position has a scale of its own, since what is small in one factor may be large in the
    other.
    """
    if first.rows is not None:
        exponent = exponent_of(jnp.max(jnp.abs(second), initial=0), LOWEST)
        return _share(first, second, jnp.zeros_like(exponent), exponent)
    exponents = [
        exponent_of(jnp.max(jnp.abs(x), -1, keepdims=True, initial=0), LOWEST)
        for x in (first.x, second)
    ]
    largest = jnp.max(exponents[0] + exponents[1], initial=2 * LOWEST)
    return _share(Factor(_over(first.x, exponents[0])), second, exponents[0], largest)


def _share(first: Factor, second: jax.Array, taken: jax.Array, largest: jax.Array) -> Share:
    """A share whose second factor takes back the first's exponents `taken`, but the largest."""
    return Share(
        first, Factor(_over(second, largest - taken)), (jnp.ones((), second.dtype), largest)
    )


def _over(x: jax.Array, exponent: jax.Array) -> jax.Array:
    return times_power_of_two(x, jnp.where(exponent < LOWEST / 2, 0, -exponent))
