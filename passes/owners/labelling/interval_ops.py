"""Interval ops: what ops make of integers of which bounds are known.

What moves elements moves their bounds. Of an op that makes each element of those at its place, what
it makes of known ones is known, and wraps as the op's type does; between bounds nothing may wrap,
or nothing is known.
"""

from collections.abc import Callable, Sequence
from functools import reduce

import jax.numpy as jnp
import numpy as np

from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.owners.labelling.bounds import Bounds, ends_of, tell_nothing
from hlo_surgery.passes.owners.labelling.combined_numbers import COMBINED, combined
from hlo_surgery.passes.owners.labelling.integer_ops import (
    BY_ELEMENT,
    RULES,
    Numbers,
    Undefined,
    direction_of,
    spread,
)

# Sums and products of numbers up to here fit into 64 bits.
WIDEST = 1 << 31
Interval = Callable[..., tuple[Numbers, Numbers]]


# Of what puts numbers at places, or takes them from there, how many operands are no places.
ARRAYS = {"stablehlo.dynamic_slice": 1, "stablehlo.dynamic_update_slice": 2}


def made_of(op: Operation, number: int, steps: int, operands: Sequence[Bounds]) -> Bounds | None:
    """Those of one of an op's results, by its number; None if nothing is known of it."""
    try:
        with np.errstate(all="ignore"):
            found = _made_of(op, number, steps, operands)
    except Undefined:
        return None
    return None if found is None or tell_nothing(found) else found


def _made_of(op: Operation, number: int, steps: int, operands: Sequence[Bounds]) -> Bounds | None:
    if op.name in COMBINED:
        return combined(op, number, steps, operands)
    if op.name in BY_ELEMENT:
        return _by_element(op, steps, operands)
    arrays = ARRAYS.get(op.name, len(operands))
    if not all(start.are_all_known for start in operands[arrays:]):
        return None
    low, high = ([getattr(x, end) for x in operands] for end in ("low", "high"))
    return Bounds(RULES[op.name](op, steps, *low), RULES[op.name](op, steps, *high))


def _by_element(op: Operation, steps: int, operands: Sequence[Bounds]) -> Bounds:
    dtype = dtype_of(op.results[0])
    exact = RULES[op.name](op, steps, *(x.low for x in operands)).astype(dtype)
    like = max((x.low for x in operands), key=np.ndim)
    known = reduce(np.logical_and, (spread(x.known, like, steps) for x in operands))
    ends = Bounds(*INTERVALS.get(op.name, _any_number)(op, steps, *operands))
    return ends.each(lambda end: np.where(known, exact, end.astype(dtype)))


def _any_number(op: Operation, steps: int, *operands: Bounds) -> tuple[Numbers, Numbers]:
    return ends_of(dtype_of(op.results[0]))


def _in_order(op: Operation, steps: int, *operands: Bounds) -> tuple[Numbers, Numbers]:
    """Of an op that makes no less of greater numbers."""
    low, high = ([getattr(x, end) for x in operands] for end in ("low", "high"))
    return RULES[op.name](op, steps, *low), RULES[op.name](op, steps, *high)


def _of_truths(op: Operation, steps: int, *operands: Bounds) -> tuple[Numbers, Numbers]:
    truths = dtype_of(op.results[0]) == np.bool_
    return (_in_order if truths else _of_bits)(op, steps, *operands)


def _of_bits(op: Operation, steps: int, a: Bounds, b: Bounds) -> tuple[Numbers, Numbers]:
    """Where neither is negative no bit is beyond the greatest of both; `and` has none beyond
    either that is not.
    """
    least, greatest = ends_of(a.low.dtype)
    positive = [x.low >= 0 for x in (a, b)]
    if op.name == "stablehlo.and":
        tops = [np.where(p, x.high, greatest) for p, x in zip(positive, (a, b), strict=True)]
        return np.where(np.logical_or(*positive), 0, least), np.minimum(*tops)
    both = np.logical_and(*positive)
    top = _all_bits_up_to(np.maximum(a.high, b.high))
    return np.where(both, 0, least), np.where(both, top, greatest)


def _all_bits_up_to(numbers: Numbers) -> Numbers:
    """Of each that is not negative, the greatest with no higher bit."""
    for shift in (1, 2, 4, 8, 16, 32):
        fits = shift < jnp.iinfo(numbers.dtype).bits
        numbers = numbers | (numbers >> shift) if fits else numbers
    return numbers


def _shift_right(op: Operation, steps: int, x: Bounds, by: Bounds) -> tuple[Numbers, Numbers]:
    """By one number; filled with zeros what is negative gets great."""
    keeps_order = (x.low >= 0) | (op.name == "stablehlo.shift_right_arithmetic")
    told, (least, greatest) = by.known & keeps_order, ends_of(x.low.dtype)
    return np.where(told, x.low >> by.low, least), np.where(told, x.high >> by.low, greatest)


def _complement(op: Operation, steps: int, x: Bounds) -> tuple[Numbers, Numbers]:
    return np.invert(x.high), np.invert(x.low)


def _compare(op: Operation, steps: int, a: Bounds, b: Bounds) -> tuple[Numbers, Numbers]:
    """Whether it is always so, and whether it may be."""
    less = (a.high < b.low, a.low < b.high)
    at_most = (a.high <= b.low, a.low <= b.high)
    alike = (a.known & b.known & (a.low == b.low), at_most[1] & (b.low <= a.high))
    return {
        "LT": less,
        "LE": at_most,
        "EQ": alike,
        "GT": _neither(*at_most),
        "GE": _neither(*less),
        "NE": _neither(*alike),
    }[direction_of(op)]


def _neither(always: Numbers, may: Numbers) -> tuple[Numbers, Numbers]:
    return ~may, ~always


def _select(
    op: Operation, steps: int, chosen: Bounds, a: Bounds, b: Bounds
) -> tuple[Numbers, Numbers]:
    always, may = (spread(x, a.low, steps) for x in (chosen.low, chosen.high))
    low, high = np.minimum(a.low, b.low), np.maximum(a.high, b.high)
    return (
        np.where(always, a.low, np.where(may, low, b.low)),
        np.where(always, a.high, np.where(may, high, b.high)),
    )


def _convert(op: Operation, steps: int, x: Bounds) -> tuple[Numbers, Numbers]:
    if dtype_of(op.results[0]) == np.bool_:
        return (x.low > 0) | (x.high < 0), (x.low != 0) | (x.high != 0)
    return _wide(lambda x: (x.low, x.high))(op, steps, x)


def _wide(rule: Interval) -> Interval:
    """In 64 bits, of numbers of which that has room for sums and products; what does not fit into
    the op's type may be any number of it.
    """

    def interval(op: Operation, steps: int, *operands: Bounds) -> tuple[Numbers, Numbers]:
        least, greatest = ends_of(dtype_of(op.results[0]))
        narrow = [_narrow(x) for x in operands]
        low, high = rule(*(x for x, _ in narrow))
        fits = reduce(np.logical_and, (fits for _, fits in narrow))
        fits = fits & (low >= int(least)) & (high <= int(greatest))
        return (
            np.where(fits, low.astype(least.dtype), least),
            np.where(fits, high.astype(least.dtype), greatest),
        )

    return interval


def _narrow(x: Bounds) -> tuple[Bounds, Numbers]:
    """Numbers in 64 bits, and which of them are not too large; zeros for the others."""
    # The greatest of this type alone have no room in 64 bits with a sign.
    large = x.high > WIDEST if x.high.dtype == np.uint64 else np.zeros_like(x.high, np.bool_)
    low, high = (np.where(large, 0, end).astype(np.int64) for end in (x.low, x.high))
    fits = ~large & (low >= -WIDEST) & (high <= WIDEST)
    return Bounds(np.where(fits, low, 0), np.where(fits, high, 0)), fits


def _size(x: Bounds) -> tuple[Numbers, Numbers]:
    least = np.maximum(np.maximum(x.low, -x.high), 0)
    return least, np.maximum(-x.low, x.high)


def _product(a: Bounds, b: Bounds) -> tuple[Numbers, Numbers]:
    ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return reduce(np.minimum, ends), reduce(np.maximum, ends)


# No type has these, nor sums of two of them: bounds of what may be any number.
LEAST, GREATEST = np.int64(-(1 << 62)), np.int64(1 << 62)


def _quotient(a: Bounds, b: Bounds) -> tuple[Numbers, Numbers]:
    """Over one positive number; rounded to zero, which keeps the order."""
    one = b.known & (b.low > 0)
    by = np.where(one, b.low, 1)
    low, high = ((x - np.fmod(x, by)) // by for x in (a.low, a.high))
    return np.where(one, low, LEAST), np.where(one, high, GREATEST)


def _remainder(op: Operation, steps: int, a: Bounds, b: Bounds) -> tuple[Numbers, Numbers]:
    """Less than the size of one number, with the sign of what is divided."""
    # The least of a type has no size in it.
    size, (least, greatest) = np.abs(b.low), ends_of(a.low.dtype)
    one = b.known & (size > 0)
    by = np.where(one, size, 1)
    top = by - 1
    alike = (a.low >= 0) & (a.low // by == a.high // by)
    below = np.clip(a.low, -top, 0) if least < 0 else np.zeros_like(top)
    low = np.where(alike, a.low % by, below)
    high = np.where(alike, a.high % by, np.clip(a.high, 0, top))
    return np.where(one, low, least), np.where(one, high, greatest)


INTERVALS: dict[str, Interval] = {
    "stablehlo.sign": _in_order,
    "stablehlo.minimum": _in_order,
    "stablehlo.maximum": _in_order,
    "stablehlo.clamp": _in_order,
    "stablehlo.and": _of_truths,
    "stablehlo.or": _of_truths,
    "stablehlo.shift_right_arithmetic": _shift_right,
    "stablehlo.shift_right_logical": _shift_right,
    "stablehlo.not": _complement,
    "stablehlo.compare": _compare,
    "stablehlo.select": _select,
    "stablehlo.convert": _convert,
    "stablehlo.add": _wide(lambda a, b: (a.low + b.low, a.high + b.high)),
    "stablehlo.subtract": _wide(lambda a, b: (a.low - b.high, a.high - b.low)),
    "stablehlo.negate": _wide(lambda x: (-x.high, -x.low)),
    "stablehlo.abs": _wide(_size),
    "stablehlo.multiply": _wide(_product),
    "stablehlo.divide": _wide(_quotient),
    "stablehlo.remainder": _remainder,
}
