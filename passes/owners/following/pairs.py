"""Pairs: the classes of what an op makes of values that rest on two rows, as attention's scores do.

    dot_general %q[i, d], %k[j, d]  =>  Paired(owners along i, owners along j)
    select %mask, %scores, -inf     =>  Paired, masked
    dot_general %p[i, j], %v[j, d]  =>  Followed(owners along i), if others' rows count for nothing

An element at which two examples meet is nobody's business as long as it is not summed: then it must
be zero, or under the maximum, which is asked when the program runs (pair_weights).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.dataflow.sharding_rules import Rule
from hlo_surgery.passes.dataflow.uniform import is_uniform
from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.owners.classes import (
    MOVED,
    Class,
    Followed,
    Owned,
    Paired,
    Summed,
    is_shared,
    mixed,
)
from hlo_surgery.passes.owners.constants import added_data
from hlo_surgery.passes.owners.factors import rule_of
from hlo_surgery.passes.owners.following.operand_terms import (
    PAIRS,
    SEGMENTS_HELP,
    SITE,
    term_of,
    unfollowed,
)
from hlo_surgery.passes.owners.following.pair_weights import (
    Weighing,
    weighed_maximum,
    weighed_sum,
    weighed_terms,
)
from hlo_surgery.passes.owners.following.term_lookups import LOOKUPS
from hlo_surgery.passes.owners.following.term_meetings import (
    kept_factors,
    on_factors,
    over_dims,
)
from hlo_surgery.passes.owners.following.term_moves import TERM_MOVES
from hlo_surgery.passes.owners.following.terms import Following, Term, join
from hlo_surgery.passes.owners.owners import Owners

Terms = tuple[Term, ...]
Varying = frozenset[int]


def terms_of(following: Following, known: Class) -> Terms | None:
    """The one or two terms of a value that has owners, none of another; None where not known."""
    if isinstance(known, Paired):
        return known.one, known.other
    if is_shared(known):
        return ()
    term = term_of(following, known) if isinstance(known, Followed | Owned) else None
    return None if term is None else (term,)


def classify_pairs(
    owners: Owners, following: Following, op: Operation, classes: Sequence[Class]
) -> list[Class]:
    """The classes of the op's results, which rest on pairs of rows, or are made of what does."""
    found = [terms_of(following, c) for c in classes]
    own = [terms for terms in found if terms is not None]
    if len(own) < len(found):
        return [unfollowed(op)] * len(op.results)
    masked = any(isinstance(c, Paired) and c.masked for c in classes)
    if op.name in TERM_MOVES or op.name in LOOKUPS:
        return [_moved(following, op, own, masked)]
    if op.name == "stablehlo.scatter":
        return [_scattered(owners, following, op, classes, masked)] * len(op.results)
    rule = rule_of(op, False)
    pair = None if rule is None else _pair(following, op, rule, own)
    if rule is None or pair is None:
        return [unfollowed(op)] * len(op.results)
    masked = masked or _tells_apart(op, rule, own, pair)
    weighing = Weighing(following, op, rule, own, *pair)
    return [_result(owners, weighing, classes, masked, i) for i in range(len(op.results))]


def _moved(following: Following, op: Operation, own: Sequence[Terms], masked: bool) -> Class:
    """Both terms put elsewhere, each by itself."""
    kinds = list(dict.fromkeys(x.varying for terms in own for x in terms))
    move = (TERM_MOVES | LOOKUPS)[op.name]
    moved: list[Term | None] = [
        move(following, op, [next((x for x in t if x.varying == kind), None) for t in own])
        for kind in kinds
    ]
    terms = [x for x in moved if x is not None]
    if len(kinds) != 2 or len(terms) != 2 or not all(kinds):
        return unfollowed(op)
    return of_terms(following, op, (terms[0], terms[1]), masked)


def of_terms(following: Following, op: Operation, pair: tuple[Term, Term], masked: bool) -> Class:
    """The class of what rests on these two, in the order of their dimensions."""
    one, other = sorted(pair, key=lambda x: sorted(x.varying))
    if not one.varying or not other.varying:
        return Followed(following.joined(op.results[0], "pair", [one, other]))
    if one.varying <= other.varying or other.varying <= one.varying:
        return mixed(op, PAIRS, help=SEGMENTS_HELP)
    return Paired(one, other, masked)


def _pair(
    following: Following, op: Operation, rule: Rule, own: Sequence[Terms]
) -> tuple[Term, Term] | None:
    """The two terms over the factors, all that vary along no others being joined with them."""
    laid: list[Term] = []
    for value, dims, terms in zip(op.operands, rule.operands, own, strict=True):
        for x in terms:
            over = on_factors(following, rule, dims, mlir.shape(value), x)
            if over is None:
                return None
            laid.append(over)
    kinds = list(dict.fromkeys(x.varying for x in laid))
    most = [kind for kind in kinds if not any(kind < other for other in kinds)]
    if len(most) != 2:
        return None
    home = {kind: next(i for i, m in enumerate(most) if kind <= m) for kind in kinds}
    groups = [[x for x in laid if home[x.varying] == i] for i in range(2)]
    one, other = (
        following.joined(op.results[0], ("pair", i), group) for i, group in enumerate(groups)
    )
    return one, other


def _tells_apart(op: Operation, rule: Rule, own: Sequence[Terms], pair: tuple[Term, Term]) -> bool:
    """Whether an op is told of pairs what is not the same for all: by what nobody owns, or by a
    choice that rows make.
    """
    one, other = pair
    if op.name == "stablehlo.compare" or (op.name == "stablehlo.select" and len(own[0]) > 1):
        return True
    return any(
        not terms and all(_differs(value, dims, rule, x.varying) for x in (one, other))
        for value, dims, terms in zip(op.operands, rule.operands, own, strict=True)
    )


def _differs(value: mlir.Value, dims: Any, rule: Rule, factors: Varying) -> bool:
    along = [d for d, own in enumerate(dims) if factors.intersection(own)]
    return any(not is_uniform(value, PerExample(d), mlir.shape(value)[d]) for d in along)


def _result(
    owners: Owners, weighing: Weighing, classes: Sequence[Class], masked: bool, number: int
) -> Class:
    op, rule, following = weighing.op, weighing.rule, weighing.following
    pair, varying = weighing.pair, weighing.varying
    dims, shape = rule.results[number], mlir.shape(op.results[number])
    lost = varying - kept_factors(rule, dims, shape)
    if varying & rule.blocked or not lost <= rule.reduced:
        return mixed(op, MOVED, help=SEGMENTS_HELP)
    if not lost:
        one, other = (over_dims(following, rule, dims, shape, x) for x in pair)
        assert one is not None
        assert other is not None
        return of_terms(following, op, (one, other), masked)
    if not masked:
        return mixed(op, PAIRS, help=SEGMENTS_HELP)
    if len(op.results) > 1 or mlir.is_in_branch(op):
        return unfollowed(op)
    if lost == varying:
        return _site(weighing, classes)
    kept = next((x for x, y in (pair, pair[::-1]) if lost == y.varying - x.varying), None)
    return unfollowed(op) if kept is None else _followed(weighing, kept)


def _followed(weighing: Weighing, kept: Term) -> Class:
    """What goes over all that one row met: its own, if what others own counts for nothing."""
    op, rule, following = weighing.op, weighing.rule, weighing.following
    term = over_dims(following, rule, rule.results[0], mlir.shape(op.results[0]), kept)
    (other,) = (x for x in weighing.pair if x is not kept)
    weighed = weighed_sum(weighing, kept, other, stays=True) if _adds(op) else None
    if _is_maximum(op):
        weighed = weighed_maximum(weighing, kept, other)
    if term is None or weighed is None:
        return unfollowed(op)
    following.weighed[op.results[0]] = weighed
    return Followed(term)


def _site(weighing: Weighing, classes: Sequence[Class]) -> Class:
    """A sum over pairs of rows, of which those of two examples must be zero."""
    op, rule, following = weighing.op, weighing.rule, weighing.following
    weighed = weighed_sum(weighing, *weighing.pair, stays=False)
    if weighed is None or not linearity.sums(op, 0):
        return unfollowed(op, SITE)
    shapes = [x.shape for x in weighing.pair]
    sizes = [max(pair) for pair in zip(*shapes, strict=True)]
    met = following.term("join", sizes, weighing.pair, join)
    shown: list[Term | None] = []
    for value, dims, terms in zip(op.operands, rule.operands, weighing.own, strict=True):
        own = over_dims(following, rule, dims, mlir.shape(value), met)
        if terms and (own is None or not mlir.is_inexact(value)):
            return unfollowed(op, SITE)
        shown.append(own if terms else None)
    following.weighed[op.results[0]] = weighed
    following.sites[op.results[0]] = tuple(shown)
    owned = frozenset(i for i, x in enumerate(shown) if x is not None)
    return Summed(op, added_data(op, classes, owned))


def _scattered(
    owners: Owners, following: Following, op: Operation, classes: Sequence[Class], masked: bool
) -> Class:
    """Pairs that are added up at given places, as in the gradient of a table of distances."""
    new, (added,) = classes[-1], linearity.added_results(op)[:1]
    alone = all(map(is_shared, classes[:-1])) and len(op.results) == 1 and not mlir.is_in_branch(op)
    if not isinstance(new, Paired) or not (added and alone and mlir.is_inexact(op.results[0])):
        return unfollowed(op)
    if not masked:
        return mixed(op, PAIRS, help=SEGMENTS_HELP)
    shape = np.broadcast_shapes(new.one.shape, new.other.shape)
    met = following.term("join", shape, (new.one, new.other), join)
    weighed = weighed_terms(following.size, op.operands[2], new.one, new.other)
    following.weighed[op.results[0]] = weighed
    following.sites[op.results[0]] = None, None, met
    return Summed(op, added_data(op, classes, frozenset([2])))


def _adds(op: Operation) -> bool:
    """Whether zeros count for nothing in what an op makes."""
    if op.name == "stablehlo.dot_general":
        return True
    body = ("stablehlo.add", "stablehlo.or")
    return op.name == "stablehlo.reduce" and any(linearity.combined_by(op, b)[0] for b in body)


def _is_maximum(op: Operation) -> bool:
    maximum = "stablehlo.maximum"
    return op.name == "stablehlo.reduce" and linearity.combined_by(op, maximum)[0]
