"""Hidden constants: in the place of what some examples own, at a step or by nobody's choice.

    %s = update %s, %c, at t mod 3      %s: a slot for each of three examples, %c: nobody's at t = 3

What is there at all steps together is an example's; its label does not tell where a constant is.
Of all examples that own anything, as many places may hide one.
"""

from collections.abc import Iterator, Sequence
from functools import partial

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import COPIES
from hlo_surgery.passes.ir.errors import APART_HELP
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.classes import Class, Mixed, Owned, mixed
from hlo_surgery.passes.owners.labelling.digits import compact
from hlo_surgery.passes.owners.labelling.fillings import has_constants, taken_operands
from hlo_surgery.passes.owners.labelling.frames import gives_evenly, joined
from hlo_surgery.passes.owners.labelling.indexed_moves import (
    SELECT,
    dynamic_update_slice,
    scatter,
)
from hlo_surgery.passes.owners.labelling.labels import Labels
from hlo_surgery.passes.owners.labelling.spots import UPDATES, runs_beside
from hlo_surgery.passes.owners.owners import Owners

WHY = (
    "a constant may be here in the place of what belongs to some examples, and it is not shown "
    "that each of them gets its share of it"
)


def hides_constants(known: Owned, labels: Labels) -> bool:
    """Whether constants of a value are in the place of what some examples own, and not of what
    others do, by the labels of all that may be there.
    """
    return known.filled and not labels.is_conflicting and not gives_evenly(known.labels, labels)


def chooses_apart(op: Operation, classes: Sequence[Owned], result: Class) -> bool:
    """Whether nobody chooses, and constants may be in the place of what some examples own, and not
    of what others do.
    """
    if op.name != SELECT or not classes[0].is_shared or not isinstance(result, Owned):
        return False
    sides = zip(list(op.operands)[1:], classes[1:], strict=True)
    return any(has_constants(v, c) and hides_constants(c, result.labels) for v, c in sides)


def puts_apart(owners: Owners, op: Operation, classes: Sequence[Owned], labels: Labels) -> bool:
    """Whether an update has at some step of the loops around constants in the place of what some
    examples own, and not of what others do. `labels`: of the result, of all steps together.
    """
    values = UPDATES[op.name] if op.name in WRITES and owners.loops else ()
    if labels.is_conflicting or not values:
        return False
    left, put = (has_constants(op.operands[i], classes[i]) for i in values)
    is_left = left or _is_read_by_steps(op)
    # What is added to an example's value lies beside it, and not in its place.
    is_put = put and bool(taken_operands(owners, op))
    if not (is_left or is_put):
        return False
    labels = compact(labels)
    whole = all(_is_all_or_nothing(classes[i].labels) for i in values)
    if whole and runs_beside(owners, op, labels):
        return False
    operands = [classes[0].labels if is_left else labels, *(known.labels for known in classes[1:])]
    return not gives_evenly(WRITES[op.name](owners, op, operands), labels)


def _is_all_or_nothing(labels: Labels) -> bool:
    """Whether all elements are nobody's, or none is."""
    return labels.is_nobodys or not labels.has_nobodys


def _is_read_by_steps(op: Operation) -> bool:
    """Whether a step uses what it carries otherwise than to put something there and hand it on: of
    zeros that no step has written over yet, constants may be made.
    """
    states = _states(op)
    is_carried = mlir.defining_operation(states[0]) is None
    return is_carried and any(len(list(v.uses)) > 1 for v in states)


def _states(op: Operation) -> list[Value]:
    """What an update's array is from the beginning of a step to its end, in order."""
    begun = [op.operands[0], *_begun_as(op.operands[0])]
    return [*reversed(begun), op.results[0], *_handed_on_as(op.results[0])]


def _begun_as(value: Value) -> Iterator[Value]:
    """What a value was before other updates and copies, back to what a loop carries."""
    while (op := mlir.defining_operation(value)) is not None and op.name in COPIES | WRITES.keys():
        value = op.operands[0]
        yield value


def _handed_on_as(value: Value) -> Iterator[Value]:
    """What a value is behind other updates and copies."""
    while (users := mlir.users(value)) and users[0].name in COPIES | WRITES.keys():
        value = users[0].results[0]
        yield value


def _scattered(owners: Owners, op: Operation, operands: Sequence[Labels]) -> Labels:
    _, landed, old = scatter(owners, op, operands, by_step=True)
    return joined([old, landed])


WRITES = {
    "stablehlo.dynamic_update_slice": partial(dynamic_update_slice, by_step=True),
    "stablehlo.scatter": _scattered,
}


def hidden_at(owners: Owners, op: Operation) -> Mixed:
    """The class of what may be constant in the place of what some examples own, and not of what
    others do; where a loop holds that, each of its steps may be known better by itself.
    """
    loops = [op] if op.name == "stablehlo.while" else mlir.enclosing_loops(op)
    owners.handing_on.update(loop.results[0] for loop in loops)
    return mixed(op, WHY, help=APART_HELP)
