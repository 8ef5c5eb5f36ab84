"""Integer ops: StableHLO's ops on integers in numpy, at all steps of the loops around at once.

Each takes the op, the number of step axes, and operands [*steps, *shape], axes of steps having size
1 where they do not matter.
"""

from collections.abc import Callable
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import integer, integers
from hlo_surgery.passes.ir.mlir import Operation, stablehlo

Numbers = npt.NDArray[Any]
BOUNDS = ("start_indices", "limit_indices", "strides")


COMPARES: dict[str, Callable[..., Numbers]] = {
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "EQ": np.equal,
    "NE": np.not_equal,
}


class Undefined(Exception):
    """What StableHLO leaves open, or XLA does in two ways: divisions by zero, sums of truths,
    shifts by more bits than there are.
    """


def _divide(op: Operation, steps: int, a: Numbers, b: Numbers) -> Numbers:
    return (a - _remainder(op, steps, a, b)) // b


def _remainder(op: Operation, steps: int, a: Numbers, b: Numbers) -> Numbers:
    if not b.all():
        raise Undefined
    return np.fmod(a, b)


def _shift_right(op: Operation, steps: int, x: Numbers, by: Numbers) -> Numbers:
    """Filled with the sign. Where there is none, XLA fills with the first bit all the same."""
    if jnp.iinfo(x.dtype).min == 0:
        raise Undefined
    return _shifted(x, by)


def _shift_right_logical(op: Operation, steps: int, x: Numbers, by: Numbers) -> Numbers:
    mask = np.uint64((1 << jnp.iinfo(x.dtype).bits) - 1)
    return _shifted(x.astype(np.uint64) & mask, by)


def _shifted(x: Numbers, by: Numbers) -> Numbers:
    if ((by < 0) | (by >= jnp.iinfo(by.dtype).bits)).any():
        raise Undefined
    return x >> by.astype(x.dtype)


def _compare(op: Operation, steps: int, a: Numbers, b: Numbers) -> Numbers:
    return COMPARES[direction_of(op)](a, b)


def direction_of(op: Operation) -> str:
    """How a comparison compares, as "LT"."""
    attribute = cast(Any, stablehlo).ComparisonDirectionAttr(op.attributes["comparison_direction"])
    return str(attribute.value)


def spread(scalar: Numbers, like: Numbers, steps: int) -> Numbers:
    """A scalar operand with as many axes as another."""
    return scalar.reshape(
        (*scalar.shape[:steps], *[1] * (like.ndim - scalar.ndim), *scalar.shape[steps:])
    )


def _select(op: Operation, steps: int, chosen: Numbers, a: Numbers, b: Numbers) -> Numbers:
    return np.where(spread(chosen, a, steps), a, b)


def _clamp(op: Operation, steps: int, low: Numbers, x: Numbers, high: Numbers) -> Numbers:
    return np.minimum(np.maximum(x, spread(low, x, steps)), spread(high, x, steps))


def _broadcast(op: Operation, steps: int, x: Numbers) -> Numbers:
    dims, shape = integers(op, "broadcast_dimensions"), mlir.shape(op.results[0])
    sizes = [1] * len(shape)
    for k, dim in enumerate(dims):
        sizes[dim] = x.shape[steps + k]
    order = [steps + int(k) for k in np.argsort(dims)]
    turned = x.transpose([*range(steps), *order])
    lead = x.shape[:steps]
    return np.broadcast_to(turned.reshape((*lead, *sizes)), (*lead, *shape))


def _slice(op: Operation, steps: int, x: Numbers) -> Numbers:
    bounds = zip(*(integers(op, name) for name in BOUNDS), strict=True)
    return x[(..., *(slice(*bound) for bound in bounds))]


def _dynamic_slice(op: Operation, steps: int, x: Numbers, *starts: Numbers) -> Numbers:
    for dim, (start, size) in enumerate(zip(starts, mlir.shape(op.results[0]), strict=True)):
        axis = steps + dim
        spots = np.clip(start, 0, x.shape[axis] - size)[..., None] + np.arange(size)
        sizes = [*spots.shape[:-1], *[1] * (x.ndim - steps)]
        sizes[axis] = size
        x = np.take_along_axis(x, spots.reshape(sizes), axis)
    return x


def _dynamic_update_slice(
    op: Operation, steps: int, x: Numbers, piece: Numbers, *starts: Numbers
) -> Numbers:
    if any(start.size > 1 for start in starts):
        raise Undefined
    lead = np.broadcast_shapes(x.shape[:steps], piece.shape[:steps])
    found = np.broadcast_to(x, (*lead, *x.shape[steps:])).copy()
    sizes = zip(starts, x.shape[steps:], piece.shape[steps:], strict=True)
    places = [(min(max(start.item(), 0), whole - part), part) for start, whole, part in sizes]
    found[(..., *(slice(first, first + part) for first, part in places))] = piece
    return found


def _reshape(op: Operation, steps: int, x: Numbers) -> Numbers:
    return x.reshape((*x.shape[:steps], *mlir.shape(op.results[0])))


def _concatenate(op: Operation, steps: int, *pieces: Numbers) -> Numbers:
    lead = np.broadcast_shapes(*(x.shape[:steps] for x in pieces))
    full = [np.broadcast_to(x, (*lead, *x.shape[steps:])) for x in pieces]
    return np.concatenate(full, steps + integer(op, "dimension"))


def _transpose(op: Operation, steps: int, x: Numbers) -> Numbers:
    return x.transpose([*range(steps), *(steps + d for d in integers(op, "permutation"))])


def _reverse(op: Operation, steps: int, x: Numbers) -> Numbers:
    return np.flip(x, tuple(steps + d for d in integers(op, "dimensions")))


def _each(function: Callable[..., Numbers]) -> Callable[..., Numbers]:
    """An elementwise op as numpy has it."""
    return lambda op, steps, *operands: function(*operands)


def _of_numbers(function: Callable[..., Numbers]) -> Callable[..., Numbers]:
    """As `_each`, but of integers alone: no truth values."""

    def rule(op: Operation, steps: int, *operands: Numbers) -> Numbers:
        if any(x.dtype == np.bool_ for x in operands):
            raise Undefined
        return function(*operands)

    return rule


# Ops that make each element of those at its place, or of one number for all.
BY_ELEMENT: dict[str, Callable[..., Numbers]] = {
    "stablehlo.divide": _divide,
    "stablehlo.remainder": _remainder,
    "stablehlo.shift_right_arithmetic": _shift_right,
    "stablehlo.shift_right_logical": _shift_right_logical,
    "stablehlo.compare": _compare,
    "stablehlo.select": _select,
    "stablehlo.clamp": _clamp,
    "stablehlo.convert": _each(lambda x: x),
    "stablehlo.add": _of_numbers(np.add),
    "stablehlo.subtract": _of_numbers(np.subtract),
    "stablehlo.multiply": _of_numbers(np.multiply),
    "stablehlo.negate": _of_numbers(np.negative),
    "stablehlo.sign": _of_numbers(np.sign),
    "stablehlo.abs": _of_numbers(np.abs),
    "stablehlo.minimum": _each(np.minimum),
    "stablehlo.maximum": _each(np.maximum),
    "stablehlo.and": _each(np.bitwise_and),
    "stablehlo.or": _each(np.bitwise_or),
    "stablehlo.xor": _each(np.bitwise_xor),
    "stablehlo.not": _each(np.invert),
}

RULES: dict[str, Callable[..., Numbers]] = {
    **BY_ELEMENT,
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.slice": _slice,
    "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.dynamic_update_slice": _dynamic_update_slice,
    "stablehlo.reshape": _reshape,
    "stablehlo.concatenate": _concatenate,
    "stablehlo.transpose": _transpose,
    "stablehlo.reverse": _reverse,
}
