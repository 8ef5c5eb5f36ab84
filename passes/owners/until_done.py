"""Until done: loops that run until all examples are done, as `vmap` of a `while_loop` makes them.

    while any(%p) { %n = select %p, %update, %c ; return %n }
        %p: Owned    =>  %c: Owned
    while any(%on) and %cap { %m = and %on, %more ; %n = select %on, %update, %c ; return %m, %n }
        %on: Owned, %cap: nobody's    =>  %on and %c: Owned

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
from hlo_surgery.passes.ir.mlir import Block, Operation, Value
from hlo_surgery.passes.normalise.constraints import unmarked
from hlo_surgery.passes.owners.classes import Owners, has_owners, is_bare

LOGICAL = frozenset(f"stablehlo.{name}" for name in ("not", "and", "or", "select"))
Pair = tuple[Value, Value]


def frozen_carries(owners: Owners, loop: Operation) -> set[int]:
    """The carries that each example keeps once it is done; none if the loop is of another kind."""
    condition, body = (region.blocks[0] for region in loop.regions)
    question = any_going_on(owners, condition)
    if question is None:
        return set()
    predicate, initial = question.operands
    arguments: dict[Value, Value] = dict(zip(condition.arguments, body.arguments, strict=True))
    known = _of_done(body, _facts(predicate, is_splat(initial, 1)), arguments)
    returned = mlir.operands(mlir.return_operation(body))
    frozen = {
        i
        for i, argument in enumerate(body.arguments)
        if _is_kept(owners, returned[i], argument, known)
    }
    deciding = {
        i for i, argument in enumerate(condition.arguments) if _rests_on(predicate, argument)
    }
    return frozen if deciding <= frozen else set()


def any_going_on(owners: Owners, condition: Block) -> Operation | None:
    """The op that asks whether any example goes on; None if the loop is of another kind. All else
    that the condition asks, as for a cap on the steps, must be nobody's.
    """
    asked = closure([mlir.operands(mlir.return_operation(condition))[0]], _both)
    of_examples = [v for v in asked if not _both(v) and not is_bare(owners.of(v))]
    op = mlir.defining_operation(of_examples[0]) if len(of_examples) == 1 else None
    inverted = op is not None and op.name == "stablehlo.not"
    op = mlir.defining_operation(op.operands[0]) if op is not None and inverted else op
    asks = op is not None and op.block == condition and _asks_all(owners, op, inverted)
    return op if asks else None


def _both(value: Value) -> list[Value]:
    """What must be true for a value to be, if that is several."""
    op = mlir.defining_operation(value)
    return mlir.operands(op) if op is not None and op.name == "stablehlo.and" else []


def _asks_all(owners: Owners, op: Operation, inverted: bool) -> bool:
    """Whether an op or-reduces what the examples have, over them and all that each has of it; where
    `inverted`, and-reduces: not all are done.
    """
    if op.name != "stablehlo.reduce" or len(op.results) != 1 or mlir.shape(op.results[0]):
        return False
    reduced, initial = op.operands
    combines = all(combined_by(op, "stablehlo.and" if inverted else "stablehlo.or"))
    return combines and is_splat(initial, inverted) and has_owners(owners.of(reduced))


def _facts(predicate: Value, truth: bool) -> dict[Value, bool]:
    """What is known for an example that is done: the predicate, and of what it is the opposite."""
    facts = {predicate: truth}
    while (op := mlir.defining_operation(predicate)) is not None and op.name == "stablehlo.not":
        predicate, truth = op.operands[0], not truth
        facts[predicate] = truth
    return facts


def _of_done(
    body: Block, facts: dict[Value, bool], arguments: dict[Value, Value]
) -> dict[Value, bool]:
    """The same facts of values of the body."""
    made = (result for op in mlir.operations(body)[:-1] for result in op.results)
    values: list[Value] = [*body.arguments, *made]
    same = ((v, fact) for v in values for fact in facts if _same(fact, v, arguments))
    return {v: facts[fact] for v, fact in same}


def _is_kept(owners: Owners, value: Value, argument: Value, known: dict[Value, bool]) -> bool:
    """Whether what a body returns is its argument again for an example that is done."""
    if not has_owners(owners.of(value)):
        return False
    truth = _known(value, known)
    is_same_truth = truth is not None and truth == known.get(argument)
    return is_same_truth or _when_done(value, known) == argument


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
    return counts[0] == counts[1] and unmarked(first) == unmarked(second)


def _when_done(value: Value, predicates: dict[Value, bool]) -> Value:
    """What a value is for an example that is done."""
    op = mlir.defining_operation(value)
    while op is not None and op.name == "stablehlo.select":
        known = _known(op.operands[0], predicates)
        if known is None:
            return value
        value = op.operands[1 if known else 2]
        op = mlir.defining_operation(value)
    return value


def _known(value: Value, predicates: dict[Value, bool]) -> bool | None:
    """What a predicate is for an example that is done; None if that is not known."""
    found: dict[Value, bool | None] = dict(predicates)
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
                _of_operands(logical, [found[v] for v in logical.operands])
                if logical
                else _of_constant(current)
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


def _of_constant(value: Value) -> bool | None:
    if dtype_of(value) != np.bool_:
        return None
    return next((truth for truth in (False, True) if is_splat(value, truth)), None)


def _of_operands(op: Operation, known: list[bool | None]) -> bool | None:
    """What a logical op makes of these, None being what is not known."""
    match op.name:
        case "stablehlo.not":
            return None if known[0] is None else not known[0]
        case "stablehlo.and":
            return False if False in known else (True if known == [True, True] else None)
        case "stablehlo.or":
            return True if True in known else (False if known == [False, False] else None)
        case "stablehlo.select":
            chosen = known[1:] if known[0] is None else [known[1 if known[0] else 2]]
            return chosen[0] if chosen[0] == chosen[-1] else None
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
