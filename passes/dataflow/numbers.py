"""Numbers: what integers are, at all steps of a loop at once, where counters and constants tell.

    %i counts 0 .. T-1 ;  %j = select (%i < 0), (%i + T), %i        %j: [0, .., T-1], one a step
    iota [B, 1], concatenated with %labels [B, 1] along 1           the first column: [0, .., B-1]

JAX writes an index with much arithmetic around it, which is worked out here by numpy, op by op.
Arrays have a step's axis in front, of size 1 where the steps do not differ.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import integer, integers
from hlo_surgery.passes.ir.constants import elements
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.mlir import Operation, Value, stablehlo

Numbers = npt.NDArray[Any]
Counters = dict[Value, Numbers]
LARGEST = 1 << 22
DEEPEST = 100
DIVIDING = frozenset(["stablehlo.divide", "stablehlo.remainder"])
COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}
ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "stablehlo.add": np.add,
    "stablehlo.subtract": np.subtract,
    "stablehlo.multiply": np.multiply,
    "stablehlo.divide": lambda x, y: np.trunc(x / y),
    "stablehlo.remainder": np.fmod,
    "stablehlo.minimum": np.minimum,
    "stablehlo.maximum": np.maximum,
    "stablehlo.select": np.where,
    "stablehlo.clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "stablehlo.and": np.bitwise_and,
    "stablehlo.or": np.bitwise_or,
    "stablehlo.not": np.invert,
    "stablehlo.negate": np.negative,
    "stablehlo.convert": lambda x: x,
}


def is_permutation(numbers: Numbers | None, size: int) -> bool:
    """Whether the numbers are 0 .. size-1, each once."""
    return (
        numbers is not None
        and len(numbers) == size
        and bool((np.sort(numbers) == np.arange(size)).all())
    )


def values_over(value: Value, counters: Counters) -> Numbers | None:
    """A scalar's numbers, one an iteration; None if it is not of counters and constants alone."""
    told = Told().numbers(value, counters)
    trips = len(next(iter(counters.values())))
    return None if told is None else np.broadcast_to(told.reshape(len(told)), trips)


class Told:
    """What is worked out of a module's integers, for each loop around them, or for none. `stacks`:
    of what a loop stacks, each step at a place of its own, what a step writes.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Value, int], Numbers | None] = {}
        self.stacks: dict[Value, Value] = {}
        self._depth = 0

    def numbers(self, value: Value, counters: Counters | None) -> Numbers | None:
        """[trips or 1, *shape]; None where constants and counters, of one loop, do not tell."""
        key = value, id(counters)
        if key not in self._known:
            # Nothing is told of a cycle, nor of what is longer than any index that JAX writes.
            self._known[key] = None
            self._depth += 1
            if self._depth < DEEPEST:
                self._known[key] = self._worked_out(value, counters)
            self._depth -= 1
        return self._known[key]

    def _worked_out(self, value: Value, counters: Counters | None) -> Numbers | None:
        if mlir.is_inexact(value) or math.prod(mlir.shape(value)) > LARGEST:
            return None
        op = mlir.defining_operation(value)
        if op is None:
            return self._of_argument(value, counters)
        if op.name == mlir.BARRIER:
            return self.numbers(op.operands[mlir.results(op).index(value)], counters)
        if op.name == "stablehlo.constant":
            return elements(op)[None]
        if op.name == "stablehlo.iota":
            return _iota(op)
        made = _MADE.get(op.name)
        if made is None and op.name not in ELEMENTWISE:
            return None
        if op.name in DIVIDING and not _divides(self.numbers(op.operands[1], counters)):
            return None
        operands = [self.numbers(v, counters) for v in op.operands]
        given = [x for x in operands if x is not None]
        if len(given) < len(operands) or max(len(x) for x in given) * value_size(value) > LARGEST:
            return None
        return made(op, given) if made else _elementwise(op, given)

    def _of_argument(self, value: Value, counters: Counters | None) -> Numbers | None:
        """A counter's numbers; of what a loop hands on unchanged, those of what it starts from."""
        if counters is not None and value in counters:
            return counters[value]
        source = unchanged(value)
        return None if source is None else self.numbers(source, counters)

    def column(
        self, indices: Value, number: int, along: int, counters: Counters | None
    ) -> Numbers | None:
        """One number of each index vector, these lying `along` a dimension; None if not told."""
        op = mlir.defining_operation(indices)
        whole = self.numbers(indices, counters)
        if whole is not None:
            is_vector = along < whole.ndim - 1
            return np.take(whole, number, along + 1) if is_vector else whole
        if op is not None and op.name == mlir.BARRIER:
            source = op.operands[mlir.results(op).index(indices)]
            return self.column(source, number, along, counters)
        if op is None:
            source = unchanged(indices)
            return None if source is None else self.column(source, number, along, counters)
        if op.name == "stablehlo.dynamic_slice":
            part = self._stacked(op)
            return None if part is None else self.column(part, number, along, None)
        if op.name in ("stablehlo.reshape", "stablehlo.broadcast_in_dim"):
            return self._column_reshaped(op, number, along, counters)
        if op.name in ELEMENTWISE:
            return self._column_of(op, number, along, counters)
        if op.name != "stablehlo.concatenate" or integer(op, "dimension") != along:
            return None
        for piece in op.operands:
            if number < mlir.shape(piece)[along]:
                return self.column(piece, number, along, counters)
            number -= mlir.shape(piece)[along]
        return None

    def _stacked(self, op: Operation) -> Value | None:
        """What a step of a loop wrote into a stack, of which this slice is one of the steps'."""
        source: Value | None = op.operands[0]
        while source is not None and source not in self.stacks:
            source = unchanged(source) if mlir.defining_operation(source) is None else None
        part = None if source is None else self.stacks[source]
        alike = part is not None and mlir.shape(part) == mlir.shape(op.results[0])
        return part if alike else None

    def _column_reshaped(
        self, op: Operation, number: int, along: int, counters: Counters | None
    ) -> Numbers | None:
        """A column of what a dimension of size 1 in front is added to, or taken from."""
        before, after = mlir.shape(op.operands[0]), mlir.shape(op.results[0])
        added = len(before) - len(after)
        if added == 1 and before == (1, *after):
            found = self.column(op.operands[0], number, along + 1, counters)
            return None if found is None else found[:, 0]
        in_order = op.name == "stablehlo.reshape" or _is_in_order(op)
        if added == -1 and (1, *before) == after and along > 0 and in_order:
            found = self.column(op.operands[0], number, along - 1, counters)
            return None if found is None else found[:, None]
        return None

    def _column_of(
        self, op: Operation, number: int, along: int, counters: Counters | None
    ) -> Numbers | None:
        """A column of what is made element by element, as where indices are clamped."""
        shape = mlir.shape(op.results[0])
        operands = [
            self.column(v, number, along, counters)
            if mlir.shape(v) == shape
            else self.numbers(v, counters)
            for v in op.operands
        ]
        given = [x for x in operands if x is not None]
        return _elementwise(op, given) if len(given) == len(operands) else None


def _is_in_order(broadcast: Operation) -> bool:
    """Whether a broadcast keeps its operand's dimensions behind a new one."""
    dims = integers(broadcast, "broadcast_dimensions")
    return dims == tuple(range(1, len(dims) + 1))


def value_size(value: Value) -> int:
    """How many elements a value has."""
    return math.prod(mlir.shape(value))


def unchanged(argument: Value) -> Value | None:
    """What a loop starts an argument of its body from and hands on as it is; None of any other."""
    block = cast(Any, argument.owner)
    loop = block.owner.operation
    if loop.name != "stablehlo.while":
        return None
    number = list(block.arguments).index(argument)
    body = loop.regions[1].blocks[0]
    returned = mlir.return_operation(body).operands[number]
    return loop.operands[number] if returned == body.arguments[number] else None


def _divides(numbers: Numbers | None) -> bool:
    """Whether all numbers are other than zero, and small enough for quotients to be exact."""
    return numbers is not None and bool((numbers != 0).all() and (abs(numbers) < 1 << 31).all())


def _elementwise(op: Operation, operands: Sequence[Numbers]) -> Numbers:
    # A number beside an array, as `select` and `clamp` take it, meets all its elements.
    rank = max(x.ndim for x in operands)
    shaped = [x.reshape(x.shape + (1,) * (rank - x.ndim)) for x in operands]
    with np.errstate(over="ignore"):
        return np.asarray(ELEMENTWISE[op.name](*shaped)).astype(dtype_of(op.results[0]))


def _iota(op: Operation) -> Numbers:
    shape, dim = mlir.shape(op.results[0]), integer(op, "iota_dimension")
    along = [n if d == dim else 1 for d, n in enumerate(shape)]
    counted = np.arange(shape[dim]).astype(dtype_of(op.results[0]))
    return np.broadcast_to(counted.reshape(along), shape)[None]


def _compared(op: Operation, operands: Sequence[Numbers]) -> Numbers:
    attribute = op.attributes["comparison_direction"]
    direction = str(cast(Any, stablehlo).ComparisonDirectionAttr(attribute).value)
    return np.asarray(COMPARED[direction](*operands))


def _broadcast(op: Operation, operands: Sequence[Numbers]) -> Numbers:
    (x,), shape = operands, mlir.shape(op.results[0])
    sizes = [1] * len(shape)
    for dim, size in zip(integers(op, "broadcast_dimensions"), x.shape[1:], strict=True):
        sizes[dim] = size
    return np.broadcast_to(x.reshape(len(x), *sizes), (len(x), *shape))


def _reshaped(op: Operation, operands: Sequence[Numbers]) -> Numbers:
    return operands[0].reshape(len(operands[0]), *mlir.shape(op.results[0]))


def _concatenated(op: Operation, operands: Sequence[Numbers]) -> Numbers:
    steps = max(map(len, operands))
    each = [np.broadcast_to(x, (steps, *x.shape[1:])) for x in operands]
    return np.concatenate(each, integer(op, "dimension") + 1)


def _sliced(op: Operation, operands: Sequence[Numbers]) -> Numbers:
    bounds = (integers(op, name) for name in ("start_indices", "limit_indices", "strides"))
    return operands[0][(slice(None), *map(slice, *bounds))]


def _looked_up(op: Operation, operands: Sequence[Numbers]) -> Numbers:
    """A slice at the numbers of each step; StableHLO keeps it within bounds."""
    whole, *starts = operands
    sizes, steps = mlir.shape(op.results[0]), max(map(len, operands))
    rows: list[Numbers] = []
    for t in range(steps):
        pairs = zip(starts, sizes, whole.shape[1:], strict=True)
        firsts = [min(max(int(s[t % len(s)]), 0), n - m) for s, m, n in pairs]
        rows.append(whole[t % len(whole)][tuple(map(slice, firsts, np.add(firsts, sizes)))])
    return np.stack(rows)


_MADE: dict[str, Callable[[Operation, Sequence[Numbers]], Numbers]] = {
    "stablehlo.compare": _compared,
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.reshape": _reshaped,
    "stablehlo.concatenate": _concatenated,
    "stablehlo.slice": _sliced,
    "stablehlo.dynamic_slice": _looked_up,
}
