"""Loops: what a loop returns, given how a block is classified.

The body of a counted loop is classified once for all its steps, which are one more axis of all
labels inside. A carry C holds at the first step, since it is joined with the initial value, and at
each further one, since the body's result at every step is joined with it, until nothing changes: by
induction it holds at all of them. Labels of a carry are the same at every step; where a step brings
another owner, it is a sum at least.

A loop that runs until all examples are done leaves each what it was when it was done, where that is
shown (until_done); else nobody may decide how often it runs but one example, for what is its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from hlo_surgery.passes.dataflow.loop_steps import varies
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import DECIDED_HELP, SUMS_HELP, is_of_sums
from hlo_surgery.passes.ir.mlir import Block, Operation, Value
from hlo_surgery.passes.owners.alignment.constant_parts import holds_constant
from hlo_surgery.passes.owners.classes import (
    TOO_MANY,
    Class,
    Crossed,
    Followed,
    Mixed,
    Owned,
    Paired,
    Summed,
    is_shared,
    mixed,
)
from hlo_surgery.passes.owners.constants import as_constant, data_in, held, rearranged
from hlo_surgery.passes.owners.following.joined_rows import joined_rows
from hlo_surgery.passes.owners.labelling.fillings import has_constants
from hlo_surgery.passes.owners.labelling.frames import joined, same
from hlo_surgery.passes.owners.labelling.indices import counted_loop
from hlo_surgery.passes.owners.labelling.labels import (
    Labels,
    TooManyLabels,
    everywhere,
    of_all,
    over,
)
from hlo_surgery.passes.owners.offsets import is_uneven, kept_owned, uneven_at
from hlo_surgery.passes.owners.owners import Owners
from hlo_surgery.passes.owners.shares.hidden_constants import hidden_at, hides_constants
from hlo_surgery.passes.owners.until_done import any_going_on, frozen_carries

ADD = "stablehlo.add"
ClassifyBlock = Callable[[Owners, Block], None]
MOST_ROUNDS = 50
NOW_ONE = "a value of this loop or branch holds the examples now in one way, now in another"
TOGETHER = "the examples decide together how often this loop runs"


def classify_while(owners: Owners, op: Operation, classify: ClassifyBlock) -> list[Class]:
    """The classes of a loop's results."""
    condition, body = (region.blocks[0] for region in op.regions)
    carries = [owners.of(v) for v in op.operands]
    trained = [v in owners.trained for v in op.operands]
    returned = mlir.operands(mlir.return_operation(body))
    before = dict(owners.data)
    for _ in range(MOST_ROUNDS):
        parts = len(owners.part_loops)
        owners.data = dict(before)
        _enter(owners, (condition, body), carries, trained)
        _classify_steps(owners, op, body, classify)
        pairs = zip(op.operands, returned, strict=True)
        new = _behind_steps(owners, op, returned, carries)
        triples = zip(pairs, carries, new, strict=True)
        after = [join_classes(owners, op, both, old, new) for both, old, new in triples]
        reached = [was or v in owners.trained for was, v in zip(trained, returned, strict=True)]
        settled = all(map(_is_same, after, carries)) and reached == trained
        if settled and parts == len(owners.part_loops):
            break
        carries, trained = after, reached
    else:
        why = "what this loop carries does not settle"
        return [mixed(op, why, unknown=True)] * len(op.results)
    classify(owners, condition)
    return _decided_by_condition(owners, op, condition, carries, trained)


def _enter(
    owners: Owners, blocks: Sequence[Block], carries: Sequence[Class], trained: Sequence[bool]
) -> None:
    for block in blocks:
        for argument, known, reached in zip(block.arguments, carries, trained, strict=True):
            if reached:
                owners.trained.add(argument)
            owners.classes[argument] = as_constant(owners, argument, known)


def _classify_steps(owners: Owners, op: Operation, body: Block, classify: ClassifyBlock) -> None:
    loop = counted_loop(owners, op)
    owners.loops += [loop] if loop else []
    classify(owners, body)
    owners.loops = owners.loops[:-1] if loop else owners.loops


def _behind_steps(
    owners: Owners, op: Operation, values: Sequence[Value], carries: Sequence[Class]
) -> list[Class]:
    """The classes of values made in a loop's body that hold at every step."""
    triples = zip(values, op.operands, carries, strict=True)
    return [_at_every_step(owners, op, (start, v), carry) for v, start, carry in triples]


def _at_every_step(
    owners: Owners, op: Operation, values: tuple[Value, Value], carry: Class
) -> Class:
    """What holds at every step; where it is added to a carry that was nobody's, the next round
    finds a sum. `values`: what the carry starts from, and what is handed on.
    """
    start, value = values
    known = owners.of(value)
    if not isinstance(known, Owned) or known.labels.steps <= owners.steps:
        return known
    all_steps = over(known.labels.owners, [owners.steps]).squeeze(owners.steps)
    labels = Labels(known.labels.digits, all_steps)
    may_begin = not is_shared(carry) or has_constants(start, carry)
    if may_begin and hides_constants(known, labels):
        return hidden_at(owners, op)
    known = _within_steps(known, carry)
    return _owned_or_sum(owners, op, value, labels, known)


def _within_steps(known: Owned, carry: Class) -> Owned:
    """What is known of all steps at once: at one of them an element may be nobody's, at another an
    example's.
    """
    if is_shared(carry):
        return replace(known, offset=False, vacant=True)
    return replace(known, offset=known.offset or known.filled)


def _owned_or_sum(
    owners: Owners, op: Operation, value: Value, labels: Labels, known: Owned
) -> Class:
    """What belongs now to one example and now to another is a sum at least, if it holds floats."""
    if not labels.is_conflicting:
        return kept_owned(owners, replace(known, labels=labels))
    if known.offset or is_uneven(owners, known):
        return uneven_at(op)
    if not mlir.is_inexact(value):
        return mixed(op, NOW_ONE)
    maker = mlir.defining_operation(value) or op
    if not _adds_to_a_carry(op, maker):
        owners.handing_on.add(op.results[0])
    return Summed(maker, known.data)


def _adds_to_a_carry(op: Operation, maker: Operation) -> bool:
    """Whether what is made in a loop is a term added to what it carries."""
    carried = (block.arguments for region in op.regions for block in region.blocks)
    return maker.name == ADD and any(v in a for a in carried for v in mlir.operands(maker))


def join_classes(
    owners: Owners, op: Operation, values: tuple[Value, Value], one: Class, other: Class
) -> Class:
    """The least class that holds for either of two values."""
    match one, other:
        case (Mixed(), _):
            return one
        case (_, Mixed()):
            return other
        case (Crossed(), _) | (_, Crossed()):
            return mixed(op, NOW_ONE)
        case (Followed() | Paired(), _) | (_, Followed() | Paired()):
            return joined_rows(owners, op, values, one, other)
        case (Owned(), Owned()):
            return _joined_owned(owners, op, values, one, other)
        case (Summed(), Owned() as known) | (Owned() as known, Summed()) if (
            known.offset or is_uneven(owners, known)
        ):
            return uneven_at(op)
        case (Summed(site, data), Owned()) | (Owned(), Summed(site, data)):
            return Summed(site, data or held(c for c in (one, other) if isinstance(c, Owned)))
        case (Summed(site, data), Summed(_, more)):
            return Summed(site, data or more)


def _joined_owned(
    owners: Owners, op: Operation, values: tuple[Value, Value], one: Owned, other: Owned
) -> Class:
    if one.labels is other.labels and _are_alike(one, other):
        return one
    beside = _constant_beside(values[0], one, other) or _constant_beside(values[1], other, one)
    filled = has_constants(values[0], one) or has_constants(values[1], other)
    offset = one.offset or other.offset or beside
    both = Owned(one.labels, held([one, other]), offset, vacant=not filled)
    if data_in(both) and one.is_shared != other.is_shared:
        return mixed(op, NOW_ONE)
    try:
        labels = joined([one.labels, other.labels])
    except TooManyLabels:
        return mixed(op, TOO_MANY, unknown=True)
    if labels.is_conflicting and one.labels.varies and other.labels.varies:
        owners.handing_on.add(op.results[0])
        return mixed(op, NOW_ONE)
    sides = zip(values, (one, other), strict=True)
    if any(has_constants(v, known) and hides_constants(known, labels) for v, known in sides):
        return hidden_at(owners, op)
    return _owned_or_sum(owners, op, values[1], labels, both)


def _constant_beside(value: Value, known: Owned, other: Owned) -> bool:
    """Whether a value may hold a constant where the other one is an example's."""
    return not other.is_shared and has_constants(value, known)


def _are_alike(one: Owned, other: Owned) -> bool:
    """Whether the same is known of two values but for their labels."""
    return (one.data, one.offset, one.filled) == (other.data, other.offset, other.filled)


def _is_same(one: Class, other: Class) -> bool:
    match one, other:
        case (Owned(), Owned()):
            return _are_alike(one, other) and same(one.labels, other.labels)
        case (Mixed(), Mixed()):
            return True
        case _:
            return one == other


def _decided_by_condition(
    owners: Owners,
    op: Operation,
    condition: Block,
    carries: Sequence[Class],
    trained: Sequence[bool],
) -> list[Class]:
    decider = mlir.operands(mlir.return_operation(condition))[0]
    predicate = owners.of(decider)
    alone = is_shared(predicate)
    reached = (r for r, was in zip(op.results, trained, strict=True) if was or not alone)
    owners.trained.update(reached)
    frozen = frozen_carries(owners, op)
    _forget_any(owners, op, frozen)
    if alone:
        owners.classes.update(zip(op.results, carries, strict=True))
        triples = zip(op.results, op.operands, carries, strict=True)
        judged = [decided(owners, op, decider, c, (result, v)) for result, v, c in triples]
    else:
        judged = [owned_decision(owners, op, predicate, c, TOGETHER) for c in carries]
    return [carries[i] if i in frozen else c for i, c in enumerate(judged)]


def _forget_any(owners: Owners, op: Operation, frozen: set[int]) -> None:
    """Whether any example goes on is no constant of the batch if all that is used is frozen."""
    used = {i for i, result in enumerate(op.results) if list(result.uses)}
    question = any_going_on(owners, op.regions[0].blocks[0])
    if question is not None and frozen and used <= frozen:
        owners.data.pop(question.results[0], None)


def decided(
    owners: Owners, op: Operation, predicate: Value, known: Class, values: Sequence[Value]
) -> Class:
    """What no example decides on: what data of the batch decides on is data of the batch, as is a
    constant part of a sum. `values`: what may come out.

    Data that differs from step to step must not decide for the examples of the steps.
    """
    decider = owners.of(predicate)
    if is_shared(known):
        assert isinstance(known, Owned)
        return Owned(known.labels, held([known, decider]))
    data = None if owners.contributions else data_in(decider)
    parts = [loop for loop in owners.loops if loop.op.results[0] in owners.part_loops]
    if data and any(varies(owners.varying, loop.op, predicate) for loop in parts):
        return rearranged(op, data)
    if data and isinstance(known, Summed) and any(holds_constant(owners, v) for v in values):
        return replace(known, data=known.data or data)
    return known


def owned_decision(
    owners: Owners, op: Operation, predicate: Class, known: Class, why: str
) -> Class:
    """What rests on a choice that one example makes is its own, if nothing in it is another's."""
    if isinstance(predicate, Owned) and isinstance(known, Owned) and not known.data:
        chooser = everywhere(of_all(predicate.labels), known.labels.shape)
        labels = joined([known.labels, chooser])
        if not labels.is_conflicting:
            return Owned(owners.kept(labels), None, known.offset or known.filled)
    # A loop goes on until all of a batch have converged; a branch guards a gradient.
    guards = op.name != "stablehlo.while"
    on_sums = guards and isinstance(predicate, Mixed) and is_of_sums(predicate.reason)
    return mixed(op, why, help=SUMS_HELP if on_sums else DECIDED_HELP)
