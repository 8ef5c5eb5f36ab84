"""Meeting: what an op makes of operands that lie along the batch, digit by digit.

    multiply %x [B, D], %y [B, D]              B on one factor, which stays        rows
    dot_general %h [B, D], %l [B, F] over B    B on one factor, which is summed    a sum
    multiply %x [B, D], %x reversed            nothing aligns the two              Mixed

At index k of a factor a result reads all operands at k alone (`structure.py`). So if a batch digit
is on one factor in all operands, and stays, the result at index i of the digit depends on example i
alone; if the op sums that factor, each term depends on one example. All else is refused. A digit
that was unified wrongly costs an acceptance, never a number: here each op is asked again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hlo_surgery.passes.axes import reasons
from hlo_surgery.passes.axes.constants import differs, is_nothing
from hlo_surgery.passes.axes.state import (
    NOWHERE,
    Batched,
    Class,
    Classes,
    Mixed,
    Shared,
    State,
    is_sum,
)
from hlo_surgery.passes.ir import mlir, traits
from hlo_surgery.passes.ir.errors import APART_HELP, MIXING_HELP, ONTO_HELP, STEPS_HELP, reason_at
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.ir.traits import initial_operands, integer
from hlo_surgery.passes.structure.digits import Digit, aligned_runs, leaves
from hlo_surgery.passes.structure.ragged import looked_up, may_be_nobodys, takes_rows
from hlo_surgery.passes.structure.structure import Counted, Link

# How a value has a batch digit: in a dimension, by the step of a loop, summed; or at one place.
KEPT, STEP, SUMMED = "kept", "step", "summed"
Way = str | int
# Ops that put operands at places of what they make.
PLACING = frozenset(
    f"stablehlo.{name}"
    for name in ("concatenate", "dynamic_update_slice", "pad", "scatter", "select")
)


class Meets(Exception):
    """Examples meet in an op; the class of its results says why."""

    def __init__(self, mixed: Mixed) -> None:
        self.mixed = mixed


@dataclass
class Met:
    """An op on operands that lie along the batch: `ways`, by operand, how each has the digit that
    is asked of now.
    """

    state: State
    op: Operation
    classes: Classes
    link: Link | None
    batched: dict[int, Batched]

    def fail(self, why: str) -> Meets:
        """What is raised where examples meet so."""
        packed = self.state.owners and why == reasons.APART
        help = reasons.PACKED_HELP if packed else ""
        return Meets(Mixed(reasons.meeting(self.op, why, help)))

    def moves(self) -> Meets:
        """The same where it puts them elsewhere."""
        return self.fail(reasons.PICKED if self.op.name in reasons.PICKING else reasons.MOVED)

    def is_linear(self) -> bool:
        """Whether the op is linear in all operands of examples, jointly."""
        return traits.is_linear(self.op, self.batched)


def met(state: State, op: Operation, classes: Classes) -> Classes:
    """The classes of an op's results, some of its operands being Batched."""
    batched = {i: c for i, c in enumerate(classes) if isinstance(c, Batched)}
    found = Met(state, op, classes, state.link(op), batched)
    return [_result_or_mixed(found, number) for number in range(len(op.results))]


def _result_or_mixed(found: Met, number: int) -> Class:
    try:
        return _result(found, number)
    except Meets as meets:
        return meets.mixed


def _result(found: Met, number: int) -> Batched:
    """One result: each digit of the batch for itself, and what the op sums or adds."""
    summed, at = set[Digit](), dict[Digit, int]()
    for digit in found.state.batch:
        way = _along(found, digit, number)
        if way == SUMMED:
            summed.add(digit)
        elif isinstance(way, int):
            at[digit] = way
    own = found.batched.values()
    if _hands_on_constants(found):
        raise found.fail(reasons.APART)
    site = next((c.site for c in own if c.site is not None), found.op if summed else None)
    term = _term(found, bool(summed), bool(at))
    before = NOWHERE.union(*(c.summed for c in own))
    bare, running = all(c.bare for c in own), any(c.running for c in own)
    placed = (bool(summed - before) or running) and _lays_out(found)
    if placed and found.state.contribution and found.op.name not in PLACING:
        # Rows behind a fixed matrix: which example's copy of a parameter they met is not known.
        raise Meets(Mixed(reasons.meeting(found.op, reasons.MOVED), unknown=True))
    laid_out = placed or any(c.laid_out for c in own)
    return Batched(frozenset(summed), at, site, term, bare, laid_out, running)


def _hands_on_constants(found: Met) -> bool:
    """Whether what one step's constants hand on to others, which is of no single step, becomes a
    part of what is summed, or of what parameters make.
    """
    running = [i for i, c in found.batched.items() if c.bare and c.running]
    if len(running) != 1:
        return bool(running)
    sums = any(c.summed and not c.bare for c in found.batched.values())
    pairs = enumerate(zip(found.op.operands, found.classes, strict=True))
    trained = found.state.trained
    constants = [i for i, (v, c) in pairs if isinstance(c, Shared) and v in trained]
    scales = constants and not traits.is_linear(found.op, [*running, *constants])
    return sums or bool(scales)


def _lays_out(found: Met) -> bool:
    """Whether constants give examples places in what an op makes of sums, or sums: an op that puts
    them somewhere, or an array with a row for each, as a matrix has.
    """
    op = found.op
    pairs = zip(op.operands, found.classes, strict=True)
    along = any(isinstance(known, Shared) and found.state.digits(v) for v, known in pairs)
    return op.name in PLACING or (op.name == "stablehlo.dot_general" and along)


def _term(found: Met, is_sum: bool, is_single: bool) -> reasons.Reason | None:
    """Why the constant part of a result may be no term: what it has, or is added to it here. Beside
    a single example's value a constant may be all examples', unless more is made of both.
    """
    kept = found.is_linear() and (is_sum or is_single)
    terms = [c.term for c in found.batched.values() if c.term]
    own = next((t for t in terms if kept or t.why != reasons.BESIDE_ONE), None)
    if own or not (is_sum or is_single):
        return own
    added = (_added_term(found, i, is_sum) for i in range(len(found.classes)))
    return next((term for term in added if term), None)


def _added_term(found: Met, number: int, is_sum: bool) -> reasons.Reason | None:
    """Why a constant operand may be no term, beside a sum or a single example's value."""
    known, constant = found.classes[number], found.op.operands[number]
    if not isinstance(known, Shared):
        return None
    added = traits.is_linear(found.op, {*found.batched, number})
    if not added and number not in initial_operands(found.op):
        return None
    if known.term or is_nothing(found.state, constant):
        return known.term
    if is_sum:
        differing = added and differs(found.state, constant)
        return reason_at(found.op, reasons.ROW_OF_EACH) if differing else None
    return reason_at(found.op, reasons.BESIDE_ONE, APART_HELP)


def _along(found: Met, digit: Digit, number: int) -> Way:
    """How a result has a batch digit."""
    ways = _ways(found, digit)
    kinds = set(ways.values())
    places = found.state.places(found.op.results[number]).get(digit, [])
    if SUMMED in kinds:
        return _summed(found, kinds)
    if KEPT in kinds:
        return _rows(found, digit, number, kinds, places)
    if kinds == {STEP}:
        return _step(found, digit, number, places)
    return _single(found, digit, number, kinds, places)


def _ways(found: Met, digit: Digit) -> dict[int, Way]:
    """How each operand has a digit, as far as the op reads it."""
    ways: dict[int, Way] = {}
    for i, known in found.batched.items():
        if digit in known.summed:
            ways[i] = SUMMED
        elif own := found.state.places(found.op.operands[i]).get(digit):
            if len(own) > 1:
                raise found.fail(reasons.APART)
            ways[i] = STEP if i == 0 and _reads_step(found, digit) else KEPT
        elif digit in known.at:
            ways[i] = known.at[digit]
        elif digit in found.state.scope:
            ways[i] = STEP
        else:
            raise found.fail(reasons.APART)
    return ways


def _reads_step(found: Met, digit: Digit) -> bool:
    """Whether the op reads the first operand at the loop's step of a digit, and nowhere else."""
    link = found.link
    if link is None or found.op.name not in ("stablehlo.dynamic_slice", "stablehlo.gather"):
        return False
    dims = found.state.places(found.op.operands[0]).get(digit, [])
    taken = [dim for dim in dims if _counts_step(found, link, dim, digit)]
    return bool(dims) and taken == dims and digit in found.state.scope


def _counts_step(found: Met, link: Link, dim: int, digit: Digit) -> bool:
    steps = link.steps.get(dim)
    return steps is not None and digit in found.state.batch_digits([steps])


def _summed(found: Met, kinds: set[Way]) -> Way:
    if KEPT in kinds or not found.is_linear():
        # A state that goes from one example to the next has no rows to be found, either; and what
        # is added up on top of a sum is none of its constants.
        onto = any(is_sum(found.classes[i]) for i in initial_operands(found.op))
        running = KEPT not in kinds and any(c.running for c in found.batched.values())
        reason = _sum_meets(found, KEPT in kinds or STEP in kinds, onto)
        raise Meets(Mixed(reason, unknown=running or onto))
    return SUMMED


def _sum_meets(found: Met, rows: bool, onto: bool) -> reasons.Reason:
    """Why a sum over the examples is none of what this op may take."""
    sums = [c for c in found.batched.values() if c.summed]
    site = next((c.site for c in sums if c.site is not None), found.op)
    line = f"{site.name} at {reasons.source_line(site)}"
    if not rows and len(sums) == len(found.batched):
        return reasons.of_sums(found.op, line, len(sums))
    if any(c.running for c in sums) and len(sums) < len(found.batched) and not onto:
        return reason_at(found.op, reasons.EARLIER.format(line=line), STEPS_HELP)
    return reason_at(found.op, reasons.MEETS.format(line=line), ONTO_HELP if onto else MIXING_HELP)


def _rows(found: Met, digit: Digit, number: int, kinds: set[Way], places: Sequence[int]) -> Way:
    """A digit that lies in operands' dimensions: on one factor, which stays or is summed."""
    link, op = found.link, found.op
    if kinds != {KEPT} and not (kinds == {KEPT, STEP} and _writes(found, digit)):
        raise found.fail(reasons.APART)
    if op.name == "stablehlo.reshape":
        return _reshaped(found, digit)
    if link is None:
        raise Meets(Mixed(reasons.unknown(op), unknown=True))
    if link.lookup and found.state.batch_digits(looked_up(found.state.structure, op)[0]):
        if takes_rows(op, link.lookup, lambda v: found.state.places(v).get(digit, [])):
            return KEPT
        raise found.fail(reasons.PICKED)
    factor = _factor(found, link, digit)
    if not isinstance(factor, tuple):
        if places:
            raise found.fail(reasons.APART)
        return factor
    if link.blocked.intersection(factor):
        raise found.moves()
    made = op.results[number]
    own = {
        dim: _on_factor(found, link, made, dim, link.results[number][dim], digit) for dim in places
    }
    kept = [dim for dim in places if own[dim] == factor]
    if places:
        if len(places) > 1 or kept != list(places):
            raise found.fail(reasons.APART)
        return KEPT
    structure = found.state.structure
    held = [d for i in found.batched for dim in structure.of(op.operands[i]) for d in dim]
    if may_be_nobodys(structure, found.state.owners, held):
        raise found.fail(reasons.NOBODYS)
    if link.reduced.issuperset(factor) and factor and traits.sums(op, number):
        return SUMMED
    raise Meets(Mixed(reasons.reduced(op)))


def _writes(found: Met, digit: Digit) -> bool:
    """Whether the op writes at the loop's step of a digit."""
    link = found.link
    writes = found.op.name in ("stablehlo.dynamic_update_slice", "stablehlo.scatter")
    if link is None or not writes or digit not in found.state.scope:
        return False
    return any(_counts_step(found, link, dim, digit) for dim in link.steps)


def _factor(found: Met, link: Link, digit: Digit) -> tuple[int, ...] | int:
    """The one factor on which all operands have a digit; the place of it where one is taken."""
    factors = set[Counted]()
    for i, operand in enumerate(found.op.operands):
        for dim in found.state.places(operand).get(digit, ()):
            if i == 0 and dim in link.places and found.op.name != "stablehlo.pad":
                return _place(found, digit, operand, dim, link.places[dim])
            factor = _on_factor(found, link, operand, dim, link.operands[i][dim], digit)
            if factor is not None:
                factors.add(factor)
            elif isinstance(found.classes[i], Batched):
                raise found.moves()
    if digit in found.state.batch_digits(link.torn) or len(factors) > 1:
        raise found.fail(reasons.APART)
    return next((factor for factor in factors if factor is not None), ())


def _on_factor(
    found: Met, link: Link, value: Value, dim: int, own: Counted, digit: Digit
) -> Counted:
    """The factor by which a dimension counts a digit: one of its own, if its digits show which."""
    left = leaves(found.state.structure.of(value)[dim])
    for factor in own if own and len(own) > 1 else ():
        size, digits = 1, list[Digit]()
        while left and size < link.sizes[factor]:
            digits.append(left.pop(0))
            size *= digits[-1].size
        if digit in found.state.batch_digits(digits):
            return (factor,)
    return own


def _place(found: Met, digit: Digit, value: Value, dim: int, index: int) -> int:
    """The example, along a digit, at an index of a dimension."""
    own = leaves(found.state.structure.of(value)[dim])
    for each in reversed(own) if found.state.owners.keys().isdisjoint(own) else ():
        index, place = divmod(index, each.size)
        root, first = found.state.offsets.get(each, (None, 0))
        if root is digit:
            return first + place
    raise found.fail(reasons.PICKED)


def _reshaped(found: Met, digit: Digit) -> Way:
    """A reshape keeps the row-major order: between the same places of it lie the same digits."""
    structure, link = found.state.structure, found.link
    values = found.op.operands[0], found.op.result
    flat = ([d for dim in structure.of(v) for d in dim] for v in values)
    torn = digit in found.state.batch_digits(link.torn if link else ())
    for one, two in aligned_runs(*flat):
        if leaves(one) != leaves(two) and digit in found.state.batch_digits([*one, *two]):
            torn = True
    if torn or len(found.state.places(found.op.result).get(digit, [])) != 1:
        raise found.fail(reasons.APART)
    return KEPT


def _step(found: Met, digit: Digit, number: int, places: Sequence[int]) -> Way:
    """What rests on the step's example alone; written at its place it is one of the rows."""
    if not places:
        return STEP
    link = found.link
    written = link is not None and _counts_step(found, link, places[0], digit)
    if not written or number or len(places) > 1 or not _writes(found, digit):
        raise found.fail(reasons.APART)
    return KEPT


def _in_order(found: Met, digit: Digit) -> bool:
    """Whether operands are single examples, all of a digit's, one behind the other."""
    single = all(mlir.shape(v)[integer(found.op, "dimension")] == 1 for v in found.op.operands)
    places = [c.at.get(digit) for c in found.batched.values()]
    return single and len(places) == len(found.classes) and places == [*range(digit.size)]


def _single(found: Met, digit: Digit, number: int, kinds: set[Way], places: Sequence[int]) -> Way:
    """What rests on one example, whose place is known, or on several such."""
    link, op = found.link, found.op
    if op.name == "stablehlo.concatenate" and _in_order(found, digit):
        along = integer(op, "dimension")
        if places == [along]:
            return KEPT
        found.state.wanted.append((digit, found.state.structure.of(op.result)[along]))
    if len(kinds) == 1:
        place = next(iter(kinds))
        if not places:
            return place
        put = op.name == "stablehlo.pad" and link is not None and list(found.batched) == [0]
        if put and link and len(places) == 1 and places[0] in link.places:
            index = link.places[places[0]]
            if _place(found, digit, op.results[number], places[0], index) == place:
                return KEPT
        raise found.fail(reasons.APART)
    if kinds & {KEPT, STEP} or not found.is_linear() or places:
        raise found.fail(reasons.APART)
    return SUMMED
