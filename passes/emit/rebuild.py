"""Rebuild: loops and branches with more carries and results than they had, and copies of ops.

Regions move; values stay valid.
"""

from collections.abc import Iterable, Sequence
from typing import Any, cast

from hlo_surgery.passes.emit.splice import Scope, location_for
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, Value, Values, ir


def add_carries(loop: Operation, initial: Values) -> list[Value]:
    """New arguments of a loop's condition and body; those of the body. `extend_results` completes
    the loop.
    """
    condition, body = mlir.blocks(loop)
    with mlir.context(), ir.Location.unknown():
        for value in initial:
            condition.add_argument(value.type, loop.location)
        return [body.add_argument(value.type, loop.location) for value in initial]


def copy_before(op: Operation, operands: Values, before: Operation, scope: Scope) -> Operation:
    """A copy of an op, of these operands instead, in front of another; `scope`: what for."""
    with mlir.context(), ir.InsertionPoint(before):
        copied = cast(Operation, cast(Any, op.clone()).operation)
    for i, operand in enumerate(operands):
        copied.operands[i] = operand
    for each in (copied, *mlir.nested_operations(copied)):
        cast(Any, each).location = location_for(scope, each)
    return copied


def copy_all(
    ops: Iterable[Operation], made: dict[Value, Value], before: Operation, scope: Scope
) -> None:
    """Copies of ops, in order, of what is `made` in place of their operands, which is added to."""
    for op in ops:
        copied = copy_before(op, [made.get(v, v) for v in op.operands], before, scope)
        made |= zip(mlir.results(op), mlir.results(copied), strict=True)


def extend_return(end: Operation, values: Values) -> None:
    """Return more values from a region."""
    with mlir.context(), end.location, ir.InsertionPoint(end):
        ir.Operation.create("stablehlo.return", operands=[*end.operands, *values])
    end.erase()


def extend_results(
    op: Operation, initial: Values, known: Sequence[dict[Value, Any] | set[Value]]
) -> Operation:
    """The op rebuilt so that it results in all that its regions return by now.

    What is known of the old results, in dicts and sets by value, is known of the new ones.
    """
    with mlir.context(), op.location, ir.InsertionPoint(op):
        renewed = ir.Operation.create(
            op.name,
            results=[v.type for v in mlir.returned(mlir.blocks(op)[-1])],
            operands=[*op.operands, *initial],
            attributes=mlir.attributes(op),
            regions=len(op.regions),
        )
    for old, new in zip(op.regions, renewed.regions, strict=True):
        cast(Any, old.blocks[0]).append_to(new)
    new_by_old = dict(zip(mlir.results(op), mlir.results(renewed), strict=False))
    for old, new in new_by_old.items():
        old.replace_all_uses_with(new)

    # Values that are gone must be known nowhere: others may come to lie at their addresses.
    def renew(x: Any) -> Any:
        return new_by_old.get(x, x) if isinstance(x, ir.Value) else x

    for each in known:
        if isinstance(each, set):
            now: Any = set(map(renew, each))
        else:
            now = {renew(k): renew(v) for k, v in each.items()}
        each.clear()
        each.update(now)
    op.erase()
    return renewed
