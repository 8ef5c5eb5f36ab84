"""Epilogues: what the ops behind a contraction do to the elements of a gradient, each read once.

    %t = transpose %site        MOVES     its elements elsewhere, or fewer of them, none changed
    %s = multiply %t, %scale    SCALES    each times one of %scale's, or over it
    %p = pad %s, %zero          PADS      beside zeros
    %g = add %p, %q             ADDS      two sums

Any other linear op makes an element of several, and has no reading.

Tail statistics: the mean of phi, or the variance, behind ops that move and scale gradients.

%s = phi's mean at a site ; %g = multiply (transpose %site), 3
    =>  phi(3) * transpose %s        where phi(ab) = phi(a) phi(b)
"""

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import jax.numpy as jnp
from jax import Array

from hlo_surgery.passes.axes.state import is_sum
from hlo_surgery.passes.dataflow.ancestors import behind_barriers, is_splat, sums_from_zero
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import Arrays, widened
from hlo_surgery.passes.ir.mlir import Operation, Value, Values
from hlo_surgery.passes.ir.traits import Kind, added_results, integers, ops_of, pads
from hlo_surgery.passes.raising.raise_op import Raised, raise_op, single
from hlo_surgery.passes.terms.scaling import exponent_of, times_power_of_two
from hlo_surgery.passes.terms.steps import Axes, Given, GradientSlice, Known, Step

Phi = Callable[[Array], Array]
MOVES, PASSED = ops_of(Kind.MOVES), ops_of(Kind.PASSES)


class Does(Enum):
    """What an op does to each element of a sum."""

    MOVES = auto()
    PASSES = auto()  # nothing, but for rounding
    SCALES = auto()
    NEGATES = auto()
    PADS = auto()
    ADDS = auto()


@dataclass(frozen=True)
class Reading:
    """An op that takes sums, its operands at these positions, and what it does to them."""

    op: Operation
    sums: tuple[int, ...]
    does: Does

    @property
    def made(self) -> Value:
        """What it makes."""
        return self.op.results[0]

    @property
    def others(self) -> Values:
        """What it takes beside sums: what it scales by, or pads with."""
        return [v for i, v in enumerate(self.op.operands) if i not in self.sums]

    @property
    def scales(self) -> bool:
        """Whether elements are changed."""
        return self.does in (Does.SCALES, Does.NEGATES)

    @property
    def divides(self) -> bool:
        """Whether it scales by the inverse."""
        return self.op.name == "stablehlo.divide"

    @property
    def keeps_elements(self) -> bool:
        """Whether each element that was moved is once in the result, beside zeros."""
        sizes = [math.prod(mlir.shape(v)) for v in (self.op.operands[self.sums[0]], self.made)]
        if self.does is not Does.PADS:
            return sizes[0] == sizes[1]
        return all(low >= 0 and high >= 0 for low, high, _ in pads(self.op))


def only_moves(readings: Sequence[Reading]) -> bool:
    """Whether no element is changed."""
    return not any(read.scales for read in readings)


def keeps_norms(readings: Sequence[Reading]) -> bool:
    """Whether no element is changed, dropped or repeated."""
    return only_moves(readings) and all(read.keeps_elements for read in readings)


def reading(op: Operation, sums: Sequence[int]) -> Reading | None:
    """What an op does to sums, its operands at these positions; None if it is more than that."""
    does = _does(op, sums)
    return Reading(op, tuple(sums), does) if does else None


def reading_of(step: Step, made: Container[Value]) -> Reading | None:
    """What a step behind the sites does to the sums that steps in front have `made`."""
    sums = [i for i, (value, _) in enumerate(step.inputs) if value in made]
    return reading(step.op, sums)


def epilogue(axes: Axes, value: Value) -> tuple[Value, list[Reading]]:
    """Where a sum comes from, and how the ops from there read, each of one sum, in order."""
    readings: list[Reading] = []
    source = behind_barriers(value)
    while (read := _last_reading(axes, source)) is not None:
        readings.insert(0, read)
        source = behind_barriers(read.op.operands[read.sums[0]])
    return source, readings


def _last_reading(axes: Axes, value: Value) -> Reading | None:
    op = mlir.defining_operation(value)
    if op is None or not axes.sums(value):
        return None
    sums = [i for i, known in enumerate(axes.at(op)) if is_sum(known)]
    return reading(op, sums) if len(sums) == 1 else None


def _does(op: Operation, sums: Sequence[int]) -> Does | None:
    if op.name == "stablehlo.add":
        zero = any(is_splat(v, 0) for v in op.operands)
        return Does.ADDS if len(sums) == 2 else Does.PASSES if sums and zero else None
    if len(sums) != 1:
        return None
    match op.name:
        case "stablehlo.negate":
            return Does.NEGATES
        case "stablehlo.multiply" | "stablehlo.divide":
            return Does.SCALES
        case "stablehlo.pad":
            return Does.PADS if is_splat(op.operands[1], 0) else None
        case name if name in PASSED:
            # Real numbers have to stay real, and complex ones complex.
            alike = mlir.is_complex(op.operands[0]) == mlir.is_complex(op.results[0])
            return Does.PASSES if alike else None
        case _:
            return Does.MOVES if moving(op) is not None else None


def moving(op: Operation) -> Raised | None:
    """An op that puts elements elsewhere, as a function of its operands; None of another op.

    A sum over sizes of 1 only, as in a transposed broadcast, is a reshape.
    """
    if _drops_unit_dimensions(op):
        shape = mlir.shape(op.result)
        return single(lambda x, _: x.reshape(shape))
    return raise_op(op) if op.name in (*MOVES, "stablehlo.pad") else None


def _drops_unit_dimensions(op: Operation) -> bool:
    if op.name != "stablehlo.reduce" or not sums_from_zero(op) or not all(added_results(op)):
        return False
    shape = mlir.shape(op.operands[0])
    return all(shape[d] == 1 for d in integers(op, "dimensions"))


def tail_powers(sliced: GradientSlice, given: Given) -> dict[Value, Array]:
    """For each op of the tail that scales, the power of two in what it scales by.

    Sites take them in with their operands: what comes into the range of floats only behind the
    tail, as the gradient of a loss that was scaled, has squares that are in twice that range at the
    site.
    """
    found: dict[Value, Array] = {}
    for step in sliced.tail:
        read = reading_of(step, sliced.made)
        if read is None or read.does is not Does.SCALES:
            continue
        scale = next(jnp.abs(widened(given[key])) for key in step.inputs if key in given)
        if read.divides:
            found[read.made] = -exponent_of(jnp.min(scale, initial=jnp.inf))
        else:
            found[read.made] = exponent_of(jnp.max(scale, initial=0))
    return found


def moved_statistic(
    sliced: GradientSlice,
    statistics: Known,
    given: Given,
    phi: Phi,
    dtype: jnp.dtype,
    of_padding: Phi | None = None,
    powers: Known | None = None,
) -> Array:
    """The mean of phi behind a tail of moves and scales, from the mean of phi in front of it.

    `of_padding`: what stands beside it where the tail pads; by default phi of what it pads with.
    `powers`: of two, by results of the tail, that the statistics have been scaled by already.
    """
    known, powers = dict(statistics), powers or {}

    def behind(read: Reading, value: Array, others: Arrays) -> Array:
        match read.does:
            case Does.NEGATES:
                return value * phi(jnp.asarray(-1, dtype))
            case Does.SCALES:
                return _scaled(value, others[0], phi, read.divides)
            case Does.MOVES | Does.PADS:
                moved = moving(read.op)
                assert moved is not None
                # A pad puts numbers beside the gradients of which phi has not been taken yet.
                padding = [(of_padding or phi)(x).astype(value.dtype) for x in others]
                return moved(value, *padding)[0]
            case _:
                return value

    for step in sliced.tail:
        read = reading_of(step, known)
        assert read is not None
        others = [
            given[key].astype(dtype) for i, key in enumerate(step.inputs) if i not in read.sums
        ]
        if (power := powers.get(read.made)) is not None:
            left = power if read.divides else -power
            others = [times_power_of_two(scale, left) for scale in others]
        value = known[step.inputs[read.sums[0]][0]]
        known[read.made] = behind(read, value, others)
    return known[sliced.value]


def _scaled(value: Array, scale: Array, phi: Phi, divides: bool) -> Array:
    """Times phi of the scale, in two halves, in range wherever the result is."""
    half = jnp.trunc(exponent_of(jnp.abs(scale)) / 2)
    power = times_power_of_two(jnp.ones_like(scale), half)
    rest = times_power_of_two(scale, -half)
    return value * phi(1 / power) * phi(1 / rest) if divides else value * phi(power) * phi(rest)
