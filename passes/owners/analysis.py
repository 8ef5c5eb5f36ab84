"""Analysis: given a flat `main` and the axes of its batch arguments, the class of every value.

    %y = tanh %x              Owned stays Owned
    %g = dot_general %h, %l   terms of several owners added up      =>  Summed
    %m = reduce max %l        the same, and not by a sum            =>  Mixed(why, where)

One forward pass. A value that no parameter reaches is data: where examples meet in it, it counts as
a constant of the batch, and that is said.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from hlo_surgery.passes.dataflow.held import held_values
from hlo_surgery.passes.dataflow.hidden_parameters import hidden_parameters
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Block, Operation, Value, func
from hlo_surgery.passes.normalise.held_constants import holds_constant
from hlo_surgery.passes.owners.alignment.grouped_sums import grouped_sums
from hlo_surgery.passes.owners.alignment.positions import positional_sums
from hlo_surgery.passes.owners.alignment.step_positions import step_sums
from hlo_surgery.passes.owners.branches import classify_case
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
    summed_operands,
)
from hlo_surgery.passes.owners.constants import as_constant, data_in, demoted
from hlo_surgery.passes.owners.contributions.lost_rows import settle, settle_flow
from hlo_surgery.passes.owners.contributions.placed_rows import (
    even_rows,
    evenly_summed,
    placed_values,
)
from hlo_surgery.passes.owners.contributions.places import classify_places, meets
from hlo_surgery.passes.owners.following.added_rows import added_rows
from hlo_surgery.passes.owners.following.follow import (
    as_given,
    classify_followed,
    is_lookup_of_rows,
)
from hlo_surgery.passes.owners.following.terms import Following
from hlo_surgery.passes.owners.labelling.labels import Labels, TooManyLabels, own_rows
from hlo_surgery.passes.owners.loops import classify_while
from hlo_surgery.passes.owners.owned_ops import classify_owned
from hlo_surgery.passes.owners.owners import (
    Contributions,
    Owners,
)
from hlo_surgery.passes.owners.sums import classify_sums, constant

OUTSIDE = "the op's body uses values of the examples from outside"


def find_owners(
    function: func.FuncOp,
    batch: dict[int, int],
    size: int,
    gradients: Collection[int],
    contribution: bool = False,
    segments: Mapping[int, int] | None = None,
    by_element: bool = False,
) -> Owners:
    """Classify every value of a flat function. `batch`: axis of the examples by argument number;
    `size`: B; `gradients`: the outputs that are; `contribution`: take all that is mixed as
    constant; `segments`: of arguments whose rows lie anywhere along that axis, which one has the
    ids of their examples; `by_element`: tell what is nobody's apart everywhere.

    The function's ops carry Shardy's rules already.
    """
    block, owners = mlir.body(function), Owners(size, Contributions() if contribution else None)
    owners.by_element = by_element
    owners.held = held_values(block)
    owners.following = Following(size) if segments else None
    for i, argument in enumerate(block.arguments):
        if owners.following and segments and i in segments:
            ids, rank = block.arguments[segments[i]], len(mlir.shape(argument))
            term = owners.following.of_ids(ids, rank, batch[i], mlir.shape(ids))
            owners.classes[argument] = Followed(term)
        elif i in batch:
            rows = owners.intern(own_rows(mlir.shape(argument), batch[i], size))
            owners.classes[argument] = Owned(rows)
        elif mlir.is_inexact(argument):
            owners.trained.add(argument)
    owners.trained |= hidden_parameters(block, batch, gradients)
    classify_block(owners, block)
    if _differentiates_batch(owners, block, gradients):
        owners.trained.update(a for a in block.arguments if mlir.is_inexact(a))
        owners.data.clear()
        classify_block(owners, block)
    if owners.contributions:
        _place_rows(owners, owners.contributions, block)
    if owners.contributions is None and owners.following is None:
        owners.grouped = grouped_sums(owners, block)
    owners.positional = positional_sums(owners, block) | step_sums(owners, block)
    if owners.positional:
        classify_block(owners, block)
    while owners.following and (new := added_rows(owners) - owners.following.sums):
        owners.following.sums |= new
        classify_block(owners, block)
    return owners


def _place_rows(owners: Owners, notes: Contributions, block: Block) -> None:
    """Rows that run along with the examples' anywhere are theirs everywhere."""
    while _note_new(notes.placed, placed_values(owners, block)) | _note_new(
        notes.even, even_rows(owners, block)
    ):
        notes.unplaced.clear()
        classify_block(owners, block)


def _note_new(known: dict[Value, Labels], found: dict[Value, Labels]) -> bool:
    new = {v: labels for v, labels in found.items() if v not in known}
    known.update(new)
    return bool(new)


def _differentiates_batch(owners: Owners, block: Block, gradients: Collection[int]) -> bool:
    """Whether a gradient has rows of the examples: it is no parameter's then, and what it was taken
    with respect to is no data.
    """
    outputs = mlir.operands(mlir.return_operation(block))
    return any(_has_rows(owners.of(outputs[number])) for number in gradients)


def _has_rows(known: Class) -> bool:
    rows = isinstance(known, Owned) and known.labels.varies
    return isinstance(known, Crossed | Followed | Paired) or rows


def classify_block(owners: Owners, block: Block) -> None:
    """Classify every value of a block, in order; the block's arguments are classified already."""
    for op in mlir.operations(block)[:-1]:
        _classify_results(owners, op)


def _classify_results(owners: Owners, op: Operation) -> None:
    found, notes = _classify(owners, op), owners.contributions
    owners.trained -= owners.held.intersection(op.results)
    for result, known in zip(op.results, found, strict=True):
        owners.classes[result] = _as_constant(owners, result, known)
    if notes and op.name not in mlir.CONTROL_FLOW:
        settle(owners, notes, op, found)
    elif notes and settle_flow(notes, op):
        _classify_results(owners, op)


def _as_constant(owners: Owners, result: Value, known: Class) -> Class:
    """Mixed data is a constant of the batch; a sum over places of examples is no constant, and of
    data it stays data, which may differ by place.
    """
    reason = owners.positional.get(result)
    if reason and (isinstance(known, Summed) or is_shared(known)):
        assert isinstance(known, Owned | Summed)
        # In contributions what differs by place belongs to its place, data or not.
        is_data = owners.contributions is None and data_in(known) is not None
        told = is_data or known.data in owners.positional.values()
        return known if told else replace(known, data=reason)
    if reason and isinstance(known, Owned):
        return Mixed(reason, unknown=True)
    if isinstance(known, Mixed) and owners.contributions and not known.unknown:
        owners.data.setdefault(result, known.reason)
        return replace(owners.nobodys(result), data=known.reason)
    return as_constant(owners, result, known)


def _classify(owners: Owners, op: Operation) -> list[Class]:
    if owners.following and len(op.results):
        owners.following.forget(op.results[0])
    if op.name == "stablehlo.while":
        return classify_while(owners, op, classify_block)
    if op.name in mlir.CONTROL_FLOW:
        return classify_case(owners, op, classify_block)
    sources = [*op.operands, *(mlir.captured(op) if len(op.regions) else [])]
    if not owners.trained.isdisjoint(sources):
        owners.trained.update(op.results)
    if len(op.results):
        owners.taken.pop(op.results[0], None)
    classes = [owners.of(v) for v in sources]
    if even := evenly_summed(owners, op):
        classes[0] = even
        owners.taken[op.results[0]] = tuple(classes[: len(op.operands)])
    try:
        return transfer(owners, op, classes)
    except TooManyLabels:
        return [mixed(op, TOO_MANY, unknown=True)] * len(op.results)


def transfer(owners: Owners, op: Operation, classes: Sequence[Class]) -> list[Class]:
    """The classes of an op's results; `classes`: of its operands, and of what its body captures."""
    if holds_constant(op):
        return list(map(as_given, demoted(owners, op, classes, summed_operands(classes))))
    if op.name == mlir.BARRIER:
        return list(classes)
    bad = next((c for c in classes if isinstance(c, Mixed)), None)
    if bad is not None:
        return [bad] * len(op.results)
    own, captured = classes[: len(op.operands)], classes[len(op.operands) :]
    if any(isinstance(c, Followed | Paired) for c in classes) or is_lookup_of_rows(
        owners, op, classes
    ):
        return classify_followed(owners, op, classes, transfer)
    if all(map(is_shared, classes)):
        return constant(owners, op, classes)
    outside = [c for c in captured if isinstance(c, Owned)]
    if len(outside) < len(captured):
        return [mixed(op, OUTSIDE, unknown=True)] * len(op.results)
    if not all(map(is_shared, outside)):
        return _with_captured(owners, op, own, outside)
    crossed = any(isinstance(c, Crossed) for c in own)
    found = [] if crossed else _of_operands(owners, op, own)
    if owners.contributions and meets(own, found):
        return classify_places(owners, op, own, transfer)
    return found


def _with_captured(
    owners: Owners, op: Operation, classes: Sequence[Class], captured: Sequence[Owned]
) -> list[Class]:
    owned = [c for c in classes if isinstance(c, Owned)]
    if len(owned) == len(classes):
        return classify_owned(owners, op, owned, captured)
    return [mixed(op, OUTSIDE, unknown=True)] * len(op.results)


def _of_operands(owners: Owners, op: Operation, classes: Sequence[Class]) -> list[Class]:
    owned = [c for c in classes if isinstance(c, Owned)]
    if len(owned) == len(classes):
        return classify_owned(owners, op, owned, [])
    return classify_sums(owners, op, classes, transfer)
