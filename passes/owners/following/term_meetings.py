"""Term meetings: the owners of an op's operands, over the factors of its sharding rule.

    dot_general %h[n, d], %l[n, f] over n    terms [n, 1] and [n, 1]    joint owners along n

A dimension along which owners vary must be one factor. At each index of the factors the op reads
all operands there and no others, so that a joint owner of these is that of what is made of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp

from hlo_surgery.passes.dataflow.sharding_rules import Rule
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.owners.factors import counts_by, rule_of
from hlo_surgery.passes.owners.following.term_moves import Labels
from hlo_surgery.passes.owners.following.terms import Following, Term

Dims = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class TermMeeting:
    """`met`: the joint owners, with a dimension for each factor. `apart`: whether owners vary along
    factors of different operands, none of which has all: every row meets every other. `common`:
    the factors along which those of all operands vary that have any.
    """

    rule: Rule
    met: Term
    apart: bool
    common: frozenset[int]

    @property
    def varying(self) -> frozenset[int]:
        """The factors along which owners vary."""
        return self.met.varying


def term_meeting(following: Following, op: Operation, labels: Labels) -> TermMeeting | None:
    """The operands over factors; None where no rule says how owners lie along them."""
    rule = rule_of(op, False)
    if rule is None:
        return None
    laid: list[Term] = []
    for value, dims, x in zip(op.operands, rule.operands, labels, strict=True):
        own = None if x is None else on_factors(following, rule, dims, mlir.shape(value), x)
        if x is not None and own is None:
            return None
        laid += [] if own is None else [own]
    met = following.joined(op.results[0], "met", laid)
    apart = all(x.varying != met.varying for x in laid)
    return TermMeeting(rule, met, apart, frozenset.intersection(*(x.varying for x in laid)))


def on_factors(
    following: Following, rule: Rule, dims: Dims, shape: Sequence[int], x: Term
) -> Term | None:
    """A term with a dimension for each factor."""
    places: dict[int, int] = {}
    for dim in sorted(x.varying):
        own = dims[dim]
        if len(own) != 1 or not counts_by(rule, own, shape[dim]) or own[0] in places:
            return None
        places[own[0]] = dim
    order = tuple(places[factor] for factor in sorted(places))
    sizes = [x.shape[places[f]] if f in places else 1 for f in range(len(rule.sizes))]
    others = tuple(dim for dim in range(len(x.shape)) if dim not in order)
    how = ("factors", order, tuple(sizes))
    return following.moved(
        how, x, sizes, lambda y: jnp.transpose(y, (*order, *others)).reshape(sizes)
    )


def over_dims(
    following: Following, rule: Rule, dims: Dims, shape: Sequence[int], met: Term
) -> Term | None:
    """Joint owners over the dimensions of an operand or result; None where it lacks a factor."""
    found = {
        own[0]: dim
        for dim, own in enumerate(dims)
        if len(own) == 1 and own[0] in met.varying and counts_by(rule, own, shape[dim])
    }
    if frozenset(found) != met.varying:
        return None
    factors = sorted(found, key=lambda f: found[f])
    order = (*factors, *(f for f in range(len(rule.sizes)) if f not in found))
    sizes = [1] * len(shape)
    for factor, dim in found.items():
        sizes[dim] = met.shape[factor]
    how = ("dims", order, tuple(sizes))
    return following.moved(how, met, sizes, lambda y: jnp.transpose(y, order).reshape(sizes))


def lost_factors(meeting: TermMeeting, dims: Dims, shape: Sequence[int]) -> frozenset[int]:
    """The factors along which owners vary and that a result does not have."""
    return meeting.varying - kept_factors(meeting.rule, dims, shape)


def kept_factors(rule: Rule, dims: Dims, shape: Sequence[int]) -> frozenset[int]:
    """The factors that are dimensions of a result."""
    return frozenset(
        own[0] for dim, own in enumerate(dims) if len(own) == 1 and counts_by(rule, own, shape[dim])
    )
