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
from functools import partial, reduce
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
from hlo_surgery.passes.measures.measures import MeanOf
from hlo_surgery.passes.strategies.einsums.einsums import Einsum, einsums_of
from hlo_surgery.passes.strategies.einsums.factors import operands_of, scale_of, scaled_by
from hlo_surgery.passes.strategies.fused.elementwise import is_elementwise
from hlo_surgery.passes.strategies.fused.mosaic import summed_products as by_mosaic
from hlo_surgery.passes.strategies.fused.predicted import predicted
from hlo_surgery.passes.strategies.fused.tiles import WORD, Products
from hlo_surgery.passes.strategies.fused.triton import summed_products as by_triton
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


def _only_path(task: Task) -> Einsum | None:
    """From the only site to the gradient, but in the site's own order."""
    alone = len(task.sliced.sites) == 1
    einsums = einsums_of(task.sliced) if alone else []
    return replace(einsums[0], order=None) if len(einsums) == 1 else None


def _is_one_product(task: Task, path: Einsum) -> bool:
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


def _sums_examples(path: Einsum) -> bool:
    """Whether both operands hold the examples along what is contracted."""
    dims = zip(contracted(path.site.op).values(), path.site.inputs, strict=True)
    return all(isinstance(axis, PerExample) and axis.dim in own.summed for own, (_, axis) in dims)


def _only_moves(task: Task) -> bool:
    """Whether nothing stands beside the products at the end."""
    links = [reading_of(step, task.sliced.made) for step in task.sliced.tail]
    return all(link is not None and link.does is not Does.PADS for link in links)


def _is_by_tiles(task: Task, measure: Measure) -> bool:
    """Whether it is the mean of a function that kernels can take of tiles."""
    if not isinstance(measure, MeanOf):
        return False
    # Mosaic asks for the device that is here to lower a sign.
    lacking = ["sign"] if task.device.kernels == "mosaic" else []
    return is_elementwise(_phi(measure), mlir.shape(task.sliced.value), lacking)


def _phi(measure: MeanOf) -> Phi:
    return partial(measure.each, mean=None)


def _predict(task: Task, measures: Sequence[Measure], schedule: Schedule) -> Predicted:
    """All that it makes, and the gradient, in one kernel."""
    path = _only_path(task)
    assert path is not None
    return predicted(task, path, len(measures))


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
    count, path = task.examples.count(known), _only_path(task)
    assert path is not None
    measured: Measured = {
        measure: measure.whole(_moved(task, path, x), count)
        for measure, x in zip(means, sums, strict=False)
    }
    return Computed(measured, _gradient(task, path, known, sums[-1]) if reuse else None)


def weighted_sum(
    task: Task, known: Known, weights: jax.Array, finite: jax.Array | None, phi: Phi | None
) -> jax.Array:
    """The sum over b of w_b g_b, or of phi of it, elementwise, as the gradient lies; of the
    `finite` alone.
    """
    path = _only_path(task)
    assert path is not None
    (total,) = _sums(task, known, [phi or (lambda g: g)], [weights], finite)
    return _moved(task, path, total)


def _sums(
    task: Task,
    known: Known,
    phis: Sequence[Phi],
    weights: Sequence[jax.Array],
    counted: jax.Array | None,
    plain: bool = False,
) -> list[jax.Array]:
    """Sums over the examples that are `counted` of each function of w_b g_b, [batch, D, F], by the
    kernel of the device; where it has none, interpreted. Last, if `plain`, of the products alone.
    """
    path = _only_path(task)
    assert path is not None
    factors = [*_scales(task, path, known), *weights]
    last, columns = len(factors), [*factors, *([] if counted is None else [counted])]

    def take(own: jax.Array, numbers: Sequence[jax.Array]) -> list[jax.Array]:
        g = reduce(operator.mul, numbers[:last], own)
        kept = [_of_real(phi(g), *numbers[last:]) for phi in phis]
        return [*kept, own] if plain else kept

    spread = [jnp.broadcast_to(jnp.asarray(x, WORD), task.examples.size) for x in columns]
    operands = _operands(task, path, known)
    how = _precision(path, operands[0].dtype)
    by = by_triton if task.device.kernels == "triton" else by_mosaic

    def run(a: jax.Array, d: jax.Array) -> list[jax.Array]:
        products = Products(a, d, jnp.stack(spread, 1), take, len(phis) + plain, how)
        return by(products, interpret=task.device.kernels is None)

    if operands[0].shape[1] == 1:
        return run(*(x[:, 0] for x in operands))
    return jax.vmap(run, (1, 1))(*operands)


def _operands(task: Task, path: Einsum, known: Known) -> tuple[jax.Array, jax.Array]:
    """Both as [B, batch, positions, elements], of one type; `batch`: of the site, as layers."""

    def of_one(*operands: jax.Array) -> tuple[jax.Array, jax.Array]:
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
    mantissa, exponent = scale_of(path, known, factor)
    half = jnp.trunc(exponent / 2)
    one = jnp.ones_like(mantissa)
    return [times_power_of_two(mantissa, half), times_power_of_two(one, exponent - half)]


def _of_real(taken: jax.Array, *real: jax.Array) -> jax.Array:
    return jnp.where(real[0] > 0, taken, jnp.zeros_like(taken)) if real else taken


def _moved(task: Task, path: Einsum, x: jax.Array) -> jax.Array:
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


def _gradient(task: Task, path: Einsum, known: Known, total: jax.Array) -> jax.Array:
    """The minibatch gradient from the sum of the products."""
    scaled = scaled_by(total, path, known, 1)
    return task.rounded(_moved(task, path, scaled))


FUSED = Strategy(
    "fused",
    _applies,
    _predict,
    one_by_one(_emit),
    _pays,
    words="one kernel sums the gradient and phi of each example's, tile by tile",
)
