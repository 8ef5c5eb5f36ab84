"""Ragged axes: digits of which no place says whose it is, but ids, or rows of another such axis.

    argument %nodes [N, D] by ids %n      N: the ids say it
    %s = gather %nodes, %senders [E]      E: row e is of whom the row is that it takes
    %m = scatter %z [N], %receivers, %s   N again, as of the axis of that size; or, of another size,
                                          place p is of whom the rows are that are put there

All of that is a guess, which the program holds against the indices as it runs (`terms/ragged.py`).
An axis that parameters or outputs have is none: what is put there by rows is summed by examples.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from hlo_surgery.passes.ir.mlir import Operation, Operations, Value, closure
from hlo_surgery.passes.structure.digits import Digit, Digits, leaves, size_of, unify
from hlo_surgery.passes.structure.structure import Lookup, Structure

GATHER = "stablehlo.gather"
# By ragged digit the ids that say whose each place is, or the ops that make it so.
Owners = dict[Digit, list[Value | Operation]]


def find_ragged(structure: Structure, batch: Digit) -> None:
    """Unify the axes at which rows are put with those that they are, and note all ragged digits."""
    rows = [digit for digit, _ in structure.ragged or ()]
    # Rows of these are taken, so that rows are rather put there.
    wholes = {d for op in structure.lookups for d in leaves(looked_up(structure, op)[0])}
    axes = [*sorted(rows, key=lambda digit: digit.root not in wholes), batch]
    while any(_is_put_back(axes, whole) for whole in _puts(structure, batch)):
        pass
    structure.owners = _owners(structure, batch)


def _is_put_back(axes: Digits, whole: Digits) -> bool:
    """Whether an axis at which rows are put can be one of these."""
    axis = next((axis for axis in axes if axis.size == size_of(whole)), None)
    return axis is not None and leaves([axis]) != leaves(whole) and unify([axis], whole)


def _puts(structure: Structure, batch: Digit) -> Iterator[Digits]:
    """The axes at which rows are put, and of which nothing is known yet."""
    owners = _owners(structure, batch)
    for told in owners.values():
        op = told[0]
        if isinstance(op, Operation) and op.name != GATHER:
            yield looked_up(structure, op)[0]


def _owners(structure: Structure, batch: Digit) -> Owners:
    """What says whose the places of each ragged digit are."""
    owners: Owners = {}
    for digit, ids in structure.ragged or ():
        if digit.root.parts is None:
            owners.setdefault(digit.root, []).append(ids)
    # Tables: what rows are taken of before any are put there; so are parameters.
    tables = set(leaves(chain.from_iterable(structure.others)))
    for op in structure.lookups:
        whole, rows = looked_up(structure, op)
        told, asked = (whole, rows) if op.name == GATHER else (rows, whole)
        own, known = leaves(asked), {*leaves([batch]), *owners}
        if known.isdisjoint(leaves(told)):
            tables.update(leaves(whole) if op.name == GATHER else ())
        elif len(own) == 1 and (op.name == GATHER or own[0] not in tables):
            others = owners.get(own[0], [])
            if known.isdisjoint(own) or _says_so_too(structure, owners, others, op):
                owners.setdefault(own[0], []).append(op)
    return owners


def _says_so_too(
    structure: Structure, owners: Owners, others: list[Value | Operation], op: Operation
) -> bool:
    """Whether an op says whose places are, as others do: of these, one that makes rows counts."""
    alike = bool(others) and isinstance(others[0], Operation) and others[0].name == op.name
    whole = looked_up(structure, op)[0]
    return alike and (op.name != GATHER or not may_be_nobodys(structure, owners, whole))


def may_be_nobodys(structure: Structure, owners: Owners, digits: Digits) -> bool:
    """Whether places along some digits may be no example's, as those at which no row is put."""

    def taken(digit: Digit) -> Digits:
        return [d for op in making(digit) for d in leaves(looked_up(structure, op)[0])]

    def making(digit: Digit) -> Operations:
        return [op for op in owners.get(digit, ()) if isinstance(op, Operation)]

    made = closure(leaves(digits), taken)
    return any(op.name != GATHER for digit in made for op in making(digit))


def whole_and_rows(op: Operation) -> tuple[Value, Value]:
    """What a gather takes rows of, or a scatter puts some into; and these rows."""
    if op.name == GATHER:
        return op.operands[0], op.result
    return op.result, op.operands[2]


def looked_up(structure: Structure, op: Operation) -> tuple[Digits, Digits]:
    """Of an op that takes rows of an axis by indices, or puts some there: the digits of the axis,
    and those of the rows.
    """
    link = structure.links[op.result]
    lookup = link.lookup
    assert lookup is not None
    whole, rows = map(structure.of, whole_and_rows(op))
    # A column that counts takes each row's own place.
    named = [d for d in lookup.single if d in lookup.named and link.operands[0][d] != (-1 - d,)]
    return [x for d in named for x in whole[d]], [x for d in lookup.rows for x in rows[d]]


def takes_rows(op: Operation, lookup: Lookup, places: Callable[[Value], Sequence[int]]) -> bool:
    """Whether an op takes rows of a ragged axis by indices, or puts some there, as rows: that
    they are of one example is asked in the run. `places`: where examples lie in a value.
    """
    along, rows, told = (list(places(v)) for v in (*whole_and_rows(op), op.operands[1]))
    # The indices that name a row lie along it.
    rows = rows or [lookup.rows[lookup.places.index(d)] for d in told if d in lookup.places]
    fits = len(along) == len(rows) == 1 and along[0] in lookup.named and rows[0] in lookup.rows
    if not fits or not set(told) <= {lookup.places[lookup.rows.index(rows[0])]}:
        return False
    return op.name == GATHER or set(places(op.operands[0])) <= set(along)
