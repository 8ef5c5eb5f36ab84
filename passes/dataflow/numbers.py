"""Numbers: what integers are, at all steps of a loop at once, where counters and constants tell.

    %i counts 0 .. T-1 ;  %j = select (%i < 0), (%i + T), %i        %j: [0, .., T-1], one a step
    iota [B, 1], concatenated with %labels [B, 1] along 1           the first column: [0, .., B-1]

JAX writes an index with much arithmetic around it, which is worked out here by numpy, op by op.
Arrays have a step's axis in front, of size 1 where the steps do not differ. What a loop hands on as
it is, normalising has taken out of it.

Counters: given a loop, how often it runs, and what its counters take.

%i = 0, 1, ... N-1 (compare LT %i, N ; add %i, 1)    =>    trips: N, %i: [0, ..., N-1]
"""

import math
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import dtype_of, elements, has_numbers, is_static_array
from hlo_surgery.passes.ir.mlir import Block, Operation, Value, stablehlo
from hlo_surgery.passes.ir.traits import integer, integers

Numbers = npt.NDArray[Any]
Counters = dict[Value, Numbers]
LARGEST = 1 << 22
DEEPEST = 100
# Of numbers alone: XLA adds truth values otherwise where it folds constants than where it runs.
ARITHMETIC: dict[str, Callable[..., Any]] = {
    "stablehlo.add": np.add,
    "stablehlo.subtract": np.subtract,
    "stablehlo.multiply": np.multiply,
    "stablehlo.negate": np.negative,
}
ELEMENTWISE: dict[str, Callable[..., Any]] = {
    **ARITHMETIC,
    "stablehlo.minimum": np.minimum,
    "stablehlo.maximum": np.maximum,
    "stablehlo.select": np.where,
    "stablehlo.clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "stablehlo.and": np.bitwise_and,
    "stablehlo.or": np.bitwise_or,
    "stablehlo.not": np.invert,
    "stablehlo.convert": lambda x: x,
}


class Partly(NamedTuple):
    """Numbers, and which of them are known, in one shape."""

    numbers: Numbers
    known: Numbers


def evaluate(value: Value) -> Numbers | None:
    """The numbers of a value of integers; None if it is not of constants alone."""
    told = Told().numbers(value, None)
    return None if told is None else told[0]


class Told:
    """What is worked out of a module's integers, for each loop around them, or for none. `stacks`:
    of what a loop stacks, each step at a place of its own, what a step writes.
    """

    def __init__(self) -> None:
        self._told: dict[tuple[Value, int], Partly | None] = {}
        self.stacks: dict[Value, Value] = {}
        self._depth = 0

    def numbers(self, value: Value, counters: Counters | None) -> Numbers | None:
        """[trips or 1, *shape]; None where constants and counters, of one loop, do not tell."""
        found = self._partly(value, counters)
        return found.numbers if found and found.known.all() else None

    def column(
        self, indices: Value, number: int, along: int, counters: Counters | None
    ) -> Numbers | None:
        """One number of each index vector, these lying `along` a dimension; None if not told."""
        found = self._partly(indices, counters)
        if found and along < found.numbers.ndim - 1:
            found = Partly(*(np.take(x, number, along + 1) for x in found))
        return found.numbers if found and found.known.all() else None

    def _partly(self, value: Value, counters: Counters | None) -> Partly | None:
        key = value, id(counters)
        if key not in self._told:
            # Nothing is told of a cycle, nor of what is longer than any index that JAX writes.
            self._told[key] = None
            self._depth += 1
            if self._depth < DEEPEST:
                self._told[key] = self._worked_out(value, counters)
            self._depth -= 1
        return self._told[key]

    def _worked_out(self, value: Value, counters: Counters | None) -> Partly | None:
        if counters is not None and value in counters:
            return _whole(counters[value])
        if not _is_counted(value):
            return None
        op = mlir.defining_operation(value)
        if op is None:
            return None
        if op.name == mlir.BARRIER:
            return self._partly(op.operands[mlir.results(op).index(value)], counters)
        if op.name == "stablehlo.constant":
            return _whole(elements(op)[None])
        if op.name == "stablehlo.iota":
            return _whole(_iota(op))
        part = self._stacked(op) if op.name == "stablehlo.dynamic_slice" else None
        return self._made(op, counters) if part is None else self._partly(part, None)

    def _made(self, op: Operation, counters: Counters | None) -> Partly | None:
        moved = _MOVED.get(op.name)
        if moved is None and op.name not in (*ELEMENTWISE, "stablehlo.compare"):
            return None
        found = [self._partly(v, counters) for v in op.operands]
        if op.name == "stablehlo.concatenate":
            found = [x or _unknown(v) for x, v in zip(found, op.operands, strict=True)]
        given = [x for x in found if x]
        size = math.prod(mlir.shape(op.result))
        if len(given) < len(found) or max(len(x.known) for x in given) * size > LARGEST:
            return None
        return moved(op, given) if moved else _elementwise(op, given)

    def _stacked(self, op: Operation) -> Value | None:
        """What a step of a loop wrote into a stack, of which this slice is one of the steps'."""
        part = self.stacks.get(op.operands[0])
        alike = part is not None and mlir.shape(part) == mlir.shape(op.result)
        return part if alike else None


def _is_counted(value: Value) -> bool:
    """Whether a value is an array of integers or truth values of which numpy knows the arithmetic,
    and not larger than any index.
    """
    is_array = is_static_array(value) and dtype_of(value).kind in "biu"
    return is_array and math.prod(mlir.shape(value)) <= LARGEST


def _whole(numbers: Numbers) -> Partly:
    return Partly(numbers, np.broadcast_to(True, numbers.shape))


def _unknown(value: Value) -> Partly:
    shape = (1, *mlir.shape(value))
    return Partly(np.broadcast_to(dtype_of(value).type(0), shape), np.broadcast_to(False, shape))


def _elementwise(op: Operation, operands: Sequence[Partly]) -> Partly | None:
    if op.name in ARITHMETIC and not has_numbers(op):
        return None
    # Python's operators go by the names that StableHLO's comparisons have.
    function = ELEMENTWISE.get(op.name) or getattr(operator, _direction(op).lower())
    # A number beside an array, as `select` and `clamp` take it, meets all its elements.
    rank = max(x.known.ndim for x in operands)
    numbers, known = (
        [x.reshape(x.shape + (1,) * (rank - x.ndim)) for x in each]
        for each in zip(*operands, strict=True)
    )
    with np.errstate(over="ignore"):
        made = np.asarray(function(*numbers)).astype(dtype_of(op.result))
    return Partly(made, reduce(np.logical_and, known))


def _direction(compare: Operation) -> str:
    attribute = compare.attributes["comparison_direction"]
    return str(stablehlo.ComparisonDirectionAttr(attribute).value)


def _iota(op: Operation) -> Numbers:
    shape, dim = mlir.shape(op.result), integer(op, "iota_dimension")
    along = [n if d == dim else 1 for d, n in enumerate(shape)]
    counted = np.arange(shape[dim]).astype(dtype_of(op.result))
    return np.broadcast_to(counted.reshape(along), shape)[None]


def _broadcast(op: Operation, x: Numbers) -> Numbers:
    shape = mlir.shape(op.result)
    sizes = [1] * len(shape)
    for dim, size in zip(integers(op, "broadcast_dimensions"), x.shape[1:], strict=True):
        sizes[dim] = size
    return np.broadcast_to(x.reshape(len(x), *sizes), (len(x), *shape))


def _reshaped(op: Operation, x: Numbers) -> Numbers:
    return x.reshape(len(x), *mlir.shape(op.result))


def _sliced(op: Operation, x: Numbers) -> Numbers:
    bounds = (integers(op, name) for name in ("start_indices", "limit_indices", "strides"))
    return x[(slice(None), *map(slice, *bounds))]


def _concatenated(op: Operation, operands: Sequence[Partly]) -> Partly:
    steps, dim = max(len(x.known) for x in operands), integer(op, "dimension") + 1
    alike = [[np.broadcast_to(x, (steps, *x.shape[1:])) for x in each] for each in operands]
    return Partly(*(np.concatenate(each, dim) for each in zip(*alike, strict=True)))


def _looked_up(op: Operation, operands: Sequence[Partly]) -> Partly | None:
    """A slice at the numbers of each step; StableHLO keeps it within bounds."""
    whole, *starts = operands
    if not all(x.known.all() for x in starts):
        return None
    sizes, steps = mlir.shape(op.result), max(len(x.known) for x in operands)
    last = np.subtract(whole.known.shape[1:], sizes)
    firsts = [np.clip(x.numbers, 0, n) for x, n in zip(starts, last, strict=True)]
    places = np.broadcast_arrays(np.arange(steps) % len(whole.known), *firsts)
    dims = range(1, whole.known.ndim)
    return Partly(*(sliding_window_view(x, sizes, tuple(dims))[tuple(places)] for x in whole))


def _alike(move: Callable[[Operation, Numbers], Numbers]) -> "Moved":
    """Of an op of one operand: what is known of its numbers moves with them."""
    return lambda op, operands: Partly(*(move(op, x) for x in operands[0]))


Moved = Callable[[Operation, Sequence[Partly]], Partly | None]
_MOVED: dict[str, Moved] = {
    "stablehlo.broadcast_in_dim": _alike(_broadcast),
    "stablehlo.reshape": _alike(_reshaped),
    "stablehlo.slice": _alike(_sliced),
    "stablehlo.concatenate": _concatenated,
    "stablehlo.dynamic_slice": _looked_up,
}


LONGEST = 1 << 20


def counter_values(loop: Operation) -> Counters | None:
    """Each counter's numbers (by body argument), one an iteration; None for unknown trips. They are
    of its own type, in which it may wrap.
    """
    condition, body = mlir.blocks(loop)
    states = zip(loop.operands, body.arguments, mlir.returned(body), strict=True)
    counted = {i: found for i, state in enumerate(states) if (found := _start_and_step(*state))}
    trips = _trips(condition, counted)
    if trips is None:
        return None
    return {
        body.arguments[i]: start + np.arange(trips).astype(start.dtype) * step
        for i, (start, step) in counted.items()
    }


def _start_and_step(
    initial: Value, counter: Value, returned: Value
) -> tuple[Numbers, Numbers] | None:
    """Of an integer that starts at a constant, and to which a constant is added; a truth value does
    not grow.
    """
    op = mlir.made_by(returned, "stablehlo.add")
    terms = [] if op is None or mlir.shape(returned) else [v for v in op.operands if v != counter]
    if len(terms) != 1 or dtype_of(returned) == np.bool_:
        return None
    start, step = evaluate(initial), evaluate(terms[0])
    return None if start is None or step is None else (start, step)


def _trips(condition: Block, counted: dict[int, tuple[Numbers, Numbers]]) -> int | None:
    """How often a counter that grows is less than a constant; None where that is not asked."""
    op = mlir.made_by(mlir.returned(condition)[0], "stablehlo.compare")
    if op is None or _direction(op) != "LT":
        return None
    limit = evaluate(op.operands[1])
    asked = [own for i, own in counted.items() if condition.arguments[i] == op.operands[0]]
    if not asked or limit is None:
        return None
    start, step = map(int, asked[0])
    trips = max(0, -((start - int(limit)) // step)) if step > 0 else LONGEST + 1
    # Beyond the largest of its type a counter wraps, and goes on.
    is_held = start + trips * step <= np.iinfo(limit.dtype).max
    return trips if trips <= LONGEST and is_held else None
