"""Even shares: terms of single examples, added one by one, that bring the same constant each.

    %s = add (multiply %a, %v), (multiply %c, %v)       %a = 1 - tanh(..)**2 of one example,
                                                        %c the same of another; %v: nobody's

Each has %v for a constant, so that it makes no difference whether that is the examples' or
nobody's. A tree of additions is judged as one, where it ends.
"""

import numpy as np

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.alignment.row_constants import hold_the_same
from hlo_surgery.passes.owners.classes import Class, Owned, Owners, has_owners, is_sum
from hlo_surgery.passes.owners.labelling.labels import Labels

ADD = "stablehlo.add"


def covers(labels: Labels, size: int) -> bool:
    """Whether each of the examples owns as many elements, over all steps."""
    flat = labels.owners.ravel()
    counts = np.bincount(flat[flat >= 0], minlength=size)
    return len(set(counts.tolist())) == 1


def is_uneven(owners: Owners, known: Class) -> bool:
    """Whether constants are added to what some examples own, and not to the others'."""
    return isinstance(known, Owned) and known.offset and not covers(known.labels, owners.size)


def has_even_shares(owners: Owners, op: Operation) -> bool:
    """Whether the examples bring even shares of constants to a sum by an addition; it is also true
    where the sum goes on, as it is judged at its end.
    """
    if _goes_on(op) and not (owners.contributions or owners.following):
        return True
    uneven = [v for v in _terms(owners, op) if is_uneven(owners, owners.of(v))]
    return all(_are_of_all(owners, group) for group in _alike(owners, uneven))


def _alike(owners: Owners, terms: list[Value]) -> list[list[Value]]:
    """Terms by their constants."""
    groups: list[list[Value]] = []
    for term in terms:
        alike = [group for group in groups if hold_the_same(owners, group[0], term)]
        if alike:
            alike[0].append(term)
        else:
            groups.append([term])
    return groups


def _goes_on(op: Operation) -> bool:
    """Whether an op's result is added to something, and nothing else is done to it."""
    users = mlir.users(op.results[0])
    return len(users) == 1 and users[0].name == ADD and users[0].block == op.block


def _terms(owners: Owners, total: Operation) -> list[Value]:
    """What is added up in a sum, other than by additions that put constants to single examples."""
    found: list[Value] = []
    pending = [total]
    while pending:
        op = pending.pop()
        for value in op.operands:
            before = mlir.defining_operation(value)
            is_part = before is not None and before.name == ADD and _goes_on(before)
            if before is not None and is_part and _adds_terms(owners, before):
                pending.append(before)
            else:
                found.append(value)
    return found


def _adds_terms(owners: Owners, op: Operation) -> bool:
    """Whether an addition is one of examples' terms alone, or of a sum."""
    if is_sum(owners.of(op.results[0])):
        return True
    operands = list(enumerate(op.operands))
    return all(has_owners(owners.of(v)) or is_splat(v, 0) or runs_on(op, i) for i, v in operands)


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


def _are_of_all(owners: Owners, terms: list[Value]) -> bool:
    """Whether these terms, each of a single example at a step, are as many for all of them."""
    trips = [loop.trips for loop in owners.loops]
    total = np.zeros(owners.size, int)
    for term in terms:
        known = owners.of(term)
        assert isinstance(known, Owned)
        labels = known.labels.inside(len(trips))
        if labels.varies:
            return False
        steps = np.broadcast_to(labels.owners.reshape(labels.owners.shape[: len(trips)]), trips)
        total += np.bincount(steps[steps >= 0].ravel(), minlength=owners.size)
    return len(set(total.tolist())) == 1
