"""Until done: loops that run until all examples are done, as `vmap` of a `while_loop` makes them.

    while any(%p) { %n = select %p, %update, %c ; return %n }
        %p: Owned    =>  %c: Owned
    while any(%on) and %cap { %m = and %on, %more ; %n = select %on, %update, %c ; return %m, %n }
        %on: Owned, %cap: nobody's    =>  %on and %c: Owned
    while any(p %c) { %m = and %on, (p %update) ; %n = select %on, %update, %c ; return %m, %n }
        %on: Owned, at first p %c     =>  %on and %c: Owned

An example that is done keeps its carry, so that it does not matter to it for how long the others go
on. That must hold for all that decides whether it is done, or it could start again.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.linearity import combined_by
from hlo_surgery.passes.ir.mlir import Block, Operation, Value
from hlo_surgery.passes.owners.classes import (
    Owned,
    has_one_each,
    has_owners,
    is_bare,
)
from hlo_surgery.passes.owners.owners import Owners
from hlo_surgery.passes.owners.same_values import are_same
from hlo_surgery.passes.owners.truths import Truths, chosen, truth_of


def frozen_carries(owners: Owners, loop: Operation) -> set[int]:
    """The carries that each example keeps once it is done; none if the loop is of another kind."""
    condition, body = (region.blocks[0] for region in loop.regions)
    question = any_going_on(owners, condition)
    if question is None:
        return set()
    known = _known_when_done(owners, loop, question)
    returned = mlir.operands(mlir.return_operation(body))
    frozen = {
        i
        for i, argument in enumerate(body.arguments)
        if _is_kept(owners, returned[i], argument, known)
    }
    arguments = enumerate(condition.arguments)
    deciding = {i for i, argument in arguments if _rests_on(question.operands[0], argument)}
    return frozen if deciding <= frozen else set()


def _known_when_done(owners: Owners, loop: Operation, question: Operation) -> Truths:
    """What is known in a loop's body for an example that is done."""
    condition, body = (region.blocks[0] for region in loop.regions)
    predicate, initial = question.operands
    arguments: dict[Value, Value] = dict(zip(condition.arguments, body.arguments, strict=True))
    truth = is_splat(initial, 1)
    known = _of_done(body, _facts(predicate, truth), arguments)
    flags = [] if truth else _flags(owners, loop, predicate)
    return known | dict.fromkeys(flags, False)


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


def _facts(predicate: Value, truth: bool) -> Truths:
    """What is known for an example that is done: the predicate, and of what it is the opposite."""
    facts = {predicate: truth}
    while (op := mlir.defining_operation(predicate)) is not None and op.name == "stablehlo.not":
        predicate, truth = op.operands[0], not truth
        facts[predicate] = truth
    return facts


def _flags(owners: Owners, loop: Operation, predicate: Value) -> list[Value]:
    """The carries that are true only where the predicate is, as the body has them.

    Such a flag is the predicate of the first carries, or less, and then that of the next ones, or
    less, for whom it was true before.
    """
    condition, body = (region.blocks[0] for region in loop.regions)
    returned = mlir.operands(mlir.return_operation(body))
    first: dict[Value, Value] = dict(zip(condition.arguments, loop.operands, strict=True))
    following: dict[Value, Value] = dict(zip(condition.arguments, returned, strict=True))
    triples = zip(body.arguments, loop.operands, returned, strict=True)
    return [
        flag
        for flag, initial, new in triples
        if has_one_each(owners.of(flag))
        and flag in closure([new], _both)
        and _implies(initial, predicate, first, lambda value: value)
        and _implies(new, predicate, following, partial(_of_going_on, owners, {flag: True}))
    ]


def _implies(
    flag: Value,
    predicate: Value,
    arguments: dict[Value, Value],
    seen: Callable[[Value], Value | None],
) -> bool:
    """Whether the predicate of these arguments is among what must be true for a flag to be."""
    asked = closure([flag], _both)
    return any(are_same(predicate, value, arguments, seen) for value in asked)


def _of_going_on(owners: Owners, known: Truths, value: Value) -> Value | None:
    """What a value is for an example of which this is known; None if others have a part in it."""
    alone = owners.of(value)
    return chosen(value, known) if isinstance(alone, Owned) and alone.data is None else None


def _of_done(body: Block, facts: Truths, arguments: dict[Value, Value]) -> Truths:
    """The same facts of values of the body."""
    values: list[Value] = list(body.arguments)
    for op in mlir.operations(body)[:-1]:
        values += op.results
    found: Truths = {}
    for value in values:
        same = [known for fact, known in facts.items() if are_same(fact, value, arguments)]
        if same:
            found[value] = same[-1]
    return found


def _is_kept(owners: Owners, value: Value, argument: Value, known: Truths) -> bool:
    """Whether what a body returns is its argument again for an example that is done."""
    if not has_owners(owners.of(value)):
        return False
    truth = truth_of(value, known)
    is_same_truth = truth is not None and truth == known.get(argument)
    return is_same_truth or chosen(value, known) == argument


def _rests_on(value: Value, argument: Value) -> bool:
    """Whether a value is made from an argument of its block."""
    return argument in closure([value], _operands_behind)


def _operands_behind(value: Value) -> list[Value]:
    op = mlir.defining_operation(value)
    if op is None:
        return []
    return [*op.operands, *(mlir.captured(op) if len(cast(Any, op.regions)) else [])]
