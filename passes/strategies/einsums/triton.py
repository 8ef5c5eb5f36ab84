"""Triton: a fused kernel for GPU.

grid (D / Dt, F / Ft, parts of the batch): a program loops over its examples, and within one over
its positions; all sums are in registers until the end. Where tiles are too few for the GPU, parts
of the batch have sums of their own, which are added up behind.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from hlo_surgery.passes.ir.constants import Arrays
from hlo_surgery.passes.strategies.einsums.mosaic import WORD, Products, Tiling, padded

# Powers of two, as Triton takes no others. Registers hold the products and two sums of 64 x 128,
# and more sums of half as many. Of seven tilings this was the fastest on an H200, or within 7 % of
# it, at five of six sites (the table of tilings in tools/RESULTS.md).
LEFT, RIGHT, POSITIONS, LEAST = 64, 128, 64, 16
WARPS, STAGES = 4, 3
# Programs that run at the same time, two on each of an H100's or H200's multiprocessors.
PROGRAMS = 264
# Seconds for each example of a program beside the contraction, and where a pipeline over several
# steps of positions is to be filled; fitted to the times of that table.
TAKING, FILLING = 0.33e-6, 0.57e-6
KIND = "NVIDIA H200"


def tiling(size: int, positions: int, left: int, right: int, sums: int) -> Tiling:
    """For a batch of this size, and so many sums."""
    high = _tile(left, LEFT)
    wide = _tile(right, RIGHT if sums <= 2 else RIGHT // 2)
    tiles = pl.cdiv(left, high) * pl.cdiv(right, wide)
    most = max(1, PROGRAMS // tiles)
    parts = max(n for n in range(1, size + 1) if size % n == 0 and n <= most)
    at_once = 1 if positions == 1 else _tile(positions, POSITIONS)
    return Tiling(at_once, high, wide, parts)


def waiting_seconds(positions: int, tiles: Tiling) -> float:
    """What a program takes for an example beside contracting it."""
    at_once = 1 < positions <= tiles.positions
    return TAKING if at_once else TAKING + FILLING


def _tile(length: int, longest: int) -> int:
    return min(longest, max(LEAST, pl.next_power_of_2(length)))


def summed_products(products: Products, interpret: bool) -> Arrays:
    """What is taken of the products, summed over examples, [D, F] each."""
    tiles = tiling(products.size, *products.lengths, products.sums)
    a, d = padded(products, tiles)
    shape = tiles.parts, a.shape[2], d.shape[2]
    called = pl.pallas_call(
        partial(_kernel, products, tiles),
        grid=(a.shape[2] // tiles.left, d.shape[2] // tiles.right, tiles.parts),
        out_shape=[jax.ShapeDtypeStruct(shape, WORD)] * products.sums,
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=STAGES),
        interpret=interpret,
        name="fused",
    )
    with _known_gpu(interpret):
        found = called(products.numbers, a, d)
    _, left, right = products.lengths
    return [jnp.sum(x[:, :left, :right], 0) for x in found]


def _known_gpu(interpret: bool) -> AbstractContextManager[Any]:
    """Since 0.12 JAX asks for the kind of a GPU before it lowers a kernel, also where none is here;
    XLA compiles it for the one at hand, whichever that is.
    """
    if interpret or jax.default_backend() == "gpu":
        return nullcontext()
    device = AbstractDevice(device_kind=KIND, num_cores=None, platform="gpu")
    return use_abstract_mesh(AbstractMesh((), (), abstract_device=device))


def _kernel(products: Products, tiles: Tiling, *refs: Any) -> None:
    numbers, a, d, *made = refs
    i, j, part = (pl.program_id(axis) for axis in range(3))
    rows, columns = pl.ds(i * tiles.left, tiles.left), pl.ds(j * tiles.right, tiles.right)
    nothing = jnp.zeros((tiles.left, tiles.right), WORD)

    def product(example: Array) -> Array:
        if tiles.positions == 1:
            x, y = (ref[example, 0, taken].astype(WORD) for ref, taken in ((a, rows), (d, columns)))
            return x[:, None] * y[None, :]

        def longer(position: Array, own: Array) -> Array:
            taken = pl.ds(position * tiles.positions, tiles.positions)
            return own + products.of(a[example, taken, rows], d[example, taken, columns])

        return lax.fori_loop(0, a.shape[1] // tiles.positions, longer, nothing)

    def with_example(example: Array, found: Arrays) -> Arrays:
        own = [numbers[example, k] for k in range(products.numbers.shape[1])]
        parts = products.take(product(example), own)
        return tuple(x + value for x, value in zip(found, parts, strict=True))

    count = products.size // tiles.parts
    first = part * count
    found = lax.fori_loop(first, first + count, with_example, (nothing,) * products.sums)
    for ref, total in zip(made, found, strict=True):
        ref[part, rows, columns] = total
