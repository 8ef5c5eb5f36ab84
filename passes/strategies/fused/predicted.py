"""Predicted: what a fused kernel takes, by the tiles that it has on the device."""

import math
from dataclasses import dataclass

import jax.numpy as jnp

from hlo_surgery.passes.costs.gradient_costs import Predicted, plain_seconds
from hlo_surgery.passes.costs.roofline import Roofline
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.strategies.einsums.einsums import Einsum
from hlo_surgery.passes.strategies.fused import mosaic, triton
from hlo_surgery.passes.strategies.fused.tiles import WORD
from hlo_surgery.passes.strategies.task import Task
from hlo_surgery.passes.terms.contracted_dims import contracted


@dataclass(frozen=True)
class KernelWork:
    """What a kernel is to make: of `size` examples, in each of `batch` layers, products of lengths
    (P, D, F), summed in so many ways. `width`: bytes of an element of the operands; `contracting`:
    the seconds by FLOPs alone.
    """

    size: int
    batch: int
    lengths: tuple[int, int, int]
    sums: int
    width: int
    contracting: float


def predicted(task: Task, path: Einsum, sums: int) -> Predicted:
    """The kernel; then the sums and the gradient, written and read by what follows, which XLA would
    have fused; instead of the plain gradient.
    """
    device, size, (site,) = task.device, task.counts.size, task.counts.sites
    own, other = contracted(path.site.op).values()
    batch, positions = math.prod(own.shape[d] for d in own.batch), own.positions // size
    lengths = (positions, own.elements // batch, other.elements // batch)
    width = max(dtype_of(value).itemsize for value in path.site.op.operands)
    contracting = site.flops / device.contraction_rate(positions, False, site.narrow)
    work = KernelWork(size, batch, lengths, sums + 1, width, contracting)
    made = batch * lengths[1] * lengths[2] * jnp.dtype(WORD).itemsize
    by = _by_triton if device.kernels == "triton" else _by_mosaic
    seconds = by(work, made, device) + 2 * work.sums * made / device.bandwidth
    # The gradient's own place is that of the plain one.
    return Predicted(seconds - plain_seconds(task.counts, device), sums * made)


def _by_mosaic(work: KernelWork, made: int, device: Roofline) -> float:
    """Contracting, or reading operands again for each tile, whichever is longer."""
    positions, left, right = work.lengths
    tiles = mosaic.tiling(*work.lengths)
    again = left * -(-right // tiles.right) + right * -(-left // tiles.left)
    read = work.size * positions * work.batch * again
    return max(work.contracting, read * work.width / device.bandwidth)


def _by_triton(work: KernelWork, made: int, device: Roofline) -> float:
    """Programs in waves, the last of which leaves multiprocessors idle; in each, examples one after
    the other. Operands are read again from the cache, which is never what is waited for. The sums
    of parts of the batch are written, and read to be added up.
    """
    positions, left, right = work.lengths
    tiles = triton.tiling(work.size, *work.lengths, work.sums)
    programs = work.batch * -(-left // tiles.left) * -(-right // tiles.right) * tiles.parts
    waves = -(-programs // triton.PROGRAMS)
    busy = programs / (waves * triton.PROGRAMS)
    examples = waves * work.size // tiles.parts
    waiting = examples * triton.waiting_seconds(positions, tiles)
    moved = 2 * tiles.parts * work.sums * made if tiles.parts > 1 else 0
    contracting = work.contracting / (device.kernel_rate or 1) / busy
    return contracting + waiting + moved / device.bandwidth
