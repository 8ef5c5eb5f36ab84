"""Makings: what a constant part of a gradient is made of, and which dimensions that sums.

%g = add %sum, %r ; %r = reduce %m over [B] ; %m = multiply %k, %b      %r is made of %m, %k, %b
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial

from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.dataflow.hidden_parameters import MADE_FROM
from hlo_surgery.passes.dataflow.linked import ties
from hlo_surgery.passes.dataflow.uniform import Along, Known, is_uniform
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import dot_numbers, integers
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.constants import is_table
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.alignment.rows_of_matrices import rows_from


def made_of(value: Value) -> list[Value]:
    """What a value is made of, a state of a loop or branch of all of the same."""
    op = mlir.defining_operation(value)
    if op is None or op.name in mlir.CONTROL_FLOW or op.name == mlir.BARRIER:
        return ties(value)
    return mlir.operands(op)


def makers(values: Iterable[Value]) -> list[Operation]:
    """The ops that make values, each once."""
    return list(dict.fromkeys(filter(None, map(mlir.defining_operation, values))))


# Ops of which each dimension is one of each operand's as well.
KEEPING = frozenset(
    f"stablehlo.{name}"
    for name in (
        "concatenate",
        "dynamic_update_slice",
        "fft",
        "pad",
        "reduce_window",
        "reverse",
        "slice",
        "sort",
    )
)


def summed(op: Operation) -> Iterator[list[Along]]:
    """The dimensions that an op sums: of an operand, or of two that meet along it. Of a convolution
    each counts, whichever windows lie along it.
    """
    if op.name == "stablehlo.reduce":
        count = len(op.operands) // 2
        for value in op.operands[:count]:
            yield from ([whole(value, dim)] for dim in integers(op, "dimensions"))
    elif op.name == "stablehlo.dot_general":
        lhs, rhs = op.operands
        numbers = dot_numbers(op)
        sides = numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions
        yield from ([whole(lhs, own), whole(rhs, dim)] for own, dim in zip(*sides, strict=True))
    elif op.name == "stablehlo.convolution":
        yield from ([whole(v, dim)] for v in op.operands for dim in range(len(mlir.shape(v))))


def whole(value: Value, dim: int) -> Along:
    """A whole dimension of a value."""
    return value, PerExample(dim), mlir.shape(value)[dim]


def has_rows(along: Along, parameters: Collection[Value], known: Known) -> bool:
    """Whether a value differs along an axis, by what is not made of parameters alone."""
    starts = starts_along(along, known)
    return any(not is_of_parameters(each, parameters, known) for each in starts)


def starts_along(along: Along, known: Known) -> list[Along]:
    """Where that begins by which a value differs along an axis, as far as the ops show."""
    found = closure([along], partial(_differing, known))
    differing = [each for each in found if not is_uniform(*each, known)]
    return [each for each in differing if not _goes_on(each, known)]


def _differing(known: Known, along: Along) -> list[Along]:
    """What a value has its differences along an axis from, where its op shows that."""
    return [] if is_uniform(*along, known) else rows_from(*along)


def _goes_on(along: Along, known: Known) -> bool:
    """Whether what a value has its rows from differs along the axis itself."""
    return any(not is_uniform(*each, known) for each in rows_from(*along))


def is_of_parameters(start: Along, parameters: Collection[Value], known: Known) -> bool:
    """Whether what begins to differ along an axis does so by parameters, which with single numbers
    are all that it is made of, and not by where those numbers are put.
    """
    if not _is_made_of(start[0], parameters, _holds_rows):
        return False
    behind = closure([start], partial(_behind_start, known))
    return any(v in parameters for v, *_ in behind)


def _behind_start(known: Known, start: Along) -> list[Along]:
    """Where that begins by which the operands of an op differ, along the same dimension if it keeps
    these, or along any.
    """
    op = mlir.defining_operation(start[0])
    if op is None:
        return []
    dim, keeps = start[1].dim, op.name in KEEPING
    # Of a scatter what it puts rows among.
    operands = mlir.operands(op)[:1] if op.name == "stablehlo.scatter" else mlir.operands(op)
    places = ((v, d) for v in operands for d in range(len(mlir.shape(v))) if d == dim or not keeps)
    return [each for place in places for each in starts_along(whole(*place), known)]


def _holds_rows(op: Operation) -> bool:
    return op.name in MADE_FROM or is_table(op)


def _holds_other_rows(op: Operation) -> bool:
    """Whether an op has rows that are not counted."""
    return op.name != "stablehlo.iota" and _holds_rows(op)


def is_counted(value: Value, parameters: Collection[Value]) -> bool:
    """Whether all that a value is made of beside parameters is counted, as an identity is."""
    return _is_made_of(value, parameters, _holds_other_rows)


def _is_made_of(
    value: Value, parameters: Collection[Value], is_barred: Callable[[Operation], bool]
) -> bool:
    """Whether a value rests on no other arguments than parameters, and on none of some ops."""
    for v in closure([value], made_of):
        op = mlir.defining_operation(v)
        if op is None and not ties(v) and v not in parameters:
            return False
        if op is not None and is_barred(op):
            return False
    return True


# The form of each value, a number for each that is another.
Forms = dict[object, int]


def form(value: Value, seen: Forms) -> int:
    """What a value is made by, whatever the numbers in it are: equal for c * f and k * f."""
    pending = [value]
    while pending:
        operands = _parts(pending[-1])
        if missing := [v for v in operands if v not in seen]:
            pending += missing
        else:
            one = pending.pop()
            seen[one] = seen.setdefault(("form", _key(one, operands, seen)), len(seen))
    return seen[value]


def _parts(value: Value) -> list[Value]:
    """The operands of the op that makes a value, where its form rests on them."""
    op = mlir.defining_operation(value)
    return [] if op is None or op.name in mlir.CONTROL_FLOW else mlir.operands(op)


def _key(value: Value, operands: Iterable[Value], seen: Forms) -> object:
    op = mlir.defining_operation(value)
    if op is None or op.name in mlir.CONTROL_FLOW:
        return value
    return op.name, str(value.type), tuple(seen[operand] for operand in operands)
