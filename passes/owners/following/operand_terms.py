"""Operand terms: whose the elements of operands are, and the words where it is not known."""

from collections.abc import Sequence

from hlo_surgery.passes.ir.errors import MIXING_HELP
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.owners.classes import Class, Followed, Mixed, Owned, mixed
from hlo_surgery.passes.owners.following.terms import Following, Term
from hlo_surgery.passes.owners.labelling.digits import all_whole

SEGMENTS_HELP = (
    "keep rows by their examples with what segments understands: elementwise ops, contractions "
    "over features, lookups and segment sums at given indices, attention with a mask by ids; "
    "or pass examples along an axis, padded to [B, L], and jax.vmap over it; "
    f"else {MIXING_HELP}"
)
UNFOLLOWED = "it is not followed whose rows come out of this op"
PAIRS = "each row meets the rows of all other examples"
SITE = "rows are summed in a way that cannot be taken apart by example"


def unfollowed(op: Operation, why: str = UNFOLLOWED) -> Mixed:
    """The class of what an op makes of rows that it is not known what it does to."""
    return mixed(op, why, unknown=True, help=SEGMENTS_HELP)


def term_of(following: Following, known: Class) -> Term | None:
    """The term of what has one owner; None where numbers differ from step to step of a loop."""
    if isinstance(known, Followed):
        return known.term
    assert isinstance(known, Owned)
    labels = all_whole(known.labels)
    shape = labels.owners.shape
    if any(n > 1 for n in shape[: labels.steps]):
        return None
    return following.of_numbers(labels.owners.reshape(shape[labels.steps :]))


def labels_of(following: Following, classes: Sequence[Class]) -> list[Term | None] | None:
    """Terms for all that has owners; None where numbers differ from step to step of a loop."""
    found: list[Term | None] = []
    for known in classes:
        has_owners = isinstance(known, Followed) or (
            isinstance(known, Owned) and not known.is_shared
        )
        term = term_of(following, known) if has_owners else None
        if has_owners and term is None:
            return None
        found.append(term)
    return found
