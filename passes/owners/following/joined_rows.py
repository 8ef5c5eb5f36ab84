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
    Paired,
    is_shared,
)
from hlo_surgery.passes.owners.following.operand_terms import labels_of, unfollowed
from hlo_surgery.passes.owners.following.terms import Term
from hlo_surgery.passes.owners.owners import Owners

NOW_OTHERS = "a value of this loop or branch has rows of examples now, and something else then"


def joined_rows(
    owners: Owners, op: Operation, values: tuple[Value, Value], one: Class, other: Class
) -> Class:
    """The class of either of two values, one of them Followed, or resting on pairs of rows."""
    assert owners.following is not None
    if isinstance(one, Paired) or isinstance(other, Paired):
        return _joined_pairs(owners, op, values[1], one, other)
    both = labels_of(owners.following, [one, other])
    fit = all(isinstance(c, Owned | Followed) for c in (one, other))
    if both is None or not fit or any(isinstance(c, Owned) and c.data for c in (one, other)):
        return unfollowed(op, NOW_OTHERS)
    terms = [x for x in both if x is not None]
    beside = any(map(_is_constant, values, (one, other)))
    if beside and not all(x.varying for x in terms):
        return unfollowed(op, NOW_OTHERS)
    given = all(is_shared(c) or (isinstance(c, Followed) and c.given) for c in (one, other))
    return Followed(_fixed(owners, op, values[1], terms), given)


def _joined_pairs(owners: Owners, op: Operation, value: Value, one: Class, other: Class) -> Class:
    found = [c for c in (one, other) if isinstance(c, Paired)]
    others = [c for c in (one, other) if not isinstance(c, Paired)]
    alike = len({(c.one.varying, c.other.varying) for c in found}) == 1
    if not alike or not all(isinstance(c, Owned) and c.is_shared and not c.data for c in others):
        return unfollowed(op, NOW_OTHERS)
    first = _fixed(owners, op, value, [c.one for c in found], "one")
    second = _fixed(owners, op, value, [c.other for c in found], "other")
    return Paired(first, second, all(c.masked for c in found))


def _is_constant(value: Value, known: Class) -> bool:
    return is_shared(known) and not is_splat(value, 0)


def _fixed(owners: Owners, op: Operation, value: Value, terms: list[Term], which: str = "") -> Term:
    following = owners.following
    assert following is not None
    if len(set(terms)) == 1:
        return terms[0]
    key = (op.results[0], value, which)
    fixed = following.carried.get(key)
    if fixed is None or any(len(x.shape) != len(fixed.shape) for x in terms):
        fixed = following.carried[key] = following.joined(
            op.results[0], ("either", value, which), terms
        )
    for term in terms:
        following.within(op.results[0], ("within", value, which, term), term, fixed)
    return fixed
