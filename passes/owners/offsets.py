"""Offsets: constants that are added to what rests on an example.

    %h = add %x, %bias     %x: Owned    =>  %h: Owned, with an offset

In rows that every example has, each gets its share of them. Where they are added to some examples'
values alone they would be no others', though as a term of a gradient they are nobody's: refused.
"""

from collections.abc import Iterable, Sequence

from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.errors import APART_HELP
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.classes import (
    Class,
    Mixed,
    Owned,
    mixed,
    owned_operands,
)
from hlo_surgery.passes.owners.labelling.labels import NONE, Labels
from hlo_surgery.passes.owners.labelling.moves import LABEL_MOVES
from hlo_surgery.passes.owners.labelling.spots import are_seen
from hlo_surgery.passes.owners.owners import Owners

ADD = "stablehlo.add"
# The operands that an indexed move picks from, where these are not the first alone.
PICKED_FROM = {
    "stablehlo.dynamic_update_slice": frozenset([0, 1]),
    "stablehlo.scatter": frozenset([0, 2]),
}

UNEVEN = (
    "a constant is added to what belongs to some examples, and it is not shown that each of them "
    "gets its share of it"
)


def uneven_at(op: Operation) -> Mixed:
    """The class of what adds a constant to some examples' values."""
    return mixed(op, UNEVEN, help=APART_HELP)


def is_uneven(owners: Owners, known: Class) -> bool:
    """Whether constants are added to what some examples own, and not to the others'."""
    return isinstance(known, Owned) and known.offset and not known.labels.covers(owners.size)


def refused_as_uneven(owners: Owners, op: Operation, classes: Sequence[Class]) -> Mixed | None:
    """The class of a sum to which some examples bring constants; None where it brings none, or is
    judged where it ends (`apart.uneven_reason`).
    """
    owners.uneven.difference_update(op.results)
    own = owned_operands(classes)
    uneven = [is_uneven(owners, known) for known in classes]
    if not linearity.is_linear(op, own):
        uneven = [any(uneven) and all(has_nobodys(classes[i]) for i in own)]
    if not any(uneven):
        return None
    return noted_as_uneven(owners, op, op.results)


def noted_as_uneven(owners: Owners, op: Operation, results: Iterable[Value]) -> Mixed | None:
    """The class of results that hold uneven constants, where that is judged at once; None where it
    is judged where sums of them end (`apart.uneven_reason`).
    """
    if owners.contributions or owners.following:
        return uneven_at(op)
    owners.uneven.update(results)
    return None


def has_nobodys(known: Class) -> bool:
    """Whether some elements of an owned value are nobody's."""
    return isinstance(known, Owned) and bool((known.labels.owners == NONE).any())


def holds_offset(
    owners: Owners, op: Operation, classes: Sequence[Owned], labels: Labels, moves: bool = False
) -> bool:
    """Whether constants are in what examples own; `moves`: the op adds none to it. `labels`: of the
    result.
    """
    added = any(c.offset for c in classes) if moves else has_offset(op, classes)
    return added or puts_among(owners, op, classes, labels)


def is_mere_move(op: Operation, labels: Labels, kept: Labels) -> bool:
    """Whether constants lie beside what is owned, and no owner was put in their place."""
    nobodys = (float((x.owners == NONE).mean()) for x in (labels, kept) if x.owners.size)
    return op.name in LABEL_MOVES and len(set(nobodys)) < 2


def has_offset(op: Operation, classes: Sequence[Owned]) -> bool:
    """Whether constants that nobody owns are added to what examples own, here or before."""
    own = owned_operands(classes)
    if not own or not linearity.is_linear(op, own):
        return False
    return any(classes[i].offset for i in own) or _puts_constants(op, own, len(classes))


def puts_among(owners: Owners, op: Operation, classes: Sequence[Owned], labels: Labels) -> bool:
    """Whether constants come among elements of which some examples have more than others; `labels`:
    of the result. An op that is not linear makes constants of zeros, but one that overwrites rows.
    """
    own = owned_operands(classes)
    if not (labels.owners == NONE).any() or labels.covers(owners.size):
        return False
    if op.name == "stablehlo.scatter" and linearity.overwrites(op):
        return any(not is_splat(op.operands[i], 0) for i in {0, 2} - own)
    return not linearity.is_linear(op, own) or _puts_constants(op, own, len(classes))


def picks_unseen(owners: Owners, op: Operation, classes: Sequence[Owned], labels: Labels) -> bool:
    """Whether constants may be in the place of what some examples own, and others do not: what an
    op picks, at places that are not known and that no example says, may be the one or the other.
    `labels`: of the result.
    """
    values = PICKED_FROM.get(op.name, frozenset([0]))
    asked = (known for i, known in enumerate(classes) if i not in values)
    constants = any(has_constants(op.operands[i], classes[i]) for i in values)
    if not constants or not all(known.is_shared for known in asked):
        return False
    uneven = not (labels.is_nobodys or labels.covers(owners.size))
    return uneven and not are_seen(owners, op, classes[0].labels)


def has_constants(value: Value, known: Owned) -> bool:
    """Whether elements of a value that nobody owns may be other than zero, where examples own it
    unevenly, or not at all.
    """
    return not is_splat(value, 0) if known.is_shared else known.offset and has_nobodys(known)


def _puts_constants(op: Operation, own: frozenset[int], count: int) -> bool:
    """Whether an op adds what is not zero to what examples own, or lays it beside that."""
    others = (i for i in range(count) if i not in own)
    added = (i for i in others if linearity.is_linear(op, own | {i}))
    return any(not is_splat(op.operands[i], 0) and not runs_on(op, i) for i in added)


def runs_on(op: Operation, number: int) -> bool:
    """Whether an operand is a loop's carry, and what the op adds a term of the sum so far."""
    for body in (loop.regions[1].blocks[0] for loop in mlir.enclosing_loops(op)[:1]):
        carries = list(body.arguments)
        if op.operands[number] in carries:
            returned = mlir.operands(mlir.return_operation(body))
            return _is_added_on(op.results[0], returned[carries.index(op.operands[number])])
    return False


def _is_added_on(value: Value, total: Value) -> bool:
    """Whether nothing but additions is done to a value until it is a total, as an unrolled loop
    has them.
    """
    while value != total:
        users = mlir.users(value)
        if len(users) != 1 or users[0].name != ADD:
            return False
        value = users[0].results[0]
    return True
