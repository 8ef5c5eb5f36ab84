"""Follow: the classes of what an op makes of values whose owners are known as the program runs.

    tanh %x : Followed                            =>  Followed, as it was
    scatter 0, %receivers, %messages : Followed   =>  Followed, if what lands together is one's
    reduce add %l : Followed over all its rows    =>  Summed, c_b being what the rows of b make

What is met where the program runs is not refused, but found by a check; what meets in any case is.
"""

from collections.abc import Callable, Sequence

from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.dataflow.uniform import is_uniform
from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.ir.source_lines import source_line
from hlo_surgery.passes.owners.classes import (
    ELEMENTWISE,
    MOVED,
    Class,
    Followed,
    Mixed,
    Owned,
    Paired,
    Summed,
    is_shared,
    mixed,
    summed_operands,
)
from hlo_surgery.passes.owners.constants import added_data, data_in, demoted, rearranged
from hlo_surgery.passes.owners.following.operand_terms import (
    PAIRS,
    SEGMENTS_HELP,
    SITE,
    labels_of,
    unfollowed,
)
from hlo_surgery.passes.owners.following.pairs import classify_pairs, terms_of
from hlo_surgery.passes.owners.following.term_landings import scattered, updates_of
from hlo_surgery.passes.owners.following.term_lookups import LOOKUPS, selected
from hlo_surgery.passes.owners.following.term_meetings import (
    TermMeeting,
    lost_factors,
    over_dims,
    term_meeting,
)
from hlo_surgery.passes.owners.following.term_moves import TERM_MOVES, Labels
from hlo_surgery.passes.owners.following.terms import Following, Term
from hlo_surgery.passes.owners.offsets import uneven_at
from hlo_surgery.passes.owners.owned_ops import REDUCED
from hlo_surgery.passes.owners.owners import Owners

Transfer = Callable[[Owners, Operation, Sequence[Class]], list[Class]]
GIVEN = "what hs.constant marks, made of several examples, is taken as given"
FOLLOWED = ("stablehlo.gather", "stablehlo.scatter")


def classify_followed(
    owners: Owners, op: Operation, classes: Sequence[Class], again: Transfer
) -> list[Class]:
    """The classes of the op's results, some of its operands being Followed, or to be."""
    assert owners.following is not None
    own, captured = classes[: len(op.operands)], classes[len(op.operands) :]
    if not all(map(is_shared, captured)):
        return _unfollowed(op)
    if any(isinstance(c, Paired) for c in own):
        return _of_pairs(owners, owners.following, op, own)
    if summed_operands(own):
        return _beside_sums(owners, owners.following, op, own, again)
    labels = labels_of(owners.following, own)
    if labels is None:
        return _unfollowed(op)
    rows = {dim for x in labels if x is not None for dim in x.varying}
    if data := _uneven_data(op, own, rows):
        return [rearranged(op, data)] * len(op.results)
    found = _made_of(owners, owners.following, op, own, labels)
    given = _are_given(own)
    met = any(isinstance(c, Mixed) for c in found) or op.results[0] in owners.following.checks
    if given and met:
        owners.following.forget(op.results[0])
        return [_given(owners, op, result) for result in op.results]
    return [Followed(c.term, given) if isinstance(c, Followed) else c for c in found]


def is_lookup_of_rows(owners: Owners, op: Operation, classes: Sequence[Class]) -> bool:
    """Whether rows whose owners are numbers are moved to where values of the program say."""
    if owners.following is None or op.name not in FOLLOWED or len(op.results) > 1:
        return False
    rest = [c for i, c in enumerate(classes) if i != 1]
    owned = all(isinstance(c, Owned) for c in rest) and not all(map(is_shared, rest))
    return owned and is_shared(classes[1]) and op.results[0] not in owners.following.sums


def _unfollowed(op: Operation) -> list[Class]:
    return [unfollowed(op)] * len(op.results)


def as_given(known: Class) -> Class:
    """What a mark of constants makes of a value."""
    return Followed(known.term, given=True) if isinstance(known, Followed) else known


def _are_given(classes: Sequence[Class]) -> bool:
    """Whether all that examples reach came through marks of constants."""
    reached = [c for c in classes if not is_shared(c)]
    return all(isinstance(c, Followed) and c.given for c in reached)


def _given(owners: Owners, op: Operation, result: mlir.Value) -> Owned:
    owners.data.setdefault(result, Reason(GIVEN, op.name, source_line(op)))
    return owners.nobodys(result)


def _of_pairs(
    owners: Owners, following: Following, op: Operation, classes: Sequence[Class]
) -> list[Class]:
    """Values that rest on pairs of rows, which meet no sums over the examples."""
    if summed_operands(classes):
        return [mixed(op, PAIRS, help=SEGMENTS_HELP)] * len(op.results)
    terms = (x for c in classes for x in terms_of(following, c) or ())
    rows = {dim for x in terms for dim in x.varying}
    if data := _uneven_data(op, classes, rows):
        return [rearranged(op, data)] * len(op.results)
    return classify_pairs(owners, following, op, classes)


def _uneven_data(op: Operation, classes: Sequence[Class], rows: set[int]) -> Reason | None:
    """Data of the batch that is not the same for all rows."""
    for value, known in zip(op.operands, classes, strict=True):
        data, shape = data_in(known), mlir.shape(value)
        # A scalar that is chosen by, or clamped to, is the same for all rows.
        dims = rows if shape and op.name in ELEMENTWISE else range(len(shape))
        places = [PerExample(dim) for dim in dims if shape[dim] > 1]
        if data and not all(is_uniform(value, place, shape[place.dim]) for place in places):
            return data
    return None


def _made_of(
    owners: Owners, following: Following, op: Operation, classes: Sequence[Class], labels: Labels
) -> list[Class]:
    if op.name == "stablehlo.scatter":
        return [_scattered(following, op, classes, labels)]
    if op.name in TERM_MOVES:
        return _followed(op, TERM_MOVES[op.name](following, op, labels))
    if op.name in LOOKUPS:
        return _followed(op, LOOKUPS[op.name](following, op, labels))
    if op.name == "stablehlo.select" and (term := selected(following, op, labels)):
        return [Followed(term)]
    meeting = term_meeting(following, op, labels)
    if meeting is None:
        return _unfollowed(op)
    if meeting.apart:
        following.forget(op.results[0])
        return classify_pairs(owners, following, op, classes)
    if meeting.varying & meeting.rule.blocked:
        return [mixed(op, MOVED, help=SEGMENTS_HELP)] * len(op.results)
    if not meeting.varying and _adds_constant(op, classes, labels):
        return [uneven_at(op)] * len(op.results)
    return [_result(following, op, classes, labels, meeting, i) for i in range(len(op.results))]


def _followed(op: Operation, term: Term | None) -> list[Class]:
    return _unfollowed(op) if term is None else [Followed(term)]


def _adds_constant(op: Operation, classes: Sequence[Class], labels: Labels) -> bool:
    """Whether a constant is added to what one example owns: no row, but perhaps a gradient."""
    own = frozenset(i for i, x in enumerate(labels) if x is not None)
    others = (i for i in range(len(classes)) if i not in own)
    added = (i for i in others if linearity.is_linear(op, own | {i}))
    return any(not is_splat(op.operands[i], 0) for i in added)


def _result(
    following: Following,
    op: Operation,
    classes: Sequence[Class],
    labels: Labels,
    meeting: TermMeeting,
    number: int,
) -> Class:
    dims, shape = meeting.rule.results[number], mlir.shape(op.results[number])
    lost = lost_factors(meeting, dims, shape)
    if not lost <= meeting.rule.reduced:
        return mixed(op, MOVED, help=SEGMENTS_HELP)
    adds = linearity.sums(op, number) and len(op.results) == 1
    kept = meeting.varying - lost and op.results[0] not in following.sums
    if lost and adds and not kept:
        return _summed(following, op, classes, labels, meeting)
    if lost == meeting.varying and lost:
        return mixed(op, REDUCED.format(by=""), help=SEGMENTS_HELP)
    met = following.over(op.results[0], ("over", number), meeting.met, sorted(lost))
    term = over_dims(following, meeting.rule, dims, shape, met)
    return _followed(op, term)[0]


def _summed(
    following: Following,
    op: Operation,
    classes: Sequence[Class],
    labels: Labels,
    meeting: TermMeeting,
) -> Class:
    """A sum over rows; each operand that holds them shows those of one example."""
    rule, shown = meeting.rule, list[Term | None]()
    uncommon = sorted(meeting.varying - meeting.common)
    rows = following.over(op.results[0], "rows", meeting.met, uncommon)
    for value, dims, x in zip(op.operands, rule.operands, labels, strict=True):
        own = over_dims(following, rule, dims, mlir.shape(value), rows)
        if own is None and x is not None:
            return unfollowed(op, SITE)
        shown.append(own if mlir.is_inexact(value) else None)
    return _site(following, op, classes, shown)


def _site(
    following: Following, op: Operation, classes: Sequence[Class], shown: Sequence[Term | None]
) -> Class:
    own = frozenset(i for i, x in enumerate(shown) if x is not None)
    if not any(linearity.is_linear(op, frozenset([i])) for i in own):
        return unfollowed(op, SITE)
    following.sites[op.results[0]] = tuple(shown)
    return Summed(op, added_data(op, classes, own))


def _scattered(
    following: Following, op: Operation, classes: Sequence[Class], labels: Labels
) -> Class:
    """Rows that land somewhere are followed, unless all that is done to them is to add them up."""
    if len(op.results) > 1:
        return _unfollowed(op)[0]
    if op.results[0] not in following.sums:
        return _followed(op, scattered(following, op, labels))[0]
    return _site(following, op, classes, [labels[0], None, updates_of(following, op, labels)])


def _beside_sums(
    owners: Owners, following: Following, op: Operation, classes: Sequence[Class], again: Transfer
) -> list[Class]:
    """Rows that meet sums over the examples: more terms, or rows beside a constant of the batch."""
    summed, labels = summed_operands(classes), labels_of(following, classes)
    if labels is None:
        return _unfollowed(op)
    own = frozenset(i for i, x in enumerate(labels) if x is not None)
    data = frozenset(i for i in summed if not owners.is_trained(op, i))
    if data and any(x.varying for x in labels if x is not None):
        return again(owners, op, demoted(owners, op, classes, data))
    if linearity.is_linear(op, summed | own):
        following.sites[op.results[0]] = tuple(labels)
        held, site = added_data(op, classes, summed | own), _first_site(classes)
        return [Summed(site, held)] * len(op.results)
    if data == summed:
        return again(owners, op, demoted(owners, op, classes, summed))
    site = _first_site(classes)
    line = f"{site.name} at {source_line(site)}"
    why = f"a sum over the examples ({line}) meets each example's own values"
    return [mixed(op, why)] * len(op.results)


def _first_site(classes: Sequence[Class]) -> Operation:
    return next(c.site for c in classes if isinstance(c, Summed))
