"""Owned ops: the classes of what an op makes of Owned operands.

Element by element: one owner among all that goes in is the owner of what comes out; several are a
sum, if the op adds up their terms or is linear in all that is owned; else they meet.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from hlo_surgery.passes.dataflow.declared_calls import CUSTOM_CALL, call_names, declared_axes
from hlo_surgery.passes.dataflow.mosaic_kernels import is_kernel
from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.errors import CALL_HELP, DECLARED_HELP, KERNEL_HELP, MIXING_HELP, Reason
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.owners.classes import (
    APART,
    ELEMENTWISE,
    MOVED,
    PICKED,
    PICKING,
    Class,
    Owned,
    Summed,
    mixed,
    owned_operands,
)
from hlo_surgery.passes.owners.constants import (
    added_data,
    differs_by_index,
    differs_by_place,
    differs_by_step,
    differs_where_put,
    rearranged,
)
from hlo_surgery.passes.owners.factors import Meeting, has_elements, have_elements, meeting
from hlo_surgery.passes.owners.labelling.fillings import fills
from hlo_surgery.passes.owners.labelling.frames import joined
from hlo_surgery.passes.owners.labelling.indexed_moves import (
    dynamic_slice,
    dynamic_update_slice,
    gather,
    scatter,
    select,
)
from hlo_surgery.passes.owners.labelling.labels import (
    MANY,
    Labels,
    everywhere,
    is_in_order,
    join,
    of_all,
)
from hlo_surgery.passes.owners.labelling.moves import LABEL_MOVES
from hlo_surgery.passes.owners.offsets import (
    picks_unseen,
    refused_as_uneven,
    uneven_at,
    with_constants,
)
from hlo_surgery.passes.owners.owners import Owners
from hlo_surgery.passes.owners.shares.hidden_constants import (
    chooses_apart,
    hidden_at,
    puts_apart,
)

INDEXED = {
    "stablehlo.dynamic_slice": dynamic_slice,
    "stablehlo.dynamic_update_slice": dynamic_update_slice,
    "stablehlo.gather": gather,
}
# Ops whose places are not told by labels where there are no elements.
UNTOLD = frozenset(["stablehlo.reshape", "stablehlo.scatter", "stablehlo.convolution", *INDEXED])
REDUCED = "the examples are reduced to one value{by}, and not by a sum of floats"
OTHERWISE = (
    "it was declared to take examples one by one along axes along which they do not lie, or which "
    "this result has not"
)
MET = "values of several examples meet in one element, and not by a sum of floats"


def classify_owned(
    owners: Owners, op: Operation, classes: Sequence[Owned], captured: Sequence[Owned]
) -> list[Class]:
    """The classes of the op's results; `captured`: of what its body uses from outside."""
    operands = [c.labels for c in classes]
    if not all(c.is_shared for c in captured):
        return _lumped(owners, op, [*classes, *captured])
    if op.name in UNTOLD and not (have_elements(op) and all(map(has_elements, op.results))):
        return _of_nothing(owners, op, classes)
    if (told := select(owners, op, operands)) is not None:
        return [_moved(owners, op, classes, told)]
    if _is_alike(op, classes):
        labels = next(c.labels for c in classes if not c.is_shared)
        return [with_constants(owners, op, classes, labels, None)]
    if op.name == "stablehlo.scatter" and len(op.results) == 1:
        return [_scattered(owners, op, classes)]
    if op.name in LABEL_MOVES:
        return [_moved(owners, op, classes, LABEL_MOVES[op.name](op, operands, owners.size))]
    if op.name in INDEXED:
        return [_indexed(owners, op, classes, INDEXED[op.name](owners, op, operands))]
    results = _by_factors(owners, op, classes)
    return [hidden_at(owners, op)] if chooses_apart(op, classes, results[0]) else results


def _moved(owners: Owners, op: Operation, classes: Sequence[Owned], labels: Labels) -> Class:
    if owners.contributions is None and any(c.data for c in classes):
        found = meeting(owners, op, [c.labels for c in classes], owners.steps)
        data = differs_by_place(op, classes, found) if found else None
        if data:
            return rearranged(op, data)
    if _adds_to_some(owners, classes):
        return uneven_at(op)
    return settled(owners, op, classes, labels)


def _adds_to_some(owners: Owners, classes: Sequence[Owned]) -> bool:
    """Whether what is put together has constants added to some examples' values and not others'."""
    own = [c for c in classes if not c.is_shared]
    uneven = any(c.offset and not c.labels.covers(owners.size) for c in own)
    return uneven and not all(c.offset for c in own)


def _indexed(owners: Owners, op: Operation, classes: Sequence[Owned], labels: Labels) -> Class:
    if picks_unseen(owners, op, classes, labels):
        return uneven_at(op)
    data = _placed_data(owners, op, classes, labels)
    if data:
        return rearranged(op, data)
    if puts_apart(owners, op, classes, labels):
        return hidden_at(owners, op)
    return _moved(owners, op, classes, labels)


def _placed_data(
    owners: Owners, op: Operation, classes: Sequence[Owned], labels: Labels
) -> Reason | None:
    """Data that is placed otherwise for one example than for another."""
    if owners.contributions or not any(c.data for c in classes):
        return None
    data = differs_by_index(owners, op, classes, labels)
    data = data or differs_where_put(owners, op, classes, labels)
    return data or differs_by_step(owners, op, classes, labels.inside(owners.steps).owners)


def _is_alike(op: Operation, classes: Sequence[Owned]) -> bool:
    """Whether all that is owned has the same labels, element by element, and no data is beside it.

    What most ops are: they need no arithmetic on labels.
    """
    own = [c.labels for c in classes if not c.is_shared]
    if len(op.results) != 1 or op.name not in ELEMENTWISE or any(c.data for c in classes):
        return False
    shape = mlir.shape(op.results[0])
    return all(labels is own[0] for labels in own) and own[0].shape == shape


def settled(owners: Owners, op: Operation, classes: Sequence[Owned], labels: Labels) -> Class:
    """Owned where each element has one owner; else a sum, if the op is linear in all that is
    owned.

    Sound: a linear op of r_i + sum of c_ib, taken jointly, is one of the r_i plus one of the c_ib
    for each b.
    """
    if labels.is_conflicting:
        own = owned_operands(classes)
        if linearity.is_linear(op, own) and not _mixes_rows(owners, classes):
            return summed(owners, op, classes, own)
        return mixed(op, PICKED if op.name in PICKING else MET)
    held = next((c.data for c in classes if c.data), None)
    known = with_constants(owners, op, classes, labels, held)
    if owners.contributions and not is_in_order(known.labels):
        return mixed(op, PICKED)
    note_steps(owners, known.labels)
    return known if _may_hold_data(owners, known) else replace(known, data=None)


def _may_hold_data(owners: Owners, known: Owned) -> bool:
    """Whether there is something of nobody, and it may be other than zero, which is no data."""
    if owners.contributions or known.is_shared:
        return known.labels.has_nobodys
    return known.filled


def _mixes_rows(owners: Owners, classes: Sequence[Owned]) -> bool:
    """Whether rows of contributions go into other rows: then row b is computed with copy b."""
    return owners.contributions is not None and any(c.labels.varies for c in classes)


def summed(owners: Owners, op: Operation, classes: Sequence[Owned], own: frozenset[int]) -> Class:
    """A sum over the examples, unless it has constants that some of them bring along."""
    if refused := refused_as_uneven(owners, op, classes):
        return refused
    return Summed(op, added_data(op, classes, own))


def note_steps(owners: Owners, labels: Labels) -> None:
    """Note which loops take the batch in parts."""
    for axis, loop in enumerate(owners.loops[: labels.steps]):
        if labels.owners.shape[axis] > 1:
            owners.part_loops[loop.op.results[0]] = loop.trips


def _scattered(owners: Owners, op: Operation, classes: Sequence[Owned]) -> Class:
    """What lands on an element is added up, or replaces what was there.

    An update must have one owner together with its index; those of several updates may add up.
    """
    new, landed, old = scatter(owners, op, [c.labels for c in classes])
    labels = joined([old, landed])
    if data := _placed_data(owners, op, classes, labels):
        return rearranged(op, data)
    picks = linearity.overwrites(op) and picks_unseen(owners, op, classes, labels)
    if picks or _adds_to_some(owners, [classes[0], classes[2]]):
        return uneven_at(op)
    if puts_apart(owners, op, classes, labels):
        return hidden_at(owners, op)
    if labels.is_conflicting and not new.is_conflicting and linearity.sums(op, 0):
        return summed(owners, op, classes, owned_operands(classes) - {1})
    return settled(owners, op, classes, labels)


def _of_nothing(owners: Owners, op: Operation, classes: Sequence[Owned]) -> list[Class]:
    """Ops on arrays without elements: what is made is empty, or made of the others alone."""
    if not any(has_elements(r) for r in op.results):
        return [owners.nobodys(r) for r in op.results]
    if op.name in ("stablehlo.scatter", "stablehlo.dynamic_update_slice"):
        return [classes[0]]
    return [owners.nobodys(r) for r in op.results]


def _lumped(owners: Owners, op: Operation, classes: Sequence[Owned]) -> list[Class]:
    """Nothing is known of the op: all of every operand may go into all of every result."""
    steps = owners.steps
    one = reduce(join, (of_all(c.labels.inside(steps)) for c in classes))
    labels = everywhere(one, ())
    if labels.is_conflicting:
        name = " ".join(dict.fromkeys(call_names(op))) or "this op"
        why = f"nothing is known of how {name} treats the examples"
        return [mixed(op, why, unknown=True, help=_help(op))] * len(op.results)
    held = next((c.data for c in classes if c.data), None)
    return [Owned(owners.intern(everywhere(one, mlir.shape(r))), held) for r in op.results]


def _help(op: Operation) -> str:
    if is_kernel(op):
        return KERNEL_HELP
    return CALL_HELP if op.name == CUSTOM_CALL else MIXING_HELP


def _by_factors(owners: Owners, op: Operation, classes: Sequence[Owned]) -> list[Class]:
    found = meeting(owners, op, [c.labels for c in classes], owners.steps)
    if found is None:
        return _lumped(owners, op, classes)
    data = None if owners.contributions else differs_by_place(op, classes, found)
    if data:
        return [rearranged(op, data)] * len(op.results)
    results = [_result(owners, op, classes, found, i) for i in range(len(op.results))]
    data = None if owners.contributions else differs_by_step(owners, op, classes, found.met)
    if data and not all(isinstance(c, Summed) for c in results):
        return [_running(op, classes, data)] * len(op.results)
    return results


def _running(op: Operation, classes: Sequence[Owned], data: Reason) -> Class:
    """Data of the batch that differs from step to step, beside the examples of each: at best one
    more term.
    """
    own = owned_operands(classes)
    held = frozenset(i for i, c in enumerate(classes) if c.data)
    return Summed(op, data) if linearity.is_linear(op, own | held) else rearranged(op, data)


def _result(
    owners: Owners, op: Operation, classes: Sequence[Owned], found: Meeting, number: int
) -> Class:
    labels = found.result(number)
    own = owned_operands(classes)
    if labels.is_conflicting and found.adds_up(number):
        if owners.contributions and found.keeps_rows():
            return mixed(op, MET)
        return summed(owners, op, classes, own)
    if labels.is_conflicting and not linearity.is_linear(op, own):
        if declared_axes(op) is not None:
            return mixed(op, OTHERWISE, help=DECLARED_HELP)
        return mixed(op, _meeting_in(op, found), help=_help(op))
    known = settled(owners, op, classes, labels)
    added = found.adds_nobodys(number) and fills(owners, op, classes)
    return replace(known, offset=True) if isinstance(known, Owned) and added else known


def _meeting_in(op: Operation, found: Meeting) -> str:
    """How examples meet in an op."""
    if (found.met == MANY).any():
        return APART
    if (found.apart == MANY).any():
        return MOVED
    return PICKED if op.name in PICKING else _reduced(op)


def _reduced(op: Operation) -> str:
    """That they are, and by what, where an op has a body that says so."""
    body = mlir.operations(op.regions[0].blocks[0]) if len(op.regions) else []
    by = f" by {body[0].name}" if len(body) > 1 else ""
    return REDUCED.format(by=by)
