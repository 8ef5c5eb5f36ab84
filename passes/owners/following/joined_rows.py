"""Joined rows: what may be one value or another, such as a loop's carry, by one term for both.

    while (%h = %nodes : ids) { ... return %new }    %h : ids joined with those of %new

Whose the rows are that a step returns is made of whose they were before, so that no term settles.
One is fixed after the first round, and checked to have the owners of all that is to come.
"""

from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.classes import (
    Class,
    Followed,
    Owned,
    Owners,
    is_shared,
    mixed,
)
from hlo_surgery.passes.owners.following.follow import SEGMENTS_HELP, labels_of
from hlo_surgery.passes.owners.following.terms import Term

NOW_OTHERS = "a value of this loop or branch has rows of examples now, and something else then"


def joined_rows(
    owners: Owners, op: Operation, values: tuple[Value, Value], one: Class, other: Class
) -> Class:
    """The class of either of two values, one of them Followed."""
    assert owners.following is not None
    both = labels_of(owners.following, [one, other])
    fit = all(isinstance(c, Owned | Followed) for c in (one, other))
    if both is None or not fit or any(isinstance(c, Owned) and c.data for c in (one, other)):
        return mixed(op, NOW_OTHERS, unknown=True, help=SEGMENTS_HELP)
    terms = [x for x in both if x is not None]
    beside = any(map(_is_constant, values, (one, other)))
    if beside and not all(x.varying for x in terms):
        return mixed(op, NOW_OTHERS, unknown=True, help=SEGMENTS_HELP)
    given = all(is_shared(c) or (isinstance(c, Followed) and c.given) for c in (one, other))
    return Followed(_fixed(owners, op, values[1], terms), given)


def _is_constant(value: Value, known: Class) -> bool:
    return is_shared(known) and not is_splat(value, 0)


def _fixed(owners: Owners, op: Operation, value: Value, terms: list[Term]) -> Term:
    following = owners.following
    assert following is not None
    if len(set(terms)) == 1:
        return terms[0]
    key = (op.results[0], value)
    fixed = following.carried.get(key)
    if fixed is None or any(len(x.shape) != len(fixed.shape) for x in terms):
        fixed = following.carried[key] = following.joined(op.results[0], ("either", value), terms)
    for term in terms:
        following.within(op.results[0], ("within", value, term), term, fixed)
    return fixed
