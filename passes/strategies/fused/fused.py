"""Fused: one kernel contracts each example alone, and sums products and phi of them as it goes.

    %g = dot_general %h[b, t, d], %l[b, t, f] over b, t
        =>  for a tile of [d, f], for each b: M = %h[b, :, d]' %l[b, :, f]
                                              g += M ; statistic += phi(M)

The FLOPs of the plain gradient, which comes along, and one reading of the operands. What is as
large as a gradient of each example is nowhere in main memory.
"""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hlo_surgery.passes.costs.gradient_costs import Predicted
from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import precision
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.measures.measure import Measure
from hlo_surgery.passes.measures.measures import MeanOf, Norms
from hlo_surgery.passes.measures.real_examples import without_padding
from hlo_surgery.passes.measures.scaled_norms import norms_of_rows
from hlo_surgery.passes.strategies.fused.elementwise import of_tiles
from hlo_surgery.passes.strategies.fused.mosaic import summed_products as by_mosaic
from hlo_surgery.passes.strategies.fused.predicted import predicted
from hlo_surgery.passes.strategies.fused.tiles import WORD, Parts, Products, Take, norm_of
from hlo_surgery.passes.strategies.fused.triton import summed_products as by_triton
from hlo_surgery.passes.strategies.ghost.ghost_factors import operands_of, path_scale, scaled_by
from hlo_surgery.passes.strategies.ghost.ghost_paths import Path, ghost_paths
from hlo_surgery.passes.strategies.strategy import Asked, Computed, Measured, Strategy, one_by_one
from hlo_surgery.passes.strategies.task import Known, Schedule, Task
from hlo_surgery.passes.terms.contracted_dims import contracted
from hlo_surgery.passes.terms.epilogue import Does, moving, reading_of
from hlo_surgery.passes.terms.monomials.binary_exponents import times_power_of_two
from hlo_surgery.passes.terms.slice_functions import over_examples

Phi = Callable[[jax.Array], jax.Array]
OPERANDS = ("bfloat16", "float16", "float32")
# Kernels address in 32 bits.
MOST_ELEMENTS = 1 << 31
# Numbers of examples that fit beside a TPU's scalar unit.
MOST_EXAMPLES = 1 << 14


def _applies(task: Task, measure: Measure) -> bool:
    """Whether an example's gradient is one product of two matrices, moved as a whole and times a
    number, and the measure takes what a tile of it tells.
    """
    path = _only_path(task)
    return path is not None and _is_one_product(task, path) and _is_by_tiles(task, measure)


def _only_path(task: Task) -> Path | None:
    """From the only site to the gradient, but in the site's own order."""
    alone = len(task.sliced.sites) == 1
    paths = ghost_paths(task.sliced) if alone else None
    return replace(paths[0], order=None) if paths and len(paths) == 1 else None


def _is_one_product(task: Task, path: Path) -> bool:
    op = path.site.op
    dense = op.name == "stablehlo.dot_general"
    return dense and _fits(task, op) and _sums_examples(path) and _only_moves(task)


def _fits(task: Task, op: mlir.Operation) -> bool:
    """Whether a kernel can contract these operands."""
    shapes = [mlir.shape(value) for value in op.operands]
    kinds = [str(dtype_of(value)) for value in [*op.operands, op.results[0]]]
    sizes = list(map(math.prod, [*shapes, mlir.shape(op.results[0])]))
    return (
        all(kind in OPERANDS for kind in kinds)
        and all(0 < size < MOST_ELEMENTS for size in sizes)
        and task.examples.size <= MOST_EXAMPLES
    )


def _sums_examples(path: Path) -> bool:
    """Whether both operands hold the examples along what is contracted."""
    dims = zip(contracted(path.site.op).values(), path.site.inputs, strict=True)
    return all(isinstance(axis, PerExample) and axis.dim in own.summed for own, (_, axis) in dims)


def _only_moves(task: Task) -> bool:
    """Whether nothing stands beside the products at the end."""
    links = [reading_of(step, task.sliced.made) for step in task.sliced.tail]
    return all(link is not None and link.does is not Does.PADS for link in links)


def _is_by_tiles(task: Task, measure: Measure) -> bool:
    if isinstance(measure, MeanOf):
        return _phi(task, measure) is not None
    # Where weights rest on norms, `task.paths` says whether these may be of what is not rounded.
    return isinstance(measure, Norms) and measure.ord == 2 and bool(task.paths)


def _phi(task: Task, measure: MeanOf) -> Phi | None:
    return of_tiles(lambda g: measure.each(g, None), mlir.shape(task.sliced.value))


def _predict(task: Task, measures: Sequence[Measure], schedule: Schedule) -> Predicted:
    """All that it makes, and the gradient, in one kernel."""
    path = _only_path(task)
    assert path is not None
    return predicted(task, path, sum(isinstance(measure, MeanOf) for measure in measures))


def _pays(task: Task, measure: Measure, schedule: Schedule, otherwise: Predicted) -> bool:
    """Whether it takes less time, where kernels were measured: of sums, with operands of 16
    bits.
    """
    (site,) = task.counts.sites
    measured = task.device.kernel_rate > 0 and site.narrow and isinstance(measure, MeanOf)
    return measured and _predict(task, [measure], schedule).seconds < otherwise.seconds


def _emit(asked: Asked, known: Known) -> Computed:
    task, reuse, path = asked.task, asked.chosen.reuse, _only_path(asked.task)
    assert path is not None
    means = [measure for measure in asked.measures if isinstance(measure, MeanOf)]
    norms = [measure for measure in asked.measures if isinstance(measure, Norms)]
    phis = [_phi(task, measure) for measure in means]

    def take(own: jax.Array, numbers: Sequence[jax.Array]) -> Parts:
        scales, real = numbers[:count_scales], numbers[count_scales:]
        g = reduce(operator.mul, scales, own)
        kept = [_of_real(phi(g), *real) for phi in phis if phi is not None]
        return Parts([*kept, *([own] if reuse else [])], [norm_of(g)] if norms else [])

    scales = _scales(task, path, known)
    count_scales = len(scales)
    numbers = _by_example(task, scales, task.examples.flags(known))
    sums, rows = _run(task, path, _operands(task, path, known), numbers, take)
    count, padding = task.examples.count(known), task.examples.padding(known)
    measured: Measured = {
        measure: measure.whole(_moved(task, path, x), count)
        for measure, x in zip(means, sums, strict=False)
    }
    for measure in norms:
        measured[measure] = without_padding(norms_of_rows(rows[0]), padding)
    return Computed(measured, _gradient(task, path, known, sums[-1]) if reuse else None)


def weighted_sum(
    task: Task, known: Known, weights: jax.Array, finite: jax.Array | None, phi: Phi | None
) -> jax.Array:
    """The sum over b of w_b g_b, or of phi of it, as the gradient lies; of the `finite` alone."""
    path = _only_path(task)
    assert path is not None
    each = of_tiles(phi or _itself, mlir.shape(task.sliced.value))
    assert each is not None
    scales = _scales(task, path, known)
    last = len(scales)

    def take(own: jax.Array, numbers: Sequence[jax.Array]) -> Parts:
        g = reduce(operator.mul, numbers[:last], own) * numbers[last]
        return Parts([_of_real(each(g), *numbers[last + 1 :])])

    numbers = _by_example(task, [*scales, weights], finite)
    (total,), _ = _run(task, path, _operands(task, path, known), numbers, take)
    return _moved(task, path, total)


def _itself(g: jax.Array) -> jax.Array:
    return g


def _operands(task: Task, path: Path, known: Known) -> tuple[jax.Array, jax.Array]:
    """Both as [B, batch, positions, elements], of one type; `batch`: of the site, as layers."""

    def of_one(*operands: jax.Array) -> tuple[jax.Array, jax.Array]:
        return operands_of(path, dict(zip(task.function.inputs, operands, strict=True)))

    a, d = over_examples(task.function, known, task.examples.size, of_one)
    kind = jnp.promote_types(a.dtype, d.dtype)
    return a.astype(kind), d.astype(kind)


def _precision(path: Path, kind: jnp.dtype) -> lax.Precision:
    """Kernels contract float32 in one pass or exactly, and products of narrower ones are exact."""
    if kind != WORD:
        return lax.Precision.DEFAULT
    asked = precision(path.site.op) or ()
    plain = all(one == lax.Precision.DEFAULT for one in asked)
    return lax.Precision.DEFAULT if plain else lax.Precision.HIGHEST


def _scales(task: Task, path: Path, known: Known) -> list[Any]:
    """What an example's product is multiplied by: in two factors where one might leave the range of
    floats that their product keeps.
    """
    factor = task.examples.factor(known)
    if not path.scales and isinstance(factor, int):
        return [-factor if path.negated else factor]
    given = {key: known[key[0]] for key, _ in path.scales}
    mantissa, exponent = path_scale(path, given, factor)
    half = jnp.trunc(exponent / 2)
    one = jnp.ones_like(mantissa)
    return [times_power_of_two(mantissa, half), times_power_of_two(one, exponent - half)]


def _by_example(task: Task, factors: Sequence[Any], counted: jax.Array | None) -> jax.Array:
    """Numbers of each example, [B, k]: its factors, and whether it counts, where not all do."""
    columns = [*factors, *([] if counted is None else [counted])]
    size = (task.examples.size,)
    return jnp.stack([jnp.broadcast_to(jnp.asarray(x, WORD), size) for x in columns], 1)


def _of_real(taken: jax.Array, *real: jax.Array) -> jax.Array:
    return jnp.where(real[0] > 0, taken, jnp.zeros_like(taken)) if real else taken


def _run(
    task: Task,
    path: Path,
    operands: tuple[jax.Array, jax.Array],
    numbers: jax.Array,
    take: Take,
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Sums [batch, D, F], and rows [B, tiles], by the kernel of the device; where it has none,
    interpreted.
    """
    precision = _precision(path, operands[0].dtype)
    interpret = task.device.kernels is None
    by = by_triton if task.device.kernels == "triton" else by_mosaic

    def run(a: jax.Array, d: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
        return by(Products(a, d, numbers, take, precision), interpret)

    if operands[0].shape[1] == 1:
        return run(*(x[:, 0] for x in operands))
    sums, rows = jax.vmap(run, (1, 1))(*operands)
    return sums, [jnp.moveaxis(x, 1, 0).reshape(task.examples.size, -1) for x in rows]


def _moved(task: Task, path: Path, x: jax.Array) -> jax.Array:
    """[batch, D, F] as the gradient lies."""
    made = path.site.op.results[0]
    known = {made: x.reshape(mlir.shape(made))}
    for step in task.sliced.tail:
        link = reading_of(step, known)
        assert link is not None
        value = known[step.inputs[link.sums[0]][0]]
        move = moving(link.op) if link.does is Does.MOVES else None
        known[link.made] = value if move is None else move(value)[0]
    return known[task.sliced.value]


def _gradient(task: Task, path: Path, known: Known, total: jax.Array) -> jax.Array:
    """The minibatch gradient from the sum of the products."""
    given = {key: known[key[0]] for key, _ in path.scales}
    return task.rounded(_moved(task, path, scaled_by(total, path, given, 1)))


FUSED = Strategy(
    "fused",
    _applies,
    _predict,
    one_by_one(_emit),
    _pays,
    words="one kernel sums the gradient and phi of each example's, tile by tile",
)
