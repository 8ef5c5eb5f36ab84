"""Fused: one kernel contracts each example alone, and sums products and phi of them as it goes.

    %g = dot_general %h[b, t, d], %l[b, t, f] over b, t
        =>  for a tile of [d, f], for each b: M = %h[b, :, d]' %l[b, :, f]
                                              g += M ; statistic += phi(M)

The FLOPs of the plain gradient, which comes along, and one reading of the operands. What is as
large as a gradient of each example is nowhere in main memory.

Predicted: what a fused kernel takes, by the tiles that it has on the device.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import Arrays, dtype_of
from hlo_surgery.passes.ir.traits import precision
from hlo_surgery.passes.measures.measures import MeanOf, Measure, Phi
from hlo_surgery.passes.strategies.einsums import mosaic, triton
from hlo_surgery.passes.strategies.einsums.einsums import Einsum, einsums_of
from hlo_surgery.passes.strategies.einsums.factors import operands_of, scale_of, scaled_by
from hlo_surgery.passes.strategies.einsums.mosaic import WORD, Products
from hlo_surgery.passes.strategies.gradient_costs import (
    Predicted,
    Roofline,
    Schedule,
    plain_seconds,
)
from hlo_surgery.passes.strategies.strategy import (
    Asked,
    Chosen,
    Computed,
    Measured,
    Measures,
    Strategy,
    Task,
    one_by_one,
)
from hlo_surgery.passes.terms.epilogue import Does, moving, reading_of
from hlo_surgery.passes.terms.scaling import near_power_of_two
from hlo_surgery.passes.terms.slice_functions import over_examples
from hlo_surgery.passes.terms.steps import GradientSlice, Known, Step, contracted


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


OPERANDS = ("bfloat16", "float16", "float32")
# Kernels address in 32 bits.
MOST_ELEMENTS = 1 << 31
# Numbers of examples that fit beside a TPU's scalar unit.
MOST_EXAMPLES = 1 << 14


def _applies(task: Task, measure: Measure) -> bool:
    """Whether an example's gradient is one product of two matrices, moved as a whole and times a
    number, and the measure is the mean of a power, an absolute value or a sign: of a phi that is
    given nothing shows what a kernel makes of a tile, or whether it has the ops.
    """
    if not isinstance(measure, MeanOf) or not measure.factorable or measure.is_given:
        return False
    if not _is_one_product(task.sliced):
        return False
    # Mosaic asks for the device that is here to lower a sign.
    lacking = task.device.kernels == "mosaic" and measure.phi is jnp.sign
    return not lacking and task.examples.size <= MOST_EXAMPLES


def _is_one_product(sliced: GradientSlice) -> bool:
    """Whether nothing stands beside the products of its only site, which kernels can contract."""
    if len(sliced.sites) != 1 or len(einsums_of(sliced)) != 1:
        return False
    (site,) = sliced.sites
    links = [reading_of(step, sliced.made) for step in sliced.tail]
    only_moves = all(link is not None and link.does is not Does.PADS for link in links)
    return site.op.name == "stablehlo.dot_general" and only_moves and _fits(site)


def _fits(site: Step) -> bool:
    """Whether a kernel can contract these operands, along dimensions that hold the examples."""
    values = [*site.op.operands, site.op.result]
    kinds = all(str(dtype_of(value)) in OPERANDS for value in values)
    sizes = all(0 < math.prod(mlir.shape(value)) < MOST_ELEMENTS for value in values)
    dims = zip(contracted(site.op).values(), site.inputs, strict=True)
    sums = all(isinstance(axis, PerExample) and axis.dim in own.summed for own, (_, axis) in dims)
    return kinds and sizes and sums


def _path(task: Task) -> Einsum:
    """From the only site to the gradient, but in the site's own order."""
    return replace(einsums_of(task.sliced)[0], order=None)


def _phi(measure: MeanOf) -> Phi:
    return partial(measure.each, mean=None)


def _predict(task: Task, measures: Measures, schedule: Schedule) -> Predicted:
    """All that it makes, and the gradient, in one kernel."""
    return predicted(task, _path(task), len(measures))


def _pays(task: Task, measure: Measure, schedule: Schedule, otherwise: Predicted) -> bool:
    """Whether it takes less time, where kernels were measured: with operands of 16 bits."""
    (site,) = task.counts.sites
    measured = task.device.kernel_rate > 0 and site.narrow
    return measured and _predict(task, [measure], schedule).seconds < otherwise.seconds


def _emit(asked: Asked, known: Known) -> Computed:
    task, reuse = asked.task, asked.chosen.reuse
    means = [measure for measure in asked.measures if isinstance(measure, MeanOf)]
    phis = [_phi(measure) for measure in means]
    sums = _sums(task, known, phis, [], task.examples.flags(known), reuse)
    count = task.examples.count(known)
    measured: Measured = {m: m.whole(x, count) for m, x in zip(means, sums, strict=False)}
    gradient = task.rounded(scaled_by(sums[-1], _path(task), known, 1)) if reuse else None
    return Computed(measured, gradient)


def weighted_sum(
    chosen: Chosen, known: Known, weights: Array, finite: Array | None, phi: Phi | None
) -> Array:
    """The sum over b of w_b g_b, or of phi of it, elementwise, as the gradient lies; of the
    `finite` alone.
    """
    task = chosen.task
    (total,) = _sums(task, known, [phi or (lambda g: g)], [weights], finite)
    return total


def _sums(
    task: Task,
    known: Known,
    phis: Sequence[Phi],
    weights: Arrays,
    counted: Array | None,
    plain: bool = False,
) -> Arrays:
    """Sums over the examples that are `counted` of each function of w_b g_b, as the gradient lies,
    by the kernel of the device; where it has none, interpreted. Last, if `plain`, of the products
    alone.
    """
    path = _path(task)
    factors = [*_scales(task, path, known), *weights]
    last, columns = len(factors), [*factors, *([] if counted is None else [counted])]

    def take(own: Array, numbers: Arrays) -> Arrays:
        g = reduce(operator.mul, numbers[:last], own)
        found = [phi(g) for phi in phis]
        for real in numbers[last:]:
            found = [jnp.where(real > 0, x, jnp.zeros_like(x)) for x in found]
        return [*found, own] if plain else found

    spread = [jnp.broadcast_to(jnp.asarray(x, WORD), task.examples.size) for x in columns]
    operands = _operands(task, path, known)
    how = _precision(path, operands[0].dtype)
    kernel = triton if task.device.kernels == "triton" else mosaic

    def run(a: Array, d: Array) -> Arrays:
        products = Products(a, d, jnp.stack(spread, 1), take, len(phis) + plain, how)
        # Kernels count in 32 bits.
        with jax.enable_x64(False):
            return kernel.summed_products(products, interpret=task.device.kernels is None)

    is_single = operands[0].shape[1] == 1
    sums = run(*(x[:, 0] for x in operands)) if is_single else jax.vmap(run, (1, 1))(*operands)
    return [_moved(task.sliced, x) for x in sums]


def _operands(task: Task, path: Einsum, known: Known) -> tuple[Array, Array]:
    """Both as [B, batch, positions, elements], of one type; `batch`: of the site, as layers."""

    def of_one(*operands: Array) -> tuple[Array, Array]:
        return operands_of(path, dict(zip(task.function.inputs, operands, strict=True)))

    a, d = over_examples(task.function, known, task.examples.size, of_one)
    kind = jnp.promote_types(a.dtype, d.dtype)
    return a.astype(kind), d.astype(kind)


def _precision(path: Einsum, kind: jnp.dtype) -> lax.Precision:
    """Kernels contract float32 in one pass or exactly, and products of narrower ones are exact."""
    if kind != WORD:
        return lax.Precision.DEFAULT
    asked = precision(path.site.op) or ()
    plain = all(one == lax.Precision.DEFAULT for one in asked)
    return lax.Precision.DEFAULT if plain else lax.Precision.HIGHEST


def _scales(task: Task, path: Einsum, known: Known) -> list[Any]:
    """What an example's product is multiplied by: in two factors where one might leave the range of
    floats that their product keeps.
    """
    factor = task.examples.factor(known)
    if not path.scales and isinstance(factor, int):
        return [-factor if path.negated else factor]
    scale = scale_of(task, path, known)
    half = near_power_of_two(jnp.sqrt(jnp.abs(scale)))
    return [scale / half, half]


def _moved(sliced: GradientSlice, x: Array) -> Array:
    """[batch, D, F] as the gradient lies."""
    made = sliced.sites[0].op.results[0]
    known = {made: x.reshape(mlir.shape(made))}
    for step in sliced.tail:
        link = reading_of(step, known)
        assert link is not None
        value = known[step.inputs[link.sums[0]][0]]
        move = moving(link.op) if link.does is Does.MOVES else None
        known[link.made] = value if move is None else move(value)[0]
    return known[sliced.value]


FUSED = Strategy(
    "fused",
    _applies,
    _predict,
    one_by_one(_emit),
    _pays,
    words="one kernel for gradient and phi, tile by tile",
)
