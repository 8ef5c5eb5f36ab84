"""Loops written out: one copy of its body for each step of a loop of few steps.

    while %t < 3 { %s = f(%s, %x[%t]) }     =>  %s1 = f(%s0, %x[0]) ; %s2 = f(%s1, %x[1]) ; ...

A loop that hands examples on, as a pipeline of stages does, has at each step others in the same
place, and its carry one class for all of them. Written out, each step has its own.
"""

from collections.abc import Iterator, Sequence
from typing import Any, cast

from hlo_surgery.passes.dataflow.counters import counter_values
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, Value, ir
from hlo_surgery.passes.owners.classes import Mixed
from hlo_surgery.passes.owners.owners import Owners

MOST_STEPS = 256
MOST_OPS = 10_000  # of all copies of one module's loops: seconds of analysis


def mixing_loops(owners: Owners, block: mlir.Block) -> list[int]:
    """The outermost loops in which examples meet, by their place among all ops of a function; none
    if no loop hands examples on, or if to write them out would take too many ops.
    """
    if not owners.handing_on:
        return []
    ops = mlir.nested_operations(cast(Any, block.owner).operation)
    found = [i for i, op in enumerate(ops) if op.name == "stablehlo.while" and _mixes(owners, op)]
    inside = {inner.results[0] for i in found for inner in _loops_within(ops[i])}
    outermost = [i for i in found if ops[i].results[0] not in inside]
    written = sum(_trips(ops[i]) * len(mlir.nested_operations(ops[i])) for i in outermost)
    return outermost if written <= MOST_OPS else []


def _loops_within(loop: Operation) -> Iterator[Operation]:
    return (op for op in mlir.nested_operations(loop) if op.name == "stablehlo.while")


def _mixes(owners: Owners, loop: Operation) -> bool:
    """Whether a loop of few steps has in its body what is not known to be apart."""
    values = mlir.values_within(loop)
    return 0 < _trips(loop) <= MOST_STEPS and any(_is_mixed(owners, v) for v in values)


def _is_mixed(owners: Owners, value: Value) -> bool:
    return isinstance(owners.classes.get(value), Mixed)


def _trips(loop: Operation) -> int:
    """How many steps a loop takes; 0 where that is not known."""
    counters = counter_values(loop)
    return len(next(iter(counters.values()))) if counters else 0


def write_out(block: mlir.Block, places: Sequence[int]) -> None:
    """Put copies of their bodies in place of loops, by their place among all ops of a function."""
    ops = mlir.nested_operations(cast(Any, block.owner).operation)
    for loop in [ops[i] for i in places]:
        carries = mlir.operands(loop)
        for _ in range(_trips(loop)):
            carries = _copied_step(loop, carries)
        for result, value in zip(mlir.results(loop), carries, strict=True):
            result.replace_all_uses_with(value)
        loop.erase()


def _copied_step(loop: Operation, carries: list[Value]) -> list[Value]:
    """One more step in front of a loop; `carries`: what it begins with, and what it hands on."""
    body = loop.regions[1].blocks[0]
    known = dict(zip(cast(Any, body).arguments, carries, strict=True))
    *ops, end = mlir.operations(body)
    for op in ops:
        with mlir.context(), ir.InsertionPoint(loop):
            copied = cast(Operation, cast(Any, op.clone()).operation)
        for inner in (copied, *mlir.nested_operations(copied)):
            for number, value in enumerate(mlir.operands(inner)):
                inner.operands[number] = known.get(value, value)
        known |= zip(mlir.results(op), mlir.results(copied), strict=True)
    return [known.get(value, value) for value in mlir.operands(end)]
