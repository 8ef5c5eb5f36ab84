"""Loop steps: which values inside a loop may differ from step to step, and which are all the same.

    while %i < n { %a = dynamic_slice %x, %i ; %b = sine %m ; ... }
        %i, %a vary, %b does not (%m is from outside)

What varies is followed from the loop's own state through all that is made from it, into the loops
and branches within.
"""

from collections.abc import Iterable, Iterator
from typing import Any, cast

from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.dataflow.uniform import is_uniform
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.mlir import Operation, Value


def varying_values(loop: Operation) -> frozenset[Value]:
    """What may differ between steps of a loop, of all values inside."""
    arguments: list[Value] = [a for region in loop.regions for a in region.blocks[0].arguments]
    return frozenset(values_from(arguments, loop))


def varies(known: dict[Value, frozenset[Value]], loop: Operation, value: Value) -> bool:
    """Whether a value may differ from one step of a loop to another.

    `known`: what may, by the first result of a loop, of the same module as it is now.
    """
    key = loop.results[0]
    if key not in known:
        known[key] = varying_values(loop)
    return value in known[key]


def values_from(starts: Iterable[Value], loop: Operation | None = None) -> set[Value]:
    """Values and all that is made from them; with a loop, what is within one step of it."""
    return closure(starts, lambda value: (v for use in value.uses for v in _made_from(loop, use)))


def _made_from(loop: Operation | None, use: Any) -> Iterator[Value]:
    """What takes up a value where it is used."""
    op, number = cast(Operation, use.owner.operation), int(use.operand_number)
    if op.name == "stablehlo.return":
        yield from _made_by_return(loop, op, number)
    elif op.name == "stablehlo.while":
        yield from _state(op, number)
    elif op.name == mlir.BARRIER:
        yield op.results[number]
    elif not _takes_the_same(op, number):
        yield from op.results


def _made_by_return(loop: Operation | None, op: Operation, number: int) -> Iterator[Value]:
    parent = cast(Operation, cast(Any, op).parent.operation)
    if parent.name != "stablehlo.while":
        yield from [parent.results[number]] if parent.name in mlir.CONTROL_FLOW else parent.results
    elif loop is None or not mlir.is_same(parent, loop):
        decides = op.block == parent.regions[0].blocks[0]
        for i in range(len(parent.results)) if decides else [number]:
            yield from _state(parent, i)


def _state(loop: Operation, number: int) -> Iterator[Value]:
    yield from (region.blocks[0].arguments[number] for region in loop.regions)
    yield loop.results[number]


def _takes_the_same(op: Operation, number: int) -> bool:
    """Whether a slice, wherever this index says, is along a dimension whose places are alike."""
    if op.name != "stablehlo.dynamic_slice" or number == 0:
        return False
    length = mlir.shape(op.operands[0])[number - 1]
    return is_uniform(op.operands[0], PerExample(number - 1), length)
