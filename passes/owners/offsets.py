"""Offsets: constants that are added to what rests on an example.

    %h = add %x, %bias     %x: Owned    =>  %h: Owned, with an offset

In rows that every example has, each gets its share of them. Where they are added to some examples'
values alone they would be no others', though as a term of a gradient they are nobody's: refused.
"""

from collections.abc import Sequence
from typing import Any, cast

from hlo_surgery.passes.ir import linearity
from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.errors import APART_HELP
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.owners.alignment.even_shares import (
    ADD,
    has_even_shares,
    is_uneven,
    runs_on,
)
from hlo_surgery.passes.owners.classes import Class, Mixed, Owned, Owners, mixed, owned_operands

UNEVEN = (
    "a constant is added to what belongs to some examples, and it is not shown that each of them "
    "gets its share of it"
)


def uneven_at(op: Operation) -> Mixed:
    """The class of what adds a constant to some examples' values."""
    return mixed(op, UNEVEN, help=APART_HELP)


def brings_uneven(owners: Owners, op: Operation, classes: Sequence[Class]) -> bool:
    """Whether an op that sums owned values, in which it is linear, adds constants that some
    examples bring along and others do not.
    """
    if op.name == ADD:
        return not has_even_shares(owners, op)
    return any(is_uneven(owners, known) for known in classes)


def refused_as_uneven(owners: Owners, op: Operation, classes: Sequence[Class]) -> Mixed | None:
    """The class of a sum to which some examples bring constants; None where it brings none, or is
    judged where it ends (`apart.uneven_reason`).
    """
    if not brings_uneven(owners, op, classes):
        return None
    if owners.contributions or owners.following or not _is_outermost(op):
        return uneven_at(op)
    owners.uneven.update(op.results)
    return None


def _is_outermost(op: Operation) -> bool:
    """Whether an op is in no loop or branch."""
    return cast(Any, op).parent.name == "func.func"


def has_offset(op: Operation, classes: Sequence[Owned]) -> bool:
    """Whether constants that nobody owns are added to what examples own, here or before."""
    own = owned_operands(classes)
    if not own or not linearity.is_linear(op, own):
        return False
    if any(classes[i].offset for i in own):
        return True
    others = (i for i in range(len(classes)) if i not in own)
    added = (i for i in others if linearity.is_linear(op, own | {i}))
    return any(not is_splat(op.operands[i], 0) and not runs_on(op, i) for i in added)
