"""Positions: what nobody owns and yet lies row by row beside the examples, as a dropout mask does.

    %h = multiply %x, %mask    %x: [B, D] of owners 0 .. B-1, %mask: nobody's
        =>  row b of %mask lies at example b's place, and so do the rows of what it is made from
    %g = reduce %mask over the rows
        =>  refused: it belongs to no example's contribution, and is no constant that all share

Places are labels: a number for each element, equal where the same examples are met. They go back
through what a value is made by, and on through what is made of it, until examples own that; an
element made of elements of several places is a sum over places.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, cast

from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.dataflow.linked import linked
from hlo_surgery.passes.dataflow.uniform import Known, is_uniform
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Block, Operation, Value
from hlo_surgery.passes.ir.source_lines import reason_at
from hlo_surgery.passes.owners.alignment.constant_parts import constant_places, has_constant_part
from hlo_surgery.passes.owners.alignment.given_rows import PASSING, given_rows
from hlo_surgery.passes.owners.alignment.placements import (
    GATHER,
    at_every_step,
    in_order_of_first,
    keeps_rows,
    narrowed,
    over_operand,
    places_ahead,
    places_behind,
    places_taken,
    told_apart,
)
from hlo_surgery.passes.owners.alignment.step_positions import POSITIONAL, POSITIONAL_HELP
from hlo_surgery.passes.owners.classes import (
    Class,
    Crossed,
    Owned,
    Summed,
    is_constant_or_sum,
    is_shared,
    is_zero,
    owned_operands,
)
from hlo_surgery.passes.owners.contributions.places import MEETING, views
from hlo_surgery.passes.owners.factors import has_elements, have_elements, meeting
from hlo_surgery.passes.owners.labelling.indexed_moves import told_choice
from hlo_surgery.passes.owners.labelling.indices import counted_loop
from hlo_surgery.passes.owners.labelling.labels import Labels, join
from hlo_surgery.passes.owners.owners import Owners

MOVED = (
    "rows of a parameter are moved along the examples before they meet them, and so it is not "
    "known whose share of this gradient is whose"
)
MOVED_HELP = "pass the rows as a batch argument (batch_argnums), in the order of the examples"
FLOW = PASSING | {"stablehlo.return", "func.return"}


@dataclass(frozen=True)
class Placed:
    """A value that nobody owns, with the places of its elements; or, `in_sum`, a sum whose constant
    part has them.
    """

    value: Value
    places: Labels = field(compare=False)
    key: tuple[object, ...]
    in_sum: bool

    @property
    def number(self) -> int:
        """Which of its op's results the value is."""
        return int(cast(Any, self.value).result_number)


@dataclass
class Search:
    """What is placed so far, and the sums over places."""

    owners: Owners
    uniform: Known = field(default_factory=Known)
    placed: dict[Placed, None] = field(default_factory=dict[Placed, None])
    sums: dict[Value, Reason] = field(default_factory=dict[Value, Reason])


def positional_sums(owners: Owners, block: Block) -> dict[Value, Reason]:
    """Sums over places of the examples that no example reaches, by value, each with its reason.

    The values that lie beside the examples are noted in `owners`.
    """
    search = searched(owners, block)
    owners.beside.clear()
    owners.beside.update(placed.value for placed in search.placed)
    owners.moved = next(filter(None, (_moved(owners, placed) for placed in search.placed)), None)
    for placed in search.placed:
        _note_loop(owners, placed)
    return search.sums


def _note_loop(owners: Owners, placed: Placed) -> None:
    """A loop that makes a row for each example takes the batch in parts, as one over them does."""
    op = mlir.defining_operation(placed.value)
    if op is None or op.name != "stablehlo.while" or placed.in_sum:
        return
    loop = counted_loop(owners, op)
    if loop and loop.trips > 1 and placed.places.varies:
        owners.part_loops.setdefault(op.results[0], loop.trips)


def _known_rows(search: Search) -> Iterator[Placed]:
    notes = search.owners.contributions
    for value, labels in notes.placed.items() if notes else ():
        yield _placed(search, value, labels)


def searched(owners: Owners, block: Block) -> Search:
    """All that lies beside the examples of a block, and the sums over it."""
    search = Search(owners)
    pending = [*_met_unevenly(search, block), *_known_rows(search)]
    while pending:
        placed = pending.pop()
        if placed not in search.placed:
            search.placed[placed] = None
            pending += [*_linked(search, placed), *_behind(search, placed), *_ahead(search, placed)]
    return search


def _moved(owners: Owners, placed: Placed) -> Reason | None:
    """Why it is not known where the rows of a value come from, if parameters reach them."""
    op = mlir.defining_operation(placed.value)
    if op is None or op.name in PASSING or placed.in_sum:
        return None
    trained = any(owners.is_trained(op, i) for i in range(len(op.operands)))
    if not trained or keeps_rows(op, placed.number, placed.places):
        return None
    return reason_at(op, MOVED, MOVED_HELP)


def _placed(search: Search, value: Value, places: Labels) -> Placed:
    told = places.owners if search.owners.contributions else in_order_of_first(places.owners)
    key = (places.digits, told.shape, told.tobytes())
    return Placed(value, places, key, isinstance(search.owners.of(value), Summed))


def _met_unevenly(search: Search, block: Block) -> Iterator[Placed]:
    """What nobody owns and lies beside what the examples own, and may differ among them."""
    for value, places in met_directly(search, block):
        if not _is_splat(value):
            for placed in if_uneven(search, value, places):
                # In contributions a sum that meets rows is a constant there.
                is_sum = placed.in_sum and search.owners.contributions is None
                yield replace(placed, in_sum=is_sum)


def met_directly(search: Search, block: Block) -> Iterator[tuple[Value, Labels]]:
    """What nobody owns and lies beside what the examples own, in one op, and where."""
    for op in mlir.nested_operations(cast(Any, block.owner).operation):
        if search.owners.contributions is None:
            yield from given_rows(search.owners, op)
        if op.name in mlir.CONTROL_FLOW or not len(op.results):
            continue
        yield from _gathered_directly(search, op)
        for classes in _views(search.owners, op):
            shared = [i for i, c in enumerate(classes) if is_shared(c)]
            shared = [i for i in shared if mlir.shape(op.operands[i])]
            # Whose each element is then, its labels say.
            shared = [i for i in shared if i or not told_choice(search.owners, op)]
            grouped = any(v in search.owners.grouped for v in op.operands)
            if shared and (grouped or any(_has_rows(c) for c in classes)):
                yield from _met_operands(search, op, classes, shared)


def _views(owners: Owners, op: Operation) -> list[list[Class]]:
    """The classes of an op's operands; where examples cross, along one labelling of each."""
    classes = owners.at(op)
    if not any(isinstance(c, Crossed) for c in classes):
        return [classes]
    return views(owners, op, classes, reason_at(op, MEETING))


def _gathered_directly(search: Search, op: Operation) -> Iterator[tuple[Value, Labels]]:
    """What is gathered from at numbers of the examples: what several of them may look up is no
    one's.
    """
    if op.name != GATHER:
        return
    result = search.owners.of(op.results[0])
    if _has_rows(result) and is_shared(search.owners.at(op)[0]) and isinstance(result, Owned):
        yield op.operands[0], places_taken(search.owners, op, result.labels)


def _has_rows(known: Class) -> bool:
    return isinstance(known, Owned) and known.labels.varies


def _met_operands(
    search: Search, op: Operation, classes: Sequence[Class], shared: Sequence[int]
) -> Iterator[tuple[Value, Labels]]:
    pairs = list(zip(classes, op.operands, strict=True))
    owners, wanted = search.owners, shared
    if owners.contributions is None:
        wanted = [i for i in shared if not _is_splat(op.operands[i])]
    if not wanted or not have_elements(op):
        return
    labels = [_places_of(owners, c, v) for c, v in pairs]
    steps = max(x.steps for x in labels)
    found = meeting(owners, op, labels, steps)
    if found is None:
        return
    met = owned_operands(classes) | {i for i, v in enumerate(op.operands) if v in owners.grouped}
    others = reduce(join, (found.frame.owners[i] for i in met))
    for i in wanted:
        rows = found.rule.operands[i]
        places = over_operand(found.rule, found.frame, others, rows, op.operands[i])
        yield op.operands[i], at_every_step(places)


def _places_of(owners: Owners, known: Class, value: Value) -> Labels:
    """Where the examples lie in a value: their rows, or sums over groups of them."""
    own = known.labels if isinstance(known, Owned) else owners.nobodys(value).labels
    return owners.grouped.get(value, own)


def _is_splat(value: Value) -> bool:
    """Whether a value is one number everywhere, as most that meet the examples are."""
    op = mlir.defining_operation(value)
    return (
        op is not None
        and op.name == "stablehlo.broadcast_in_dim"
        and not mlir.shape(op.operands[0])
    )


def if_uneven(search: Search, value: Value, places: Labels) -> Iterator[Placed]:
    """The value with these places, but for digits along which it is the same everywhere."""
    if is_zero(search.owners.of(value)):
        return
    numbers, within = places.owners, range(places.steps, places.owners.ndim)
    dims = [dim for dim, group in enumerate(places.digits) for _ in group]
    sizes = zip(within, dims, places.sizes, strict=True)
    even = [axis for axis, dim, size in sizes if _is_even(search, value, places, axis, dim, size)]
    numbers = narrowed(told_apart(numbers, even))
    if numbers.size > 1:
        yield _placed(search, value, Labels(places.digits, numbers))


def _is_even(search: Search, value: Value, places: Labels, axis: int, dim: int, size: int) -> bool:
    if places.owners.shape[axis] == 1:
        return False
    group, first = places.digits[dim], places.axes(dim).start
    before, after = math.prod(group[: axis - first]), math.prod(group[axis - first + 1 :])
    return is_uniform(value, PerExample(dim, before, after), size, search.uniform)


def _linked(search: Search, placed: Placed) -> Iterator[Placed]:
    """The same state of a loop or branch."""
    for value in linked(placed.value):
        if is_constant_or_sum(search.owners.of(value)):
            yield _placed(search, value, placed.places)


def _behind(search: Search, placed: Placed) -> Iterator[Placed]:
    """The values that this one is made of, with the places of their elements in it."""
    op = mlir.defining_operation(placed.value)
    if op is None or placed.in_sum or op.name in PASSING:
        return
    for value, places in places_behind(search.owners, op, placed.number, placed.places):
        if is_shared(search.owners.of(value)) and has_elements(value):
            yield from if_uneven(search, value, places)


def _ahead(search: Search, placed: Placed) -> Iterator[Placed]:
    """The values made of this one, with their places; where several go into one, it is a sum over
    places.
    """
    for use in placed.value.uses:
        op, number = cast(Any, use.owner).operation, int(cast(Any, use).operand_number)
        if op.name in FLOW or not _goes_on(search, placed, op, number):
            continue
        for result, places in places_ahead(op, number, placed.places):
            if places is None or places.is_conflicting:
                reason = reason_at(op, POSITIONAL, POSITIONAL_HELP)
                search.sums[result] = reason
            elif places.varies:
                yield _placed(search, result, places)


def _goes_on(search: Search, placed: Placed, op: Operation, number: int) -> bool:
    """Whether the elements of an operand are in an op's result, or in its constant part where that
    is a sum.
    """
    classes = search.owners.at(op)
    sums = [v for v, c in zip(op.operands, classes, strict=True) if isinstance(c, Summed)]
    unseen = isinstance(classes[number], Summed) and not placed.in_sum
    if unseen or not all(map(is_constant_or_sum, classes)):
        return False
    if number in constant_places(search.owners, op) or not sums:
        return True
    return any(has_constant_part(search.owners, v) for v in sums)
