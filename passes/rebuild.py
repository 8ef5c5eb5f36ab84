"""Rebuild: loops and branches with more carries and results than they had. Their regions move; values stay valid."""

from collections.abc import Sequence
from typing import Any, cast

from hlo_surgery import mlir
from hlo_surgery.mlir import Operation, Value, ir


def add_carries(loop: Operation, initial: Sequence[Value]) -> list[Value]:
    """New arguments of a loop's condition and body; those of the body. `extend_results` completes the loop."""
    condition, body = (cast(Any, region.blocks[0]) for region in loop.regions)
    with mlir.context(), ir.Location.unknown():
        for value in initial:
            condition.add_argument(value.type, loop.location)
        return [body.add_argument(value.type, loop.location) for value in initial]


def extend_return(end: Operation, values: Sequence[Value]) -> Operation:
    """Return more values from a region."""
    with mlir.context(), end.location, ir.InsertionPoint(end):
        renewed = ir.Operation.create("stablehlo.return", operands=[*end.operands, *values])
    end.erase()
    return renewed


def extend_results(
    op: Operation,
    initial: Sequence[Value],
    count: int,
    known: Sequence[dict[Value, Any]],
    sets: Sequence[set[Value]],
) -> Operation:
    """The op rebuilt so that it has `count` more results, of what its regions return last.

    What is known of the old results, in dicts and sets by value, is known of the new ones.
    """
    returned = mlir.operands(mlir.return_operation(op.regions[-1].blocks[0]))
    kinds = [*(r.type for r in op.results), *(v.type for v in returned[len(returned) - count :])]
    with mlir.context(), op.location, ir.InsertionPoint(op):
        renewed = ir.Operation.create(
            op.name,
            results=kinds,
            operands=[*op.operands, *initial],
            attributes=mlir.attributes(op),
            regions=len(op.regions),
        )
    for old, new in zip(op.regions, renewed.regions, strict=True):
        cast(Any, old.blocks[0]).append_to(new)
    for old, new in zip(mlir.results(op), renewed.results, strict=False):
        _transfer(old, new, known, sets)
    op.erase()
    return renewed


def _transfer(old: Value, new: Value, known: Sequence[dict[Value, Any]], sets: Sequence[set[Value]]) -> None:
    """A value that is gone must be known nowhere: another may come to lie at its address."""
    old.replace_all_uses_with(new)
    for mapping in known:
        if old in mapping:
            mapping[new] = mapping.pop(old)
        mapping.update({key: new for key, value in mapping.items() if isinstance(value, ir.Value) and value == old})
    for members in sets:
        if old in members:
            members.remove(old)
            members.add(new)
