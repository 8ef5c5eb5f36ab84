"""Slice functions: given a gradient slice, JAX code from one example's operands to its gradient.

g_b = tail(B * M_b)
    M_b: what a site contracts for example b alone; offsets in the tail are added once

Wide slices: given a slice that rounds to bfloat16 or float16, functions that keep float32.

    %m = dot_general %h, %l : bf16, bf16 -> bf16       =>  dot_general %h, %l : bf16, bf16 -> f32
    %g = convert %m : bf16 -> f32                      =>  nothing
    %s = scatter 0, %i, %u : bf16                      =>  scatter 0, %i, %u : f32

Matrix units accumulate in float32 anyway. So each example's gradient is had without a rounding of
its own. Their sum is rounded once, as the module's is, or not at all where the module adds up what
it has rounded; and the gradient can be taken from the same tensor as its statistics.
"""

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hlo_surgery.passes.dataflow.ancestors import is_splat
from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import Arrays, dtype_of, wide_dtype, widened
from hlo_surgery.passes.ir.errors import Refusal, reason_at
from hlo_surgery.passes.ir.mlir import Operation, Value, Values
from hlo_surgery.passes.ir.traits import added_results, initial_operands, integer
from hlo_surgery.passes.raising.contractions import dot_general
from hlo_surgery.passes.raising.indexing import scatter
from hlo_surgery.passes.raising.raise_op import Raised, raise_op, single
from hlo_surgery.passes.terms.convolutions import convolution_by_patches
from hlo_surgery.passes.terms.epilogue import moving
from hlo_surgery.passes.terms.gradient_slices import adds_offset
from hlo_surgery.passes.terms.site_functions import (
    Onto,
    apart,
    by_windows,
    ends_in_order,
    exposed_split,
    rows_in_order,
    scatter_onto,
    scatters_onto,
    turned_sites,
)
from hlo_surgery.passes.terms.steps import (
    Axis,
    Ends,
    Given,
    GradientSlice,
    Held,
    Input,
    Known,
    Lifted,
    Rows,
    Split,
    Step,
    is_made,
)


def _scattered(op: Operation, dtype: np.dtype) -> Raised | None:
    return scatter(op, dtype) if all(added_results(op)) else None


RULE_HELP = "have its operands and results in floats of one kind"
CONTRACTIONS: dict[str, Callable[[Operation, np.dtype], Raised | None]] = {
    "stablehlo.dot_general": dot_general,
    "stablehlo.convolution": convolution_by_patches,
}
SUMS = CONTRACTIONS | {"stablehlo.scatter": _scattered}


def is_widenable(sliced: GradientSlice) -> bool:
    """Whether a slice rounds below float32, and contracts and moves only, so that it need not."""
    rounds = any(mlir.is_inexact(r) and not mlir.is_at_least_float32(r) for r in sliced.made)
    return rounds and all(raise_wide(step) is not None for step in sliced.steps)


def is_short_ranged(sliced: GradientSlice) -> bool:
    """Whether a slice goes through floats that end long before float32 does, as float16: B times
    what an example adds to a sum may be beyond them where the sum is not.
    """
    dtypes = [dtype_of(v) for v in sliced.made if mlir.is_inexact(v) and not mlir.is_complex(v)]
    return any(jnp.finfo(dtype).maxexp < jnp.finfo(jnp.bfloat16).maxexp for dtype in dtypes)


def narrowest(sliced: GradientSlice) -> np.dtype:
    """What the module rounds the sum of all examples to on its way to the gradient, and not only a
    part of it.
    """
    if any(step.op.name == "stablehlo.add" for step in sliced.tail):
        return dtype_of(sliced.value)
    return min(
        (dtype_of(step.op.results[0]) for step in sliced.steps), key=lambda dtype: dtype.itemsize
    )


def raise_wide(step: Step) -> Raised | None:
    """A step that returns at least float32; None where a slice of it is not widenable."""
    op = step.op
    if len(op.results) != 1 or not mlir.is_inexact(op.result) or mlir.is_complex(op.result):
        return None
    if step.is_site:
        sums = SUMS.get(op.name)
        return sums(op, wide_dtype(dtype_of(op.result))) if sums else None
    if op.name == "stablehlo.add":
        return single(_added)
    if op.name == "stablehlo.convert":
        return single(partial(_converted, wide_dtype(dtype_of(op.result))))
    return moving(op) if op.name not in ("stablehlo.slice", "stablehlo.pad") else None


def ruled(op: Operation, function: Raised | None) -> Raised:
    """What an op does, by its rule. Raises Refusal where there is none for its element types."""
    if function is None:
        raise Refusal(reason_at(op, "no rule tells what it does to one example", RULE_HELP))
    return function


def _added(x: Array, y: Array) -> Array:
    return widened(x) + widened(y)


def _converted(dtype: np.dtype, x: Array) -> Array:
    return lax.convert_element_type(x, max(x.dtype, dtype, key=lambda d: d.itemsize))


Result = TypeVar("Result")


@dataclass(frozen=True)
class SliceFunction:
    """`inputs`: values of the module, with example axes, None where all examples see it whole.

    `of_one(operands)`: the example's gradient, or a list of several, `operands` in the order of
    `inputs`, each with one example. `count`: the number of real examples, where some are padding;
    it is among the inputs then, and stands for B.
    """

    inputs: tuple[Input, ...]
    of_one: Callable[..., Any]
    count: Value | None = None

    @property
    def values(self) -> Values:
        """The values of the module that the inputs are made of."""
        found = [value for value, _ in self.inputs]
        places = [p for _, axis in self.inputs if isinstance(axis, Split) for p in axis.places]
        told = [v for p in places for v in (p.step, p.owner) if v is not None]
        return list(dict.fromkeys([*found, *told]))


@dataclass(frozen=True)
class Contracting:
    """How sites contract. `group_patches`: convolutions with groups by patches as well. `library`:
    from how many features one example's are XLA's own.

    `wide`: keep float32 where the module rounds to less, for slices that allow it; `upcast`: from
    float32 operands, where XLA has no contraction of narrower ones into float32. `late`: times B as
    late as may be, widened at the end.
    """

    group_patches: bool = True
    library: float = math.inf
    wide: bool = False
    upcast: bool = False
    late: bool = False


def slice_function(
    sliced: GradientSlice,
    size: int,
    is_mean: bool,
    how: Contracting = Contracting(),
    count: Value | None = None,
) -> SliceFunction:
    """The per-example gradient of one output; unless the loss `is_mean`, a B-th of a mean's."""
    calls = _calls(sliced, how)
    added: list[Input] = [] if count is None else [(count, None)]
    inputs = tuple(dict.fromkeys([*sliced.inputs, *added]))

    def of_one(*operands: Array) -> Array:
        given = dict(zip(inputs, operands, strict=True))
        total = size if count is None else given[count, None]
        known, without = _run(calls, given, total)
        gradient = known[sliced.value] if sliced.steps else given[sliced.output]
        if sliced.value in without:
            return widened(gradient) * (total if is_mean else 1)
        return gradient if is_mean else _scaled(gradient, 1 / total)

    return SliceFunction(inputs, of_one, count)


@dataclass(frozen=True)
class _Call:
    """One or more steps: `made(B, *operands)` is what they result in. `is_late`: whether B is left
    out where it is of the operands, since the result is B times what it is without any.
    """

    inputs: tuple[Input, ...]
    results: Values
    made: Raised
    is_late: bool = False


def _run(calls: Sequence[_Call], given: Given, total: Any) -> tuple[dict[Value, Array], set[Value]]:
    """What all calls make, and which of it is without B."""
    known: dict[Value, Array] = {}
    without: set[Value] = set()
    for call in calls:
        sums = {key[0] for key in call.inputs if is_made(key, known)}
        is_without = call.is_late and sums <= without
        if not is_without:
            known |= {value: _scaled(known[value], total) for value in sums & without}
            without -= sums
        values = [known[key[0]] if is_made(key, known) else given[key] for key in call.inputs]
        factor = 1 if is_without else total
        known |= zip(call.results, call.made(factor, *values), strict=True)
        without.update(call.results if is_without else ())
    return known, without


def _calls(sliced: GradientSlice, how: Contracting) -> list[_Call]:
    """The steps of a slice in order, scatters where what they are added to is known."""
    onto, turned = scatters_onto(sliced.steps), turned_sites(sliced.steps)
    replaced = {value for each in onto.values() for value in each.replaced}
    replaced |= {op.result for op in turned.values()}
    left = [(step, step.op.results[0]) for step in sliced.steps]
    return [
        _scattering(step, onto[made], how)
        if made in onto
        else _calling(step, how, sliced.made, turned.get(made))
        for step, made in left
        if made not in replaced
    ]


def _calling(
    step: Step, how: Contracting, sums: Container[Value], transpose: Operation | None
) -> _Call:
    """A step by itself, or with the transpose behind it; `sums`: what the slice makes."""
    function = ruled(step.op, _raised(step, how, transpose is not None))
    if any(isinstance(axis, Rows) for _, axis in step.inputs):
        function = by_windows(step, function)
    made = partial(_contributions, step, function) if step.is_site else partial(_beside, function)
    others = any(isinstance(axis, Split | Lifted | Rows) for _, axis in step.inputs)
    is_late = how.late and not others and not adds_offset(step, sums)
    results = mlir.results(transpose or step.op)
    return _Call(step.inputs, results, made, is_late)


def _made_in(step: Step, how: Contracting) -> np.dtype:
    dtype = dtype_of(step.op.result)
    return wide_dtype(dtype) if how.wide else dtype


def _from_wide(raised: Raised, *operands: Array) -> Arrays:
    return raised(*map(widened, operands))


def _scattering(step: Step, onto: Onto, how: Contracting) -> _Call:
    """An add as a scatter, whose updates are all that needs to be scaled."""
    dtype = _made_in(step, how)
    scatter = scatter_onto(onto, dtype)

    def made(size: Any, other: Array, indices: Array, updates: Array) -> Arrays:
        updates = updates.astype(dtype)
        return scatter(other, indices, _scaled(updates, size) if onto.scatter.is_site else updates)

    return _Call(onto.inputs, mlir.results(step.op), made)


def _scaled(x: Array, factor: Any) -> Array:
    """x times a number, rounded once."""
    return (widened(x) * factor).astype(x.dtype) if isinstance(factor, Array) else x * factor


def _raised(step: Step, how: Contracting, is_turned: bool) -> Raised | None:
    is_convolved = step.op.name == "stablehlo.convolution" and any(a for _, a in step.inputs)
    by_patches = is_convolved and (how.group_patches or integer(step.op, "batch_group_count") == 1)
    if is_turned:
        raised = dot_general(step.op, _made_in(step, how), is_turned=True)
    elif how.wide:
        raised = raise_wide(step)
    else:
        patches = convolution_by_patches(step.op, library=how.library) if by_patches else None
        raised = patches or raise_op(step.op)
    from_wide = how.wide and how.upcast and step.op.name in CONTRACTIONS
    return partial(_from_wide, raised) if raised and from_wide else raised


def _beside(function: Raised, _: Any, *operands: Array) -> Arrays:
    return function(*operands)


def _contributions(site: Step, function: Raised, size: Any, *operands: Array) -> Arrays:
    """B * M_b, on top of what the site adds the examples to."""
    initial = initial_operands(site.op)
    alone = [jnp.zeros_like(x) if i in initial else x for i, x in enumerate(operands)]
    made = [_scaled(contribution, size) for contribution in function(*alone)]
    for number, i in enumerate(initial):
        if not is_splat(site.op.operands[i], 0):
            made[number] = made[number] + operands[i]
    return tuple(made)


def exposed_examples(function: SliceFunction, known: Known, size: int) -> Arrays:
    """The function's inputs, each with its own example dimension, where it has any."""
    count = size if function.count is None else known[function.count]

    def exposed(x: Array, axis: Axis) -> Array:
        if isinstance(axis, Split):
            return exposed_split(x, axis, known, count)
        if isinstance(axis, Rows):
            return rows_in_order(x, axis, known)
        if isinstance(axis, Ends):
            return ends_in_order(x, axis)
        return apart(x, axis.dim, size, axis) if isinstance(axis, PerExample) else x

    return [exposed(known[value], axis) for value, axis in function.inputs]


def _merge_example(x: Array, axis: Axis) -> Array:
    """One example of an input as the function takes it: [before, after] as one dimension."""
    if not isinstance(axis, PerExample):
        return x
    merged = axis.before * axis.after
    return lax.reshape(x, (*x.shape[: axis.dim], merged, *x.shape[axis.dim + 2 :]))


def _example_position(axis: Axis) -> int | None:
    if axis is None or isinstance(axis, Held | Rows):
        return None
    return axis.dim + 1 if isinstance(axis, PerExample) else 0


def example_positions(function: SliceFunction) -> list[int | None]:
    """For each input the dimension that holds the examples once exposed."""
    return [_example_position(axis) for _, axis in function.inputs]


def from_exposed(function: SliceFunction, of_one: Callable[..., Result]) -> Callable[..., Result]:
    """Any function of one example's inputs, as one of an example out of the exposed inputs."""
    axes = [axis for _, axis in function.inputs]
    return lambda *example: of_one(
        *(_merge_example(x, axis) for x, axis in zip(example, axes, strict=True))
    )


def jointly(functions: Sequence[SliceFunction]) -> SliceFunction:
    """Several functions' gradients as one function's list; a shared operand is taken once."""
    inputs = tuple(dict.fromkeys(key for function in functions for key in function.inputs))

    def of_one(*operands: Array) -> Arrays:
        given = dict(zip(inputs, operands, strict=True))
        return [function.of_one(*(given[key] for key in function.inputs)) for function in functions]

    return SliceFunction(inputs, of_one, functions[0].count)


def over_examples(
    function: SliceFunction,
    known: Known,
    size: int,
    of_one: Callable[..., Result],
) -> Result:
    """Any function of one example's inputs, for all examples at once."""
    exposed, positions = exposed_examples(function, known, size), example_positions(function)
    return jax.vmap(from_exposed(function, of_one), in_axes=positions, axis_size=size)(*exposed)
