"""Factors: the arrays that an einsum multiplies, of all examples, dense or the numbers of rows.

Dense ones are [B, g, positions, elements], the elements in the order in which the output has them.
Of a scatter the first is [B, positions] instead, the numbers of rows, -1 for none: what it stands
for, one-hot rows as long as a table, is never made. Of padding, factors are zero, and no row.

Single gradients: whether a program makes each example's gradient itself, and a site only adds
them up.

    %g = dot_general %h[b, t, d], %l[b, t, f] over t, batched over b ; reduce %g over b
        =>  the dot_general: of its positions the reduce knows nothing

So it is of `mean(vmap(grad(loss)))`. The same ops may make an example's share of a table that is
added as it is: nothing in a module tells the two apart.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from hlo_surgery.passes.axes.state import is_rows
from hlo_surgery.passes.dataflow.ancestors import PASSING, copied_from, ties
from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import dtype_of, wide_dtype, widened
from hlo_surgery.passes.ir.mlir import Operation, Value, Values, closure
from hlo_surgery.passes.ir.traits import convolution_numbers, is_linear, scatter_numbers
from hlo_surgery.passes.strategies.einsums.einsums import Einsum
from hlo_surgery.passes.strategies.gradient_costs import WORD, Predicted
from hlo_surgery.passes.strategies.strategy import Task
from hlo_surgery.passes.terms.convolutions import positions_of_convolution
from hlo_surgery.passes.terms.scaling import near_power_of_two, or_one, traced_once
from hlo_surgery.passes.terms.slice_functions import over_examples
from hlo_surgery.passes.terms.steps import (
    Axes,
    Given,
    GradientSlice,
    Known,
    Step,
    contracted,
)

SUMS = ("stablehlo.dot_general", "stablehlo.convolution", "stablehlo.scatter")
SCALES = ("stablehlo.multiply", "stablehlo.divide")


def made_before(axes: Axes, sliced: GradientSlice) -> Operation | None:
    """A contraction, or sum of looked-up rows, of one example's values alone, which makes all that
    a site adds up of the examples; None where there is none.
    """
    # Of one position for each example.
    sites = [site for site in sliced.sites if _positions(site) == {axes.size}]
    taken = [value for site in sites for value, axis in site.inputs if isinstance(axis, PerExample)]
    return next((op for value in taken if (op := _maker(axes, value)) is not None), None)


def _positions(site: Step) -> set[int]:
    """How many each operand has, of all examples."""
    return {operand.positions for operand in contracted(site.op).values()}


def _maker(axes: Axes, value: Value) -> Operation | None:
    """What makes a value of the examples, if all of it comes from such ops, moved and scaled."""
    reached = closure([value], lambda v: _made_of(axes, v))
    ends = [v for v in reached if not _made_of(axes, v)]
    makers = [mlir.defining_operation(v) for v in ends if _is_owned(axes, v)]
    # Both factors are the examples' own, or rows and where they go.
    sums = [op for op in makers if op is not None and op.name in SUMS]
    own = [op for op in sums if sum(_is_owned(axes, v) for v in op.operands) > 1]
    return own[0] if own and len(own) == len(makers) else None


def _made_of(axes: Axes, value: Value) -> Values:
    """The examples' values that a value is, moved, scaled and added up; none where it is more."""
    op = mlir.defining_operation(value)
    if op is None or op.name in PASSING:
        return [v for v in ties(value) if _is_owned(axes, v)]
    if op.name in (*SUMS, "stablehlo.reduce") or not len(op.operands):
        return []
    owned = [v for v in mlir.operands(op) if _is_owned(axes, v) and mlir.is_inexact(v)]
    if op.name in SCALES:
        scaled = [v for v in owned if math.prod(mlir.shape(copied_from(v))) > axes.size]
        return scaled if len(scaled) == 1 else []
    return owned if op.name == "stablehlo.select" or is_linear(op, {0}) else []


def _is_owned(axes: Axes, value: Value) -> bool:
    return is_rows(axes.of(value))


Factors = tuple[Array, Array]


def positions_of(task: Task) -> int:
    """How many products are summed for an example, in all einsums."""
    return sum(e.positions(task.examples.size) for e in task.einsums)


def predicted(task: Task, flops: float, rate: float, moved: int, held: int) -> Predicted:
    """What it takes to make so many FLOPs of the factors at this rate; `moved`, `held`: words."""
    seconds = (task.counts.read + moved * WORD) / task.device.bandwidth
    return Predicted(max(flops / rate, seconds), held * WORD)


def factors_of(task: Task, known: Known) -> list[Factors]:
    """Both factors of each einsum, in at least float32."""
    function, real = task.function, task.examples.flags(known)

    def of_one(*operands: Array) -> list[Factors]:
        given = dict(zip(function.inputs, operands, strict=True))
        return [FACTORS[e.kind](e, given) for e in task.einsums]

    found = over_examples(function, known, task.examples.size, of_one)
    return found if real is None else jax.tree.map(partial(_of_real, real), found)


def _of_real(real: Array, x: Array) -> Array:
    nothing = jnp.full_like(x, -1 if x.ndim == 2 else 0)
    return jnp.where(jnp.expand_dims(real, range(1, x.ndim)), x, nothing)


def operands_of(e: Einsum, given: Given) -> Factors:
    """Both of a dot_general of one example, [g, positions, elements], of their own types."""
    return _laid_out(e, 0, "d", given), _laid_out(e, 1, "f", given)


def _dense(e: Einsum, given: Given) -> Factors:
    one, other = operands_of(e, given)
    return widened(one), widened(other)


def _ones(e: Einsum, given: Given) -> Factors:
    second = widened(_laid_out(e, 0, "f", given))
    return jnp.ones_like(second[..., :1]), second


def _patches(e: Einsum, given: Given) -> Factors:
    first, second = positions_of_convolution(e.site.op, *(given[key] for key in e.site.inputs))
    numbers = convolution_numbers(e.site.op)
    dims = [*numbers.output_spatial_dimensions, numbers.output_batch_dimension]
    apart = first.reshape(len(first), *(e.shape[d] for d in dims))
    turned = apart.transpose(0, *(1 + dims.index(d) for d in e.dims("d")))
    return widened(turned.reshape(1, *first.shape)), widened(second[None])


def _rows(e: Einsum, given: Given) -> Factors:
    """An update at no row that exists is zero."""
    dense = widened(_laid_out(e, 2, "f", given))
    rows = _row_numbers(e, given[e.site.inputs[1]])
    return rows, jnp.where((rows >= 0)[:, None], dense, jnp.zeros_like(dense))


def _row_numbers(e: Einsum, indices: Array) -> Array:
    """[positions]: the row of each, counted in the output's order; -1 where there is none."""
    numbers = scatter_numbers(e.site.op)
    scattered, along = list(numbers.scattered_dims_to_operand_dims), numbers.index_vector_dim
    columns = indices if along < indices.ndim else indices[..., None]
    columns = jnp.moveaxis(columns, along, 0).reshape(len(scattered), -1)
    # A narrow type does not hold the table's length, and int32 not what a wide one may address
    # outside of it.
    columns = columns if columns.dtype.itemsize > WORD else columns.astype(jnp.int32)
    lengths = jnp.asarray([[e.shape[dim]] for dim in scattered], columns.dtype)
    exists = jnp.all((columns >= 0) & (columns < lengths), 0)
    found = jnp.zeros_like(exists, jnp.int32)
    for dim in e.dims("d"):
        found = found * e.shape[dim] + columns[scattered.index(dim)].astype(jnp.int32)
    return jnp.where(exists, found, -1)


FACTORS: dict[str, Callable[[Einsum, Given], Factors]] = {
    "convolution": _patches,
    "dot_general": _dense,
    "reduce": _ones,
    "scatter": _rows,
}


def _laid_out(e: Einsum, number: int, label: str, given: Given) -> Array:
    """An operand as [g, positions, free]."""
    x, own = given[e.site.inputs[number]], contracted(e.site.op)[number]
    batch, free = _ordered(e, "g", own.batch), _ordered(e, label, own.free)
    sizes = [math.prod(x.shape[d] for d in dims) for dims in (batch, own.summed, free)]
    return x.transpose(*batch, *own.summed, *free).reshape(sizes)


def _ordered(e: Einsum, label: str, dims: Sequence[int]) -> list[int]:
    """An operand's dimensions of this label, in the order in which the output has them."""
    own = e.dims(label)
    return [dims[sorted(own).index(dim)] for dim in own]


def scale_of(task: Task, e: Einsum, known: Known) -> Array:
    """The product of all numbers by which a site is multiplied, in float64."""
    one = jnp.ones((), jnp.promote_types(task.dtype, jnp.float64))
    return scaled_by(one, e, known, task.examples.factor(known))


def scaled_by(x: Array, e: Einsum, known: Known, factor: Any) -> Array:
    """What lies at a site, as it comes out at the end."""
    scaled = x * (-factor if e.negated else factor)
    for value, divides in e.scales:
        number = known[value].ravel()[0].astype(x.dtype)
        scaled = scaled / number if divides else scaled * number
    return scaled


class Share(NamedTuple):
    """An einsum of each example: two factors without scale, and the scale [B] in float64."""

    first: Array
    second: Array
    scale: Array


def shares_of(task: Task, known: Known, factors: Sequence[Factors]) -> list[Share]:
    """The shares of all examples, their factors over the same dimensions in the same order.

    Those that come in bfloat16 stay in it where a device contracts it into float32. Nothing is
    rounded by that, as they are multiplied by powers of two alone, and bfloat16 has the exponents
    of float32.
    """
    shares: list[Share] = []
    for e, pair in zip(task.einsums, factors, strict=True):
        *own, largest = _scaled(*pair)
        if task.device.narrow_operands and is_narrow(e):
            own = [x if x.ndim == 2 else x.astype(jnp.bfloat16) for x in own]
        first, second = own if e.halves == task.einsums[0].halves else own[::-1]
        shares.append(Share(first, second, largest * scale_of(task, e, known)))
    return shares


def is_narrow(e: Einsum) -> bool:
    """Whether a site takes bfloat16 alone."""
    inexact = [value for value, _ in e.site.inputs if mlir.is_inexact(value)]
    return all(dtype_of(value) == jnp.bfloat16 for value in inexact)


@traced_once
def _scaled(first: Array, second: Array) -> Share:
    """Factors with elements of at most about 1, and their scale: no square overflows, and none that
    counts underflows.

    Each position has a scale of its own, since what is small in one factor may be large in the
    other: the second takes back the first's, but for the largest.
    """
    own = _powers(first) if first.ndim == 4 else jnp.ones((), jnp.float64)
    largest = jnp.max(own * _powers(second), (1, 2, 3), keepdims=True, initial=0)
    taken_back = second * (own / or_one(largest)).astype(second.dtype)
    if first.ndim == 4:
        first = first * (1 / or_one(own)).astype(first.dtype)
    return Share(first, taken_back, largest[:, 0, 0, 0])


def _powers(x: Array) -> Array:
    """The power of two near each position's largest element, 0 where that is zero."""
    largest = jnp.max(jnp.abs(x), -1, keepdims=True, initial=0)
    power = near_power_of_two(largest).astype(jnp.float64)
    return jnp.where(largest == 0, 0, power)


def inner(one: Array, other: Array) -> Array:
    """Inner products of two factors' elements, [B, g, positions of one, positions of other]."""
    if one.ndim < other.ndim:
        return jnp.swapaxes(inner(other, one), 2, 3)
    if other.ndim == 4:
        return _contracted(one, other)
    exists = other[:, None, None] >= 0
    if one.ndim == 4:
        taken = jax.vmap(lambda x, rows: jnp.take(x, rows, axis=2, mode="clip"))
        return jnp.where(exists, taken(widened(one), other), 0)
    return (exists & (one[:, None, :, None] == other[:, None, None])).astype(jnp.float32)


def _contracted(one: Array, other: Array) -> Array:
    """Every term and sum in at least float32. Matrix units multiply bfloat16 so in one pass."""
    if one.shape[2] == other.shape[2] == 1:
        # A sum that is fused with what makes its terms, where a contraction would need them in
        # memory.
        return jnp.sum(widened(one) * widened(other), 3, keepdims=True)
    exact = one.dtype == other.dtype == jnp.bfloat16
    return jnp.einsum(
        "bgtd,bgud->bgtu",
        *((one, other) if exact else (widened(one), widened(other))),
        precision=lax.Precision.DEFAULT if exact else lax.Precision.HIGHEST,
        preferred_element_type=wide_dtype(one.dtype),
    )


def sum_at(rows: Array, x: Array, length: int) -> Array:
    """[length, ...]: the sums of x [B, positions, ...] over those of each row."""
    past = jnp.where(rows < 0, length, rows)
    zeros = jnp.zeros((length, *x.shape[rows.ndim :]), x.dtype)
    return zeros.at[past].add(x, mode="drop")


@jax.vmap
def distinct(rows: Array, x: Array) -> Factors:
    """Each example's distinct rows, -1 where fewer than positions, and the sum at each of x [B,
    positions, elements].
    """
    rows, order = lax.sort((rows, lax.iota(jnp.int32, len(rows))), num_keys=1)
    is_next = jnp.append(False, rows[1:] != rows[:-1]).astype(jnp.int32)
    # Of `jnp.cumsum` JAX makes a loop on GPU since 0.11, with a step for each position; of a sum
    # over windows XLA makes a tree everywhere.
    past = [(len(rows) - 1, 0)]
    segments = lax.reduce_window(is_next, jnp.int32(0), lax.add, (len(rows),), (1,), past)
    found = jnp.full_like(rows, -1).at[segments].set(rows, indices_are_sorted=True)
    return found, jnp.zeros_like(x).at[segments].add(x[order], indices_are_sorted=True)
