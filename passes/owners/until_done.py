"""Until done: loops that run until all examples are done, as `vmap` of a `while_loop` makes them.

    while any(%p) { %n = select %p, %update, %c ; return %n }
        %p: Owned    =>  %c: Owned

An example that is done keeps its carry, so that it does not matter to it for how long the others go
on. That must hold for all that decides whether it is done, or it could start again.
"""

from typing import Any, cast

import numpy as np

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.all_hold import all_hold
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.constants import COPIES, is_splat
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.linearity import combined_by
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.classes import Owners, has_owners

LOGICAL = frozenset(["stablehlo.not", "stablehlo.and", "stablehlo.or"])
Pair = tuple[Value, Value]


def frozen_carries(owners: Owners, loop: Operation) -> set[int]:
    """The carries that each example keeps once it is done; none if the loop is of another kind."""
    condition, body = (region.blocks[0] for region in loop.regions)
    predicate = _any_of(owners, mlir.operands(mlir.return_operation(condition))[0])
    if predicate is None:
        return set()
    arguments: dict[Value, Value] = dict(zip(condition.arguments, body.arguments, strict=True))
    again: list[Value] = [
        v for op in mlir.operations(body)[:-1] for v in op.results if _same(predicate, v, arguments)
    ]
    returned = mlir.operands(mlir.return_operation(body))
    frozen = {
        i
        for i, argument in enumerate(body.arguments)
        if has_owners(owners.of(returned[i])) and _when_done(returned[i], again) == argument
    }
    deciding = {
        i for i, argument in enumerate(condition.arguments) if _rests_on(predicate, argument)
    }
    return frozen if deciding <= frozen else set()


def _any_of(owners: Owners, value: Value) -> Value | None:
    """What is or-reduced over the examples and all that each has of it: an example is done where
    none of it holds.
    """
    op = mlir.defining_operation(value)
    if op is None or op.name != "stablehlo.reduce" or len(op.results) != 1 or mlir.shape(value):
        return None
    reduced, initial = op.operands
    is_any = all(combined_by(op, "stablehlo.or")) and is_splat(initial, 0)
    return reduced if is_any and has_owners(owners.of(reduced)) else None


def _same(one: Value, other: Value, arguments: dict[Value, Value]) -> bool:
    """Whether two values are made alike from the same, one from the condition's arguments."""
    known = dict(arguments)
    return all_hold((one, other), lambda pair: _same_if(*pair, known), {})


def _same_if(one: Value, other: Value, known: dict[Value, Value]) -> list[Pair] | None:
    """The pairs that must be the same for these two to be; None where they are not. `known`:
    arguments that are.
    """
    if one in known or one == other:
        return [] if known.get(one, one) == other else None
    first, second = mlir.defining_operation(one), mlir.defining_operation(other)
    if first is None or second is None or not _same_kind(first, second) or one.type != other.type:
        return None
    if mlir.results(first).index(one) != mlir.results(second).index(other):
        return None
    pairs = list(zip(first.operands, second.operands, strict=True))
    for region, twin in zip(first.regions, second.regions, strict=True):
        block, copy = region.blocks[0], twin.blocks[0]
        returned = [mlir.operands(mlir.return_operation(b)) for b in (block, copy)]
        if len(block.arguments) != len(copy.arguments) or len(returned[0]) != len(returned[1]):
            return None
        known.update(zip(block.arguments, copy.arguments, strict=True))
        pairs += zip(*returned, strict=True)
    return pairs


def _same_kind(first: Operation, second: Operation) -> bool:
    counts = [(op.name, len(op.operands), len(op.regions)) for op in (first, second)]
    return counts[0] == counts[1] and mlir.attributes(first) == mlir.attributes(second)


def _when_done(value: Value, predicates: list[Value]) -> Value:
    """What a value is for an example that is done."""
    op = mlir.defining_operation(value)
    while op is not None and op.name == "stablehlo.select":
        known = _known(op.operands[0], predicates)
        if known is None:
            return value
        value = op.operands[1 if known else 2]
        op = mlir.defining_operation(value)
    return value


def _known(value: Value, predicates: list[Value]) -> bool | None:
    """What a predicate is for an example that is done; None if that is not known."""
    found: dict[Value, bool | None] = dict.fromkeys(predicates, False)
    pending = [value]
    while pending:
        op = mlir.defining_operation(pending[-1])
        logical = op if op is not None and _keeps_truth(op) else None
        missing = [v for v in logical.operands if v not in found] if logical is not None else []
        if pending[-1] not in found and missing:
            pending += missing
            continue
        current = pending.pop()
        if current not in found:
            found[current] = (
                _of_operands(logical, [found[v] for v in logical.operands]) if logical else None
            )
    return found[value]


def _keeps_truth(op: Operation) -> bool:
    """Whether an op makes 0 or 1 of what is 0 or 1, as truth values are: `not` of an integer makes
    other numbers.
    """
    kind = dtype_of(op.results[0]) if op.name in LOGICAL | COPIES else None
    return kind is not None and (kind == np.bool_ or (op.name in COPIES and _holds_both(kind)))


def _holds_both(kind: np.dtype) -> bool:
    """Whether 0 and 1 are of an element type; in a float8 of exponents alone, 0 is not."""
    return bool((np.arange(2).astype(kind) == np.arange(2)).all())


def _of_operands(op: Operation, known: list[bool | None]) -> bool | None:
    """What a logical op makes of these, None being what is not known."""
    match op.name:
        case "stablehlo.not":
            return None if known[0] is None else not known[0]
        case "stablehlo.and":
            return False if False in known else (True if known == [True, True] else None)
        case "stablehlo.or":
            return True if True in known else (False if known == [False, False] else None)
        case _:
            return known[0]


def _rests_on(value: Value, argument: Value) -> bool:
    """Whether a value is made from an argument of its block."""
    return argument in closure([value], _operands_behind)


def _operands_behind(value: Value) -> list[Value]:
    op = mlir.defining_operation(value)
    if op is None:
        return []
    return [*op.operands, *(mlir.captured(op) if len(cast(Any, op.regions)) else [])]
