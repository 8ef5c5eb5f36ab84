"""Group shares: sums of groups of examples, each with a constant, that are added one by one.

    %g0 = add (dot %x[:4]..), %p        %p: a penalty's gradient, computed for each group
    %g1 = add (dot %x[4:]..), %p        %g = divide (add %g0, %g1), 2

Each group has %p with the same weight, so that it makes no difference whether that is the
examples' or nobody's. So it is with a constant in each of a group's rows (`row_constants`). What is
added where several groups have met may be meant for one of them, and what is added to a group
within which examples are taken apart for some of those.
"""

import numpy as np

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.owners.alignment.constant_parts import holds_constant
from hlo_surgery.passes.owners.alignment.row_constants import (
    are_the_same_in_rows,
    has_constant,
    hold_the_same,
)
from hlo_surgery.passes.owners.alignment.weighted_terms import RULES, Form, combined, is_as_much
from hlo_surgery.passes.owners.classes import Owned, Owners, is_shared, is_sum
from hlo_surgery.passes.owners.labelling.step_numbers import StepNumbers

Group = frozenset[int]
# A constant of a group, or what brings one; of none yet: of the empty one; or None, for the group's
# own terms.
Share = tuple[Group, Value | None]
Shares = Form[Share]
Weighted = tuple[Value, StepNumbers]
NO_GROUP: Group = frozenset()
ONE = np.ones(())


def have_equal_shares(owners: Owners, gradient: Value, apart: frozenset[Group]) -> bool:
    """Whether all examples are in groups of one size, which bring the same constants as often.

    `apart`: the examples of each op on some of them. If these were others than a group's, a
    constant of a group might be some of its examples'.
    """
    shares = _shares(owners, gradient)
    groups = list(dict.fromkeys(group for group, _ in shares or {}))
    members = [example for group in groups for example in group]
    if shares is None or sorted(members) != list(range(owners.size)):
        return False
    first, *others = (_constants_of(shares, group) for group in groups)
    is_even = len(set(map(len, groups))) == 1 and apart <= set(groups)
    return is_even and all(_are_same_constants(owners, first, other) for other in others)


def _shares(owners: Owners, gradient: Value) -> Shares:
    known: dict[Value, Shares] = {}
    pending = [gradient]
    while pending:
        value = pending[-1]
        missing = [v for v in _made_from(owners, value) if v not in known]
        pending += missing
        if not missing:
            known[pending.pop()] = _settled(_form(owners, value, known))
    return known[gradient]


def _made_from(owners: Owners, value: Value) -> list[Value]:
    op = mlir.defining_operation(value)
    is_followed = op is not None and op.name in RULES and _is_told_apart(owners, value)
    return list(op.operands) if op is not None and is_followed else []


def _is_told_apart(owners: Owners, value: Value) -> bool:
    """Whether constants in a value can be told from the rest of it: a sum, or one example's."""
    known = owners.of(value)
    is_one = isinstance(known, Owned) and known.offset and not known.labels.varies
    return is_sum(known) or is_one


def _form(owners: Owners, value: Value, known: dict[Value, Shares]) -> Shares:
    op = mlir.defining_operation(value)
    if operands := _made_from(owners, value):
        assert op is not None
        form = combined(owners, op, [known[v] for v in operands])
        return _of_rows(owners, value) if form is None else form
    if is_shared(owners.of(value)):
        return {(NO_GROUP, value): ONE} if holds_constant(owners, value) else {}
    return _of_rows(owners, value)


def _of_rows(owners: Owners, value: Value) -> Shares:
    """What sums the rows of some examples: a term of theirs, and the constant in their rows."""
    examples = _examples_behind(owners, value)
    if examples is None:
        return None
    own: dict[Share, StepNumbers] = {(examples, None): ONE}
    if not has_constant(owners, value):
        return own
    is_even = are_the_same_in_rows(owners, value, examples)
    return own | {(examples, value): ONE} if is_even else None


def _settled(shares: Shares) -> Shares:
    """Constants become those of the group beside which they are; not known, beside several."""
    constants = [share for share in shares or {} if share[0] == NO_GROUP]
    groups = {group for group, _ in shares or {}} - {NO_GROUP}
    if not shares or not constants or not groups:
        return shares
    if len(groups) > 1:
        return None
    (group,) = groups
    own = {share: weights for share, weights in shares.items() if share not in constants}
    for _, constant in constants:
        weights = shares[NO_GROUP, constant]
        own[group, constant] = own.get((group, constant), 0) + weights
    return own


def _examples_behind(owners: Owners, value: Value) -> Group | None:
    """The examples whose rows are summed in a value; not known, where it comes of a loop or
    branch.
    """
    found = closure([value], lambda v: _summed_in(owners, v))
    if any(op.name in mlir.CONTROL_FLOW for v in found if (op := mlir.defining_operation(v))):
        return None
    rows = (known.labels.examples for v in found if isinstance(known := owners.of(v), Owned))
    return NO_GROUP.union(*rows)


def _summed_in(owners: Owners, value: Value) -> list[Value]:
    op = mlir.defining_operation(value)
    return list(op.operands) if op is not None and is_sum(owners.of(value)) else []


def _constants_of(shares: dict[Share, StepNumbers], group: Group) -> list[Weighted]:
    return [
        (constant, weights)
        for (of, constant), weights in shares.items()
        if of == group and constant is not None and weights.any()
    ]


def _are_same_constants(owners: Owners, one: list[Weighted], other: list[Weighted]) -> bool:
    """Whether constants are the same, with the same weights, in any order."""
    left = list(other)
    for constant, weights in one:
        alike = [
            pair
            for pair in left
            if is_as_much(weights, pair[1]) and hold_the_same(owners, constant, pair[0])
        ]
        if not alike:
            return False
        left = [pair for pair in left if pair is not alike[0]]
    return not left
