"""Mosaic: a fused kernel for TPU, and, interpreted, for CPU.

grid (D / Dt, F / Ft, B, P / Pt), the last two one after the other: the product of an example grows
over its positions in scratch memory, and what is taken of it is added to the tiles that are
returned, which stay on the chip over all examples.

Tiles: what a kernel takes of the products of each example, a tile [Dt, Ft] at a time.

for a tile of [D, F], and in it for each example b:
    M_b = a[b, :, tile]' d[b, :, tile]          float32, never in main memory
    sums += take(M_b)
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from hlo_surgery.passes.ir.constants import Arrays

WORD = jnp.float32


# Of a tile [Dt, Ft] in float32, and of the example's own numbers: tiles to be summed.
Take = Callable[[Array, Arrays], Arrays]


@dataclass(frozen=True)
class Products:
    """Operands of a site, a[B, P, D] and d[B, P, F], numbers of each example, [B, k] in float32,
    and what is taken of each example's products: so many tiles to be summed.
    """

    a: Array
    d: Array
    numbers: Array
    take: Take
    sums: int
    precision: jax.lax.Precision = jax.lax.Precision.DEFAULT

    @property
    def size(self) -> int:
        """B."""
        return self.a.shape[0]

    @property
    def lengths(self) -> tuple[int, int, int]:
        """P, D and F."""
        return self.a.shape[1], self.a.shape[2], self.d.shape[2]

    def of(self, a: Array, d: Array) -> Array:
        """Of one example, or of a tile of it: [P, D] and [P, F] to [D, F]."""
        along = (((0,), (0,)), ((), ()))
        how = self.precision
        return lax.dot_general(a, d, along, precision=how, preferred_element_type=WORD)


# A register holds 8 x 128 numbers of 32 bits; narrower ones lie in pairs or fours of rows.
ROWS, LANES = 32, 128
FREE, POSITIONS = 512, 2048
MEMORY = 100 << 20


@dataclass(frozen=True)
class Tiling:
    """How long tiles are along positions and both free dimensions, and of how many parts of the
    batch the sums are made.
    """

    positions: int
    left: int
    right: int
    parts: int = 1


def padded(products: Products, tiles: Tiling) -> tuple[Array, Array]:
    """Both operands with zeros behind, so that whole tiles cover them.

    Zeros add nothing to products, so that of padded elements all products are zero.
    """
    a = _padded(products.a, (tiles.positions, tiles.left))
    return a, _padded(products.d, (tiles.positions, tiles.right))


def _padded(x: Array, multiples: tuple[int, int]) -> Array:
    behind = [-size % tile for size, tile in zip(x.shape[1:], multiples, strict=True)]
    return jnp.pad(x, [(0, 0), *((0, more) for more in behind)]) if any(behind) else x


def tiling(positions: int, left: int, right: int) -> Tiling:
    """Whole dimensions where they are short; else as long as scratch memory has room for."""
    return Tiling(
        _tile(positions, POSITIONS, ROWS), _tile(left, FREE, LANES), _tile(right, FREE, LANES)
    )


def _tile(length: int, longest: int, unit: int) -> int:
    """The longest of at most `longest` that divides it; where that is short, padding does."""
    if length <= longest:
        return length
    whole = -(-length // unit) * unit
    fitting = [n for n in range(unit, longest + 1, unit) if whole % n == 0]
    return fitting[-1] if fitting[-1] * 2 > longest else longest


def summed_products(products: Products, interpret: bool) -> Arrays:
    """What is taken of the products, summed over examples, [D, F] each."""
    products, tiles = _loadable(products), tiling(*products.lengths)
    a, d = padded(products, tiles)
    size, steps = products.size, a.shape[1] // tiles.positions
    high, wide = a.shape[2] // tiles.left, d.shape[2] // tiles.right
    made = pl.BlockSpec((tiles.left, tiles.right), lambda i, j, b, p: (i, j))
    found = pl.pallas_call(
        partial(_kernel, products, steps),
        grid=(high, wide, size, steps),
        in_specs=[
            pl.BlockSpec(memory_space=pltpu.SMEM),
            pl.BlockSpec((1, tiles.positions, tiles.left), lambda i, j, b, p: (b, p, i)),
            pl.BlockSpec((1, tiles.positions, tiles.right), lambda i, j, b, p: (b, p, j)),
        ],
        out_specs=[made] * products.sums,
        out_shape=[jax.ShapeDtypeStruct((a.shape[2], d.shape[2]), WORD)] * products.sums,
        scratch_shapes=[pltpu.VMEM((tiles.left, tiles.right), WORD)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary", "arbitrary"),
            vmem_limit_bytes=MEMORY,
        ),
        interpret=interpret,
        name="fused",
    )(products.numbers.ravel(), a, d)
    _, left, right = products.lengths
    return [x[:left, :right] for x in found]


def _loadable(products: Products) -> Products:
    """Not every TPU loads float16."""
    if products.a.dtype != jnp.float16:
        return products
    a, d = products.a.astype(WORD), products.d.astype(WORD)
    return replace(products, a=a, d=d, precision=lax.Precision.HIGHEST)


def _kernel(products: Products, steps: int, *refs: Any) -> None:
    numbers, a, d, *sums, product = refs
    count = products.numbers.shape[1]
    example, step = pl.program_id(2), pl.program_id(3)

    @pl.when(step == 0)
    def _() -> None:
        product[...] = jnp.zeros_like(product)

    @pl.when((step == 0) & (example == 0))
    def _() -> None:
        for ref in sums:
            ref[...] = jnp.zeros_like(ref)

    product[...] += products.of(a[0], d[0])

    @pl.when(step == steps - 1)
    def _() -> None:
        given = [numbers[example * count + i] for i in range(count)]
        for ref, part in zip(sums, products.take(product[...], given), strict=True):
            ref[...] += part
