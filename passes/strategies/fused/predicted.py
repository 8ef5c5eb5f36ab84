"""Predicted: what a fused kernel takes, by the tiles that it has on the device."""

import math
from dataclasses import dataclass

import jax.numpy as jnp

from hlo_surgery.passes.costs.gradient_costs import Predicted, plain_seconds
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.strategies.fused import mosaic, triton
from hlo_surgery.passes.strategies.fused.tiles import WORD
from hlo_surgery.passes.strategies.ghost.ghost_paths import Path
from hlo_surgery.passes.strategies.task import Task
from hlo_surgery.passes.terms.contracted_dims import contracted


@dataclass(frozen=True)
class Tiled:
    """What a kernel does beside contracting: the elements of operands that it reads for each
    position, those that it moves while nothing is computed, and which part of the device is busy.
    """

    read: int
    alone: int
    busy: float = 1


def predicted(task: Task, path: Path, sums: int) -> Predicted:
    """Contracting, or reading operands again for each tile, whichever is longer; then the sums and
    the gradient, written and read by what follows, which XLA would have fused; instead of the plain
    gradient.
    """
    device, size, (site,) = task.device, task.counts.size, task.counts.sites
    own, other = contracted(path.site.op).values()
    batch, positions = math.prod(own.shape[d] for d in own.batch), own.positions // size
    lengths = (positions, own.elements // batch, other.elements // batch)
    width = max(dtype_of(value).itemsize for value in path.site.op.operands)
    by = _by_triton if device.kernels == "triton" else _by_mosaic
    tiled = by(size, lengths, sums + 1, batch)
    contracting = site.flops / device.contraction_rate(positions, False, site.narrow)
    read = size * positions * batch * tiled.read * width
    reading = read / (device.reread or device.bandwidth)
    made = batch * lengths[1] * lengths[2] * jnp.dtype(WORD).itemsize
    written = 2 * (1 + sums) * made + tiled.alone * width
    seconds = max(contracting, reading) / tiled.busy + written / device.bandwidth
    # The gradient's own place is that of the plain one.
    return Predicted(seconds - plain_seconds(task.counts, device), sums * made)


def _by_mosaic(size: int, lengths: tuple[int, int, int], sums: int, batch: int) -> Tiled:
    """The first tile is waited for, and the last one's sums."""
    _, left, right = lengths
    tiles = mosaic.tiling(*lengths)
    read = left * -(-right // tiles.right) + right * -(-left // tiles.left)
    first = tiles.positions * (tiles.left + tiles.right)
    last = sums * tiles.left * tiles.right
    return Tiled(read, first + last)


def _by_triton(size: int, lengths: tuple[int, int, int], sums: int, batch: int) -> Tiled:
    """Multiprocessors without a program are idle."""
    _, left, right = lengths
    tiles = triton.tiling(size, *lengths, sums)
    high, wide = -(-left // tiles.left), -(-right // tiles.right)
    busy = min(1, batch * high * wide * tiles.parts / triton.PROGRAMS)
    return Tiled(left * wide + right * high, 0, busy)
