"""Offsets: constants that are added to what rests on an example.

    %h = add %x, %bias     %x: Owned    =>  %h: Owned, with an offset

In rows that every example has, each gets its share of them. Where they are added to some examples'
values alone they would be no others', though as a term of a gradient they are nobody's: refused. So
are constants beside some examples' values (`fillings`), where they are added up with these.
"""

from collections.abc import Iterable, Sequence

from hlo_surgery.passes.ir import linearity
from hlo_surgery.passes.ir.errors import APART_HELP, Reason
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.classes import (
    ELEMENTWISE,
    Class,
    Mixed,
    Owned,
    mixed,
    owned_operands,
)
from hlo_surgery.passes.owners.labelling.digits import compact
from hlo_surgery.passes.owners.labelling.fillings import (
    fills,
    has_constants,
    puts_constants,
    taken_operands,
)
from hlo_surgery.passes.owners.labelling.frames import gives_evenly
from hlo_surgery.passes.owners.labelling.labels import Labels
from hlo_surgery.passes.owners.labelling.spots import UPDATES, are_seen, lands_alike
from hlo_surgery.passes.owners.owners import Owners

UNEVEN = (
    "a constant is added to what belongs to some examples, and it is not shown that each of them "
    "gets its share of it"
)


def uneven_at(op: Operation) -> Mixed:
    """The class of what adds a constant to some examples' values."""
    return mixed(op, UNEVEN, help=APART_HELP)


def is_uneven(owners: Owners, known: Class) -> bool:
    """Whether constants are added to what some examples own, or lie beside it, and not to the
    others'.
    """
    if not isinstance(known, Owned) or known.is_shared:
        return False
    return (known.offset or known.filled) and not known.labels.covers(owners.size)


def refused_as_uneven(owners: Owners, op: Operation, classes: Sequence[Class]) -> Mixed | None:
    """The class of a sum to which some examples bring constants; None where it brings none, or is
    judged where it ends (`apart.uneven_reason`).
    """
    owners.uneven.difference_update(op.results)
    if not any(is_uneven(owners, known) for known in classes):
        return None
    if not linearity.is_linear(op, owned_operands(classes)) and not fills(owners, op, classes):
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


def with_constants(
    owners: Owners, op: Operation, classes: Sequence[Owned], labels: Labels, data: Reason | None
) -> Owned:
    """What an op makes of what examples own. `labels`: of the result; `data`: what elements of
    nobody hold of the batch.
    """
    filled = labels.has_nobodys and fills(owners, op, classes)
    offset = has_offset(owners, op, classes)
    known = kept_owned(owners, Owned(labels, data, offset, vacant=not filled))
    if known.labels.nobodys_share < labels.nobodys_share:
        owners.merged.update(op.results)
    return known


def kept_owned(owners: Owners, known: Owned) -> Owned:
    """The class with its labels as they are kept; where these have an owner in place of nobody, a
    constant there is one that is added to what is owned.
    """
    kept = _kept_filled(owners, known.labels) if known.filled else owners.kept(known.labels)
    hidden = known.filled and kept.nobodys_share < known.labels.nobodys_share
    return Owned(kept, known.data, known.offset or hidden, known.vacant)


def _kept_filled(owners: Owners, labels: Labels) -> Labels:
    """Labels as they are kept where nobody's elements may be constants: of these no example may be
    given more than others.
    """

    def even() -> Labels:
        kept = owners.kept(labels)
        return kept if gives_evenly(labels, kept) else compact(labels)

    return owners.remembered(("filled", owners.intern(labels)), even)


def has_offset(owners: Owners, op: Operation, classes: Sequence[Owned]) -> bool:
    """Whether constants that nobody owns are added to what examples own, here or before."""
    own = owned_operands(classes)
    if not own or not linearity.is_linear(op, own):
        return False
    if any(classes[i].offset for i in own):
        return True
    if taken_operands(owners, op):
        return False
    return _meets_fillings(op, classes) or puts_constants(op, classes)


def _meets_fillings(op: Operation, classes: Sequence[Owned]) -> bool:
    """Whether constants of nobody may meet what examples own. What is summed by the factors of a
    rule is told by these (`Meeting.adds_nobodys`).
    """
    own = [known for known in classes if not known.is_shared]
    if not any(known.filled for known in own):
        return False
    if op.name in ELEMENTWISE:
        return any(known.labels is not own[0].labels for known in own)
    by_factors = op.name != "stablehlo.scatter"
    return not (by_factors and all(linearity.sums(op, i) for i in range(len(op.results))))


def picks_unseen(owners: Owners, op: Operation, classes: Sequence[Owned], labels: Labels) -> bool:
    """Whether constants may be in the place of what some examples own, and others do not: what an
    op picks, at places that are not known and that no example says, may be the one or the other.
    `labels`: of the result.
    """
    values = taken_operands(owners, op)
    asked = (known for i, known in enumerate(classes) if i not in values)
    constants = any(has_constants(op.operands[i], classes[i]) for i in values)
    if not constants or not all(known.is_shared for known in asked):
        return False
    uneven = not (labels.is_nobodys or labels.covers(owners.size))
    if op.name in UPDATES and has_constants(op.operands[values[1]], classes[values[1]]):
        uneven = uneven or not lands_alike(owners, op, labels)
    return uneven and not are_seen(owners, op, classes[0].labels)
