"""Kronecker: the factors of gradients, from the operands of their sites, one contraction each.

    %g = dot_general %h[b, t, d], %l[b, t, f] over b, t
        =>  dot_general %h, %h over b, t  and  dot_general %l, %l over b, t

Of a scatter the rows are counted instead. Nothing as large as an example's gradient is made.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.passes.costs.gradient_costs import Predicted
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import convolution_numbers
from hlo_surgery.passes.measures.kronecker import Form, KroneckerFactor
from hlo_surgery.passes.measures.measure import Measure
from hlo_surgery.passes.measures.real_examples import without_padding
from hlo_surgery.passes.strategies.ghost.ghost_factors import Factor, Given, factors_of, scaled_by
from hlo_surgery.passes.strategies.ghost.ghost_paths import Path, path_counts
from hlo_surgery.passes.strategies.kronecker.sides import Sides, common_sides, sizes_of
from hlo_surgery.passes.strategies.strategy import Asked, Computed, Measured, Strategy, one_by_one
from hlo_surgery.passes.strategies.task import Known, Schedule, Task
from hlo_surgery.passes.terms.slice_functions import over_examples

# Factors are float32, or wider where gradients are.
WORD = 4
# One factor of a path for all examples: [B, stacked, positions, elements], with 1 for stacked where
# all of these share it, or the numbers of rows.
Operand = jax.Array


def _applies(task: Task, measure: Measure) -> bool:
    """Whether all paths of a gradient have their factors over the same axes."""
    return isinstance(measure, KroneckerFactor) and common_sides(task.paths) is not None


def _predict(task: Task, measures: Sequence[Measure], schedule: Schedule) -> Predicted:
    """Each factor contracted with itself."""
    counts, device = task.counts, task.device
    sides = (common_sides(task.paths) or [])[0]
    positions = counts.size * sum(path_counts(path, counts.size)[0] for path in task.paths)
    _, left, right = sizes_of(sides, mlir.shape(task.sliced.value))
    lengths = {"left": left, "right": right}
    # What is diagonal is no contraction.
    contracted = [n for side, n in lengths.items() if side != sides.diagonal]
    squares = sum(n**2 for n in contracted)
    moved = counts.read + (sum(contracted) * positions + squares) * WORD
    rate = device.contraction_rate(device.depth, False)
    return Predicted(max(2 * positions * squares / rate, moved / device.bandwidth), 0)


def _emit(asked: Asked, known: Known) -> Computed:
    task, measures = asked.task, [m for m in asked.measures if isinstance(m, KroneckerFactor)]
    operands, count = operands_of(task, known), task.examples.count(known)
    measured: Measured = {}
    forms: list[Form] = list(dict.fromkeys(m.form for m in measures))
    for form in forms:
        left, right = _factors(task, operands, form, count)
        found = {"left": left, "right": right}
        measured |= {m: found[m.side] for m in measures if m.form == form}
    return Computed(measured)


def operands_of(task: Task, known: Known) -> list[tuple[Operand, Operand]]:
    """Left and right of every path; zeros, and no row, for padding."""
    factor, padding = task.examples.factor(known), task.examples.padding(known)
    sides = common_sides(task.paths)
    assert sides is not None

    def of_one(*operands: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
        given = dict(zip(task.function.inputs, operands, strict=True))
        pairs = zip(task.paths, sides, strict=True)
        return [_of_path(path, own, given, factor) for path, own in pairs]

    found = over_examples(task.function, known, task.examples.size, of_one)
    return jax.tree.map(partial(without_padding, padding=padding), found)


def _of_path(path: Path, sides: Sides, given: Given, factor: Any) -> tuple[jax.Array, jax.Array]:
    """Left and right of one example; the scale lies in right, or in left where right is rows.

    Rows are [positions], from 1 on, and 0 for none.
    """
    one, second = factors_of(path, given)
    if sides.each_row:
        return _by_row(scaled_by(second, path, given, factor), sides, path)
    first = one.x[0] + 1 if one.rows is not None else _ordered(path, one)
    left, right = (second, first) if sides.swapped else (first, second)
    if sides.apart:
        right = _stacked(path, right, sides)
    if sides.diagonal == "right":
        return scaled_by(left, path, given, factor), right
    return left, scaled_by(right, path, given, factor)


def _stacked(path: Path, right: jax.Array, sides: Sides) -> jax.Array:
    """[stacked, positions, elements] from [1, positions, stacked and elements]."""
    order, shape = path.order or (), mlir.shape(path.site.op.results[0])
    count = math.prod(shape[order[axis]] for axis in sides.stacked)
    return jnp.moveaxis(right.reshape(right.shape[1], count, -1), 1, 0)


def _by_row(x: jax.Array, sides: Sides, path: Path) -> tuple[jax.Array, jax.Array]:
    """Every row at each position: its number from 1 on, and [1, positions, elements]."""
    order = path.order if path.part_of is None else path.part_of[0]
    shape = mlir.shape(path.site.op.results[0])
    rows = math.prod(shape[(order or ())[axis]] for axis in sides.left)
    first = 1 + sides.unused
    numbers = jnp.tile(jnp.arange(first, first + rows, dtype=jnp.int32), x.shape[1])
    return numbers, x.reshape(1, len(numbers), -1)


def _ordered(path: Path, factor: Factor) -> jax.Array:
    """The patches of a convolution, their elements in the order in which the gradient has them."""
    op = path.site.op
    if op.name != "stablehlo.convolution":
        return factor.x
    numbers, shape = convolution_numbers(op), mlir.shape(op.results[0])
    dims = [*numbers.output_spatial_dimensions, numbers.output_batch_dimension]
    assert path.order is not None
    kept = [dim for dim in path.order if dim in dims]
    turned = [2 + dims.index(d) for d in (*kept, *(d for d in dims if d not in kept))]
    apart = factor.x.reshape(*factor.x.shape[:2], *(shape[dim] for dim in dims))
    return apart.transpose(0, 1, *turned).reshape(factor.x.shape)


def _factors(
    task: Task, operands: Sequence[tuple[Operand, Operand]], form: Form, count: Any
) -> tuple[jax.Array, jax.Array]:
    sides = (common_sides(task.paths) or [])[0]
    stacked, *elements = sizes_of(sides, mlir.shape(task.sliced.value))
    dense = [x for pair in operands for x in pair if x.ndim == 4]
    # Counts are as wide as the other side.
    dtype = jnp.promote_types(dense[0].dtype, jnp.float32)
    positions = sum(x.shape[2] for x in dense) // (1 if sides.diagonal else 2)
    divisors = {"expand": (1, positions), "reduce": (positions**2, 1)}[form]
    left, right = (
        _second_moment([pair[k] for pair in operands], form, elements[k], dtype)
        / (count * divisors[k])
        for k in range(2)
    )
    return _of_all_stacked(left, stacked), _of_all_stacked(right, stacked)


def _of_all_stacked(x: jax.Array, stacked: Sequence[int]) -> jax.Array:
    """[*stacked, ...] from [stacked, ...], or from [1, ...] where all of them have the same."""
    every = jnp.broadcast_to(x, (math.prod(stacked), *x.shape[1:]))
    return every.reshape(*stacked, *x.shape[1:])


def _second_moment(operands: Sequence[Operand], form: Form, elements: int, dtype: Any) -> jax.Array:
    """The sum over examples of products of a factor with itself, [stacked, elements, elements], and
    over positions, or of the factor's sum over these; of rows the diagonal, [1, elements].
    """
    if operands[0].ndim == 2:
        return _counts(jnp.concatenate(operands, 1), form, elements, dtype)[None]
    if form == "reduce":
        summed = [jnp.sum(x, 2) for x in operands]
        total = jnp.sum(jnp.stack(summed), 0)
        return jnp.einsum("bgi,bgj->gij", total, total, precision="highest")
    each = [jnp.einsum("bgti,bgtj->gij", x, x, precision="highest") for x in operands]
    return jnp.sum(jnp.stack(each), 0)


def _counts(rows: jax.Array, form: Form, elements: int, dtype: Any) -> jax.Array:
    """How often each row occurs, rows [B, positions] counting from 1; or the sum over the examples
    of the squares of how often.
    """
    times = jnp.ones(rows.shape, dtype)
    if form == "reduce":
        times = jax.vmap(_alike)(rows).astype(dtype)
    counted = jnp.zeros(elements + 1, dtype).at[rows].add(times)
    return counted[1:]


def _alike(rows: jax.Array) -> jax.Array:
    """How often an example has each of its rows."""
    ordered = jnp.sort(rows)
    ends = [jnp.searchsorted(ordered, rows, side=side) for side in ("left", "right")]
    return (ends[1] - ends[0]).astype(jnp.float32)


KRONECKER = Strategy(
    "kronecker",
    _applies,
    _predict,
    one_by_one(_emit),
    words="each operand of the contraction with itself, no gradient being made",
)
