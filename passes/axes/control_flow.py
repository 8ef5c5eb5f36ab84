"""Control flow: what a loop or branch returns, given how a block is classified.

    while (%c = %zero) { %x_t = dynamic_slice %x, %i ; return add %c, f(%x_t) }

In the body the loop's step is one example's, or one microbatch's: what a step makes rests on these
alone. What is handed on to the next step rests on others then: it is a sum over the steps at least,
so that it may be added to, and met by nothing else. A carry has the class in which what it starts
from and what every step returns are joined, found by going through the body until nothing changes.

Until done: loops that run until all examples are done, as `vmap` of a `while_loop` makes them.

    while any(p %c) { %n = select (p %c), (update %c), %c ; return %n }       %c: each example's own

An example that is done keeps its carry, so that it does not matter to it for how long the others go
on. That must hold for all that decides whether it is done, or it could start again.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce

from hlo_surgery.passes.axes import reasons
from hlo_surgery.passes.axes.constants import is_nothing, rearranged, settled
from hlo_surgery.passes.axes.state import (
    SHARED,
    Batched,
    Class,
    Classes,
    Mixed,
    Shared,
    State,
    is_free,
    is_rows,
    is_sum,
    joined,
    same,
)
from hlo_surgery.passes.dataflow.ancestors import is_splat, made_alike, unspread
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import APART_HELP, DECIDED_HELP, SUMS_HELP, is_of_sums, reason_at
from hlo_surgery.passes.ir.mlir import Block, Operation, Value, Values, closure
from hlo_surgery.passes.ir.traits import combined_by
from hlo_surgery.passes.structure.digits import Digit, Digits, leaves, size_of
from hlo_surgery.passes.structure.structure import CountedLoop

AND, OR = "stablehlo.and", "stablehlo.or"


def frozen_carries(state: State, loop: Operation) -> set[int]:
    """The carries that each example keeps once it is done; none of another kind of loop."""
    condition, body = mlir.blocks(loop)
    asked = _going_on(state, condition)
    if asked is None:
        return set()
    pairs: dict[Value, Value] = dict(zip(condition.arguments, body.arguments, strict=True))
    returned = mlir.returned(body)
    # Of several truths of an example one may rest on what another has kept back.
    alone = math.prod(mlir.shape(asked)) == size_of(state.batch)
    flags = [v for i, v in enumerate(body.arguments) if _is_flag(loop, i, asked, alone=alone)]
    frozen = set[int]()
    for i, (new, old) in enumerate(zip(returned, body.arguments, strict=True)):
        chooser = _chooser(state, new, old)
        is_kept = chooser is not None and (chooser in flags or made_alike(asked, chooser, pairs))
        if new == old or old in flags or is_kept:
            frozen.add(i)
    behind = closure([asked], mlir.made_of)
    deciding = {i for i, a in enumerate(condition.arguments) if a in behind}
    return frozen if deciding <= frozen else set()


def _going_on(state: State, condition: Block) -> Value | None:
    """What of each example a condition asks, if it asks whether any goes on; all else that it asks,
    as for a cap on the steps, must be nobody's.
    """
    asked = closure(mlir.returned(condition), _both)
    others = [v for v in asked if not _both(v)]
    found = [v for v in others if _any_of(state, v) is not None]
    rest = [state.of(v) for v in others if v not in found]
    alone = all(isinstance(c, Shared) and c.data is None for c in rest)
    return _any_of(state, found[0]) if len(found) == 1 and alone else None


def _both(value: Value) -> Values:
    op = mlir.defining_operation(value)
    return mlir.operands(op) if op is not None and op.name == AND else []


def _any_of(state: State, value: Value) -> Value | None:
    """The truths of the examples of which a value is whether any holds."""
    op = mlir.defining_operation(value)
    if op is None or op.name != "stablehlo.reduce" or len(op.results) > 1:
        return None
    truths, initial = op.operands
    is_any = all(combined_by(op, OR)) and is_splat(initial, 0) and not mlir.shape(value)
    return truths if is_any and is_rows(state.of(truths)) and state.digits(truths) else None


def _is_flag(loop: Operation, number: int, asked: Value, *, alone: bool) -> bool:
    """Whether a carry is false for an example that is done, and stays so: it is asked itself, or,
    of one truth for each example, it starts as what is asked, and each step leaves it true only if
    what is asked next is.
    """
    condition, body = mlir.blocks(loop)
    returned, old = mlir.returned(body), body.arguments[number]
    both = _both(returned[number])
    if old not in both:
        return False
    if asked == condition.arguments[number]:
        return True
    further = [v for v in both if v != old]
    now = zip(condition.arguments, [_chosen(v, old) for v in returned], strict=True)
    start = zip(condition.arguments, loop.operands, strict=True)
    is_asked_next = any(made_alike(asked, v, dict(now)) for v in further)
    starts_so = made_alike(asked, loop.operands[number], dict(start))
    return alone and is_asked_next and starts_so


def _chosen(value: Value, flag: Value) -> Value:
    """What a value is wherever a flag is true."""
    op = mlir.made_by(value, "stablehlo.select")
    return op.operands[1] if op is not None and unspread(op.operands[0]) == flag else value


def _chooser(state: State, new: Value, old: Value) -> Value | None:
    """What says of each example whether a body updates its argument, or returns it again."""
    op = mlir.made_by(new, "stablehlo.select")
    if op is None or not is_rows(state.of(new)) or op.operands[2] != old:
        return None
    return unspread(op.operands[0])


Classify = Callable[[State, Block], None]
# Each round moves a carry's class up a chain that is as long as the batch has digits, and a few.
MOST_ROUNDS = 16


def classify_loop(state: State, op: Operation, classify: Classify) -> None:
    """Classify a loop's body, and give its results their classes."""
    condition, body = mlir.blocks(op)
    own, problem = _step_digits(state, state.structure.loop_of(op))
    carries = [state.of(v) for v in op.operands]
    trained = [v in state.trained for v in op.operands]
    data, scope = dict(state.data), state.scope
    for _ in range(MOST_ROUNDS):
        state.data, state.scope = dict(data), scope + own
        _enter(state, op, carries, trained, own)
        classify(state, body)
        state.scope = scope
        pairs = zip(trained, mlir.returned(body), strict=True)
        reached = [before or v in state.trained for before, v in pairs]
        new = [_carried(state, op, i, c, reached[i], own) for i, c in enumerate(carries)]
        is_done = all(map(same, carries, new)) and reached == trained
        carries, trained = new, reached
        if is_done:
            break
    else:
        problem = problem or "what this loop carries does not settle"
    classify(state, condition)
    if problem:
        carries = [Mixed(reason_at(op, problem)) for _ in carries]
    _leave(state, op, carries, trained)


def _carried(
    state: State, op: Operation, number: int, known: Class, trained: bool, own: Digits
) -> Class:
    """What a carry is, or what a step makes of it, given what it was taken for."""
    values = op.operands[number], mlir.returned(mlir.blocks(op)[1])[number]
    mixed = Mixed(reason_at(op, reasons.NOW_ONE))
    found = joined(known, _behind_step(state, op, values[1], own), mixed)
    found = _beside_one(state, op, values, found)
    found = found if _hands_on(state, op, number, found) else mixed
    return settled(state, op.results[number], found, trained, own)


def _beside_one(state: State, op: Operation, values: Values, known: Class) -> Class:
    """What is one of these. A constant in the place of one example's value may be all examples'."""
    if not isinstance(known, Batched) or not known.at or known.term:
        return known
    constants = [v for v in values if isinstance(state.of(v), Shared)]
    if all(is_nothing(state, v) for v in constants):
        return known
    return replace(known, term=reason_at(op, reasons.BESIDE_ONE, APART_HELP))


def _hands_on(state: State, op: Operation, number: int, known: Class) -> bool:
    """Whether a carry holds the examples in one way wherever it goes, if it holds any."""
    if isinstance(known, Mixed) or is_free(known):
        return True
    condition, body = mlir.blocks(op)
    returned = mlir.returned(body)[number]
    inside = condition.arguments[number], body.arguments[number], returned
    return state.lie_alike(op.operands[number], *inside, op.results[number])


def _step_digits(state: State, loop: CountedLoop | None) -> tuple[Digits, str]:
    """The batch digits of which a loop takes one place a step, and why it may not."""
    orders = [state.batch_digits([d]) for d in loop.digits.values()] if loop else []
    own = [digits for digits in orders if digits]
    if len(own) > 1:
        return [], "a loop takes examples in two orders at once"
    if own and loop and not state.owners.keys().isdisjoint(leaves(loop.digits.values())):
        return [], "a loop takes rows one by one, and ids tell whose these are"
    if own and not set(own[0]).isdisjoint(state.scope):
        return [], "a loop takes examples within a step that takes others"
    return (own[0] if own else []), ""


def _enter(
    state: State,
    op: Operation,
    carries: Classes,
    trained: Sequence[bool],
    own: Sequence[Digit],
) -> None:
    """What the blocks of a loop take. A counter of steps that take examples is the step's own, and
    a sum over such steps goes on, unless it is handed on as it is.
    """
    loop = state.structure.loop_of(op)
    body = op.regions[1].blocks[0]
    returned = mlir.returned(body)
    for block in mlir.blocks(op):
        for i, (argument, known) in enumerate(zip(block.arguments, carries, strict=True)):
            if trained[i]:
                state.trained.add(argument)
            if own and loop and argument in loop.counters:
                known = Batched(bare=True)
            elif isinstance(known, Batched) and returned[i] != body.arguments[i]:
                running = known.running or not known.summed.isdisjoint(own)
                known = replace(known, running=running)
            state.classes[argument] = known


def _behind_step(state: State, op: Operation, value: Value, own: Digits) -> Class:
    """What a step returns, for the next one and behind the loop."""
    known = state.of(value)
    if not isinstance(known, Batched):
        return known
    known = replace(known, running=False)
    stepped = set(own) - known.summed - state.digits(value) - known.at.keys()
    if not stepped:
        return known
    if not mlir.is_inexact(value):
        if known.bare:
            return SHARED
        return Mixed(reason_at(mlir.defining_operation(value) or op, reasons.NOW_ONE))
    site = known.site or mlir.defining_operation(value) or op
    if known.bare and _rests_on_others(state, op, value):
        known = replace(known, term=known.term or reason_at(site, reasons.ROW_OF_EACH))
    return replace(known, summed=known.summed | stepped, site=site)


def _rests_on_others(state: State, op: Operation, value: Value) -> bool:
    """Whether a step's constant is made of what constants of other steps have handed on: in the
    place of what was before, it is not this step's alone.
    """
    made = closure([value], mlir.made_of)
    handed = (state.of(v) for v in op.regions[1].blocks[0].arguments if v in made)
    return any(isinstance(c, Batched) and c.bare and c.running for c in handed)


def _leave(state: State, op: Operation, carries: Classes, trained: Sequence[bool]) -> None:
    """The results' classes, given who decides how often the loop runs."""
    decider = mlir.returned(op.regions[0].blocks[0])[0]
    frozen = frozen_carries(state, op)
    body = op.regions[1].blocks[0]
    returned = mlir.returned(body)
    for i, (result, known) in enumerate(zip(op.results, carries, strict=True)):
        reached = trained[i]
        if i not in frozen and returned[i] != body.arguments[i]:
            known = decided(state, op, decider, known, reasons.RUNS_TOGETHER)
            counted = state.structure.loop_of(op) is not None
            reached = reached or (decider in state.trained and not counted)
        _settle(state, result, known, reached)
    if all(i in frozen for i, result in enumerate(op.results) if list(result.uses)):
        # Whether any example goes on is no constant then that anything rests on.
        for asked in mlir.operations(op.regions[0].blocks[0]):
            for value in asked.results:
                state.data.pop(value, None)


def _settle(state: State, result: Value, known: Class, trained: bool) -> None:
    if trained:
        state.trained.add(result)
    state.trained -= state.held & {result}
    state.classes[result] = settled(state, result, known, result in state.trained)


def classify_branches(state: State, op: Operation, classify: Classify) -> None:
    """Classify the blocks of a branch, and give its results their classes."""
    blocks = mlir.blocks(op)
    for block in blocks:
        classify(state, block)
    returned = [mlir.returned(block) for block in blocks]
    decider = op.operands[0]
    for i, result in enumerate(op.results):
        values = [row[i] for row in returned]
        mixed = Mixed(reason_at(op, reasons.NOW_ONE))
        known = reduce(partial(joined, mixed=mixed), map(state.of, values))
        known = _beside_one(state, op, values, known)
        if not (is_free(known) or state.lie_alike(result, *values)):
            known = mixed
        known = decided(state, op, decider, known, reasons.TAKEN_TOGETHER)
        _settle(state, result, known, not state.trained.isdisjoint([decider, *values]))


def decided(state: State, op: Operation, decider: Value, known: Class, why: str) -> Class:
    """What comes of a choice. One example may choose among what is its own, or nobody's; data of
    the batch that is the same for all may choose for all.
    """
    chooser = state.of(decider)
    if isinstance(known, Mixed):
        return known
    if isinstance(chooser, Batched) and chooser.bare:
        chooser = SHARED
    if isinstance(chooser, Shared):
        return _decided_by_data(state, op, chooser, known)
    rests_on_one = is_rows(chooser) and not is_sum(known) and not _holds_others(state, op)
    if isinstance(known, Shared) and known.data and known.varies and not state.contribution:
        return Mixed(rearranged(op, known.data))
    if rests_on_one and isinstance(chooser, Batched):
        own = known.at if isinstance(known, Batched) else chooser.at
        if own == chooser.at:
            return Batched(at=own)
    on_sums = isinstance(chooser, Mixed) and is_of_sums(chooser.reason)
    is_guard = on_sums and op.name != "stablehlo.while"
    return Mixed(reason_at(op, why, SUMS_HELP if is_guard else DECIDED_HELP))


def _holds_others(state: State, op: Operation) -> bool:
    """Whether some result lies along the batch, of which a step's example is but one."""
    return bool(state.digits(*op.results))


def _decided_by_data(state: State, op: Operation, chooser: Shared, known: Class) -> Class:
    if chooser.data is None:
        return known
    varies = chooser.varies & frozenset(state.scope)
    if isinstance(known, Batched) and varies and not state.contribution:
        return Mixed(reason_at(op, reasons.TAKEN_TOGETHER, DECIDED_HELP))
    return known if is_rows(known) else joined(known, chooser, Mixed(chooser.data))
