"""Stand-ins: constants that may be in the place of what some examples own, as a choice has it.

    %h = select %m, %x0, %ones      %m: nobody's    =>  %h: example 0's, or nobody's
    %s = sine %h                                    =>  whichever %h is
    %y = multiply %s, %t0           %t0: example 0's    =>  example 0's

An offset (`offsets.py`) tells of the constants in %h. It is gone where an op is not linear, as what
comes of it rests on its example as a whole; but what may be no example's at all stays so.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Flag, auto
from functools import partial, reduce
from operator import or_
from typing import Any, cast

from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.attributes import dot_numbers
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.errors import APART_HELP, Reason
from hlo_surgery.passes.ir.mlir import Block, Operation, Value
from hlo_surgery.passes.ir.source_lines import reason_at
from hlo_surgery.passes.owners.alignment.apart import has_even_shares, has_more_of_some
from hlo_surgery.passes.owners.alignment.constant_parts import sums_of
from hlo_surgery.passes.owners.classes import ELEMENTWISE, Owned, has_nobodys, is_shared, is_sum
from hlo_surgery.passes.owners.labelling.fillings import has_constants
from hlo_surgery.passes.owners.labelling.indexed_moves import told_choice
from hlo_surgery.passes.owners.labelling.indices import counted_loop
from hlo_surgery.passes.owners.labelling.labels import NONE, over
from hlo_surgery.passes.owners.owners import Owners

WHY = (
    "a constant may be in the place of what belongs to some examples, by a choice that no example "
    "makes, and it is not shown that each of them gets its share of it"
)
SELECT, SCATTER, WHILE, DOT, DIVIDE = (
    f"stablehlo.{name}" for name in ("select", "scatter", "while", "dot_general", "divide")
)
PRODUCTS = frozenset([DOT, "stablehlo.multiply", "stablehlo.convolution"])
# Whose every element rests on some of each operand.
READS_ALL = ELEMENTWISE | PRODUCTS | frozenset(["stablehlo.gather", "stablehlo.dynamic_slice"])


class Held(Flag):
    """How a value may be constant."""

    NOT = 0
    WHOLE = auto()
    """All of it may be."""
    HIDDEN = auto()
    """A term of it may be, and no offset tells that."""


@dataclass(frozen=True)
class StandIn:
    """Where a constant was chosen, and how a value may be it."""

    choice: Operation
    held: Held


Found = dict[Value, StandIn]


def stand_in_reason(owners: Owners, block: Block, output: Value) -> Reason | None:
    """Why constants may be in an output that some examples do not have. What is found is noted, as
    shares of other constants are judged by it too.
    """
    if owners.stand_ins is None:
        found = find_stand_ins(owners, block).items()
        owners.stand_ins = {v: one.choice for v, one in found if Held.HIDDEN in one.held}
    if not owners.stand_ins:
        return None
    behind = closure([output], partial(sums_of, owners))
    choice = next((op for v, op in owners.stand_ins.items() if v in behind), None)
    told_by_shares = owners.contributions is None and owners.following is None
    if choice is None or (told_by_shares and has_even_shares(owners, block, output)):
        return None
    return reason_at(choice, WHY, APART_HELP)


def find_stand_ins(owners: Owners, block: Block) -> Found:
    """What some examples own, or bring to a sum, and may be constant instead."""
    found: Found = {}
    pending: list[Value] = []

    def note(value: Value, held: Held, choice: Operation) -> None:
        before = found[value].held if value in found else Held.NOT
        if held not in before and not is_shared(owners.of(value)):
            found[value] = StandIn(choice, held | before)
            pending.append(value)

    for op in mlir.nested_operations(cast(Any, block.owner).operation):
        for value in _chosen(owners, op):
            if _is_some_examples(owners, value):
                told = mlir.is_inexact(value)
                note(value, Held.WHOLE if told else Held.WHOLE | Held.HIDDEN, op)
        for value in owners.merged.intersection(op.results):
            note(value, Held.WHOLE, op)
    while pending:
        value = pending.pop()
        for user in mlir.users(value):
            for result, held in _made_of(owners, found, user, value):
                choice = found[value].choice
                if _is_uneven(owners, choice, value) or not is_sum(owners.of(result)):
                    note(result, held, choice)
    return found


def _is_uneven(owners: Owners, choice: Operation, value: Value) -> bool:
    """Whether some examples have more of a value than others, so that in a sum of it a constant is
    not all examples'; where labels gave owners to what was nobody's, than others that have any.
    """
    known = owners.of(value)
    if isinstance(known, Owned) and not owners.merged.isdisjoint(choice.results):
        return has_more_of_some(known.labels)
    return _is_some_examples(owners, value)


def _is_some_examples(owners: Owners, value: Value) -> bool:
    """Whether a value is a sum, or what some examples own more of than others."""
    known = owners.of(value)
    if isinstance(known, Owned):
        return not (known.is_shared or known.labels.covers(owners.size))
    return is_sum(known)


def _chosen(owners: Owners, op: Operation) -> Iterator[Value]:
    """What is constant by one choice, and an example's by another."""
    if op.name == SELECT and is_shared(owners.at(op)[0]) and not told_choice(owners, op):
        if any(_is_constant(owners, v) for v in list(op.operands)[1:]):
            yield op.results[0]
    elif op.name == WHILE:
        yield from _carried(owners, op)
    elif op.name in mlir.CONTROL_FLOW and is_shared(owners.of(op.operands[0])):
        for number, result in enumerate(op.results):
            if any(_is_constant(owners, v) for v in _returned(op, number)):
                yield result


def _carried(owners: Owners, loop: Operation) -> Iterator[Value]:
    """What a loop carries, and holds a constant at first or behind some step; and results in, if it
    may run no step.
    """
    counted = counted_loop(owners, loop)
    for number, first in enumerate(loop.operands):
        begins = _is_constant(owners, first)
        if begins or any(_is_constant(owners, v) for v in _returned(loop, number)):
            yield from (region.blocks[0].arguments[number] for region in loop.regions)
        if begins and (counted is None or not counted.trips):
            yield loop.results[number]


def _is_constant(owners: Owners, value: Value) -> bool:
    known = owners.of(value)
    return isinstance(known, Owned) and has_constants(value, known)


def _returned(op: Operation, number: int) -> list[Value]:
    """What the branches, or a loop's steps, return for a result."""
    bodies = op.regions[1:] if op.name == WHILE else op.regions
    return [mlir.operands(mlir.return_operation(r.blocks[0]))[number] for r in bodies]


def _made_of(
    owners: Owners, found: Found, op: Operation, value: Value
) -> Iterator[tuple[Value, Held]]:
    """What an op makes of a value, with what of that may be constant."""
    if op.name == WHILE or op.name == mlir.BARRIER:
        yield from ((v, found[value].held) for v in _passed_on(op, value))
    elif op.name in ("stablehlo.return", "func.return"):
        yield from ((v, found[value].held) for v in _passed_out(op, value))
    elif op.name not in mlir.CONTROL_FLOW:
        held = _held(owners, found, op)
        yield from ((result, held) for result in op.results)


def _passed_on(op: Operation, value: Value) -> Iterator[Value]:
    """What a loop or barrier begins with as an operand; a loop's result comes of its steps."""
    for number, operand in enumerate(op.operands):
        if operand == value:
            yield from (region.blocks[0].arguments[number] for region in op.regions)
            if not len(op.regions):
                yield op.results[number]


def _passed_out(op: Operation, value: Value) -> Iterator[Value]:
    """What a loop or branch results in, and carries on, where a body returns a value."""
    flow = cast(Any, op.parent).operation
    if flow.name not in mlir.CONTROL_FLOW:
        return
    for number, returned in enumerate(op.operands):
        if returned == value and number < len(flow.results):
            yield flow.results[number]
            if flow.name == WHILE:
                yield from (region.blocks[0].arguments[number] for region in flow.regions)


def _held(owners: Owners, found: Found, op: Operation) -> Held:
    """How what an op makes of its operands may be constant."""
    classes = owners.at(op)
    own = frozenset(i for i, known in enumerate(classes) if not is_shared(known))
    each = {i: found[v].held if (v := op.operands[i]) in found else Held.NOT for i in own}
    held, linear = reduce(or_, each.values(), Held.NOT), linearity.is_linear(op, own)
    rows = {i: known for i in own if isinstance(known := classes[i], Owned)}
    certain = {i: known for i, known in rows.items() if Held.WHOLE not in each[i]}
    if _is_certain(op, {i for i, known in certain.items() if _has_no_gaps(op, i, known)}, each):
        return held & Held.HIDDEN if linear else Held.NOT
    if op.name == DOT and any(_fills_gaps(op, i, known) for i, known in certain.items()):
        return Held.HIDDEN
    return held if linear or Held.WHOLE not in held else held | Held.HIDDEN


def _is_certain(op: Operation, certain: set[int], each: dict[int, Held]) -> bool:
    """Whether all that an op makes rests on an example, as these operands do."""
    if op.name == SELECT:
        return 0 in certain
    if op.name == SCATTER:
        return Held.WHOLE not in each.get(0, Held.NOT) and not certain.isdisjoint((1, 2))
    return op.name in READS_ALL and bool(certain)


def _has_no_gaps(op: Operation, number: int, known: Owned) -> bool:
    """Whether there are no elements of nobody; in a factor they may be zeros, as then the product
    is.
    """
    is_factor = op.name in PRODUCTS or (op.name == DIVIDE and number == 0)
    gaps = has_constants(op.operands[number], known) if is_factor else has_nobodys(known)
    return not gaps


def _fills_gaps(op: Operation, number: int, known: Owned) -> bool:
    """Whether of all that a product sums up in one element some is an example's."""
    labels, numbers = known.labels, dot_numbers(op)
    dims = (numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions)[number]
    axes = [axis for dim in dims for axis in labels.axes(dim)]
    return not bool((over(labels.owners, axes) == NONE).any())
