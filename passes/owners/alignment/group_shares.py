"""Group shares: gradients of groups of examples, each with a constant, that are added one by one.

    %g0 = add (dot %x[:4]..), %p        %p: a penalty's gradient, computed for each group
    %g1 = add (dot %x[4:]..), %p        %g = divide (add %g0, %g1), 2

Each group has %p with the same weight, so that it makes no difference whether that is the
examples' or nobody's. What is added where several groups have met may be meant for one of them, and
what is added to a group within which examples are taken apart for some of those.
"""

import numpy as np

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.owners.alignment.constant_parts import holds_constant
from hlo_surgery.passes.owners.alignment.term_rules import RULES, combined
from hlo_surgery.passes.owners.alignment.weighted_terms import Form, is_as_much
from hlo_surgery.passes.owners.classes import Owned, Owners, is_shared, is_sum
from hlo_surgery.passes.owners.labelling.step_numbers import StepNumbers
from hlo_surgery.passes.owners.same_values import are_same

Group = frozenset[int]
# A constant of a group, or of none yet: of the empty one; or None, for the group's own terms.
Share = tuple[Group, Value | None]
Shares = Form[Share]
NO_GROUP: Group = frozenset()


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
    return is_even and all(_are_same_constants(first, other) for other in others)


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
    is_followed = op is not None and op.name in RULES and is_sum(owners.of(value))
    return list(op.operands) if op is not None and is_followed else []


def _form(owners: Owners, value: Value, known: dict[Value, Shares]) -> Shares:
    op = mlir.defining_operation(value)
    if operands := _made_from(owners, value):
        assert op is not None
        return combined(owners, op, [known[v] for v in operands])
    ones = np.ones(())
    if is_shared(owners.of(value)):
        return {(NO_GROUP, value): ones} if holds_constant(owners, value) else {}
    if is_sum(owners.of(value)) and holds_constant(owners, value):
        return None
    examples = _examples_behind(owners, value)
    return None if examples is None else {(examples, None): ones}


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
    """The examples whose rows are summed in a value without constants; not known, where it comes
    of a loop or branch, or where rows have constants.
    """
    found = closure([value], lambda v: _summed_in(owners, v))
    flows = any(op.name in mlir.CONTROL_FLOW for v in found if (op := mlir.defining_operation(v)))
    rows = [known for v in found if isinstance(known := owners.of(v), Owned)]
    if flows or any(known.offset for known in rows):
        return None
    return NO_GROUP.union(*(known.labels.examples for known in rows))


def _summed_in(owners: Owners, value: Value) -> list[Value]:
    op = mlir.defining_operation(value)
    return list(op.operands) if op is not None and is_sum(owners.of(value)) else []


def _constants_of(
    shares: dict[Share, StepNumbers], group: Group
) -> list[tuple[Value, StepNumbers]]:
    return [
        (constant, weights)
        for (of, constant), weights in shares.items()
        if of == group and constant is not None and weights.any()
    ]


def _are_same_constants(
    one: list[tuple[Value, StepNumbers]], other: list[tuple[Value, StepNumbers]]
) -> bool:
    """Whether constants are the same, with the same weights, in any order."""
    left = list(other)
    for constant, weights in one:
        alike = [
            pair
            for pair in left
            if is_as_much(weights, pair[1]) and are_same(constant, pair[0], {})
        ]
        if not alike:
            return False
        left = [pair for pair in left if pair is not alike[0]]
    return not left
