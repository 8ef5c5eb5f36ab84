"""Share forms: what is added up in a sum: the terms of groups of examples, and constants of theirs.

    %s = add (dot %x[:4]..), %p      =>  {(examples 0..3, None): 1, (examples 0..3, %p): 1}
    while { %c = add %c, (add (dot %x_i..), %p) }     =>  a group at each step, %p once in each

A constant belongs to the group beside which it is added, if there is one alone. What is added where
several groups have met may be meant for one of them, and is not known. Rows may bring constants
along (`row_constants`): those of a sum of rows are named by the sum itself.
"""

import math
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from hlo_surgery.passes.dataflow.loop_steps import varies
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.alignment.constant_parts import holds_constant
from hlo_surgery.passes.owners.classes import (
    Owned,
    is_shared,
    is_sum,
)
from hlo_surgery.passes.owners.labelling.indices import counted_loop
from hlo_surgery.passes.owners.labelling.labels import MOST_LABELS, counts_at
from hlo_surgery.passes.owners.owners import Owners
from hlo_surgery.passes.owners.shares.row_constants import (
    are_the_same_in_rows,
    has_constant,
    has_constants_in_rows,
    own_operands,
)
from hlo_surgery.passes.owners.shares.step_numbers import StepNumbers, within
from hlo_surgery.passes.owners.shares.weighted_terms import (
    RULES,
    Form,
    combined,
    with_terms_in_place,
)

MOST_STEPS = 1 << 14
ONE = np.ones(())


@dataclass(frozen=True)
class Group:
    """The examples whose rows are summed, at each step of the counted loops around: `steps` many,
    outermost first.
    """

    steps: tuple[int, ...]
    examples: tuple[frozenset[int], ...]


@dataclass(frozen=True, eq=False)
class Share:
    """The terms of a group, or a constant: of the group, or of none yet; `beside`: it is added to
    a sum, and in no example's own value.
    """

    group: Group | None
    constant: Value | None
    beside: bool


# A loop's carry stands for what it is before the step.
Term = Share | Value
Shares = Form[Term]


@dataclass
class _Search:
    owners: Owners
    known: dict[Value, Shares] = field(default_factory=dict[Value, Shares])
    shares: dict[object, Share] = field(default_factory=dict[object, Share])
    groups: dict[Group, Group] = field(default_factory=dict[Group, Group])
    met: list[Value] = field(default_factory=list[Value])

    def share(
        self, group: Group | None, constant: Value | None = None, beside: bool = False
    ) -> Share:
        """The one object for a share, so that few groups are compared."""
        key = id(group), constant, beside
        return self.shares.setdefault(key, Share(group, constant, beside))


def share_form(owners: Owners, output: Value) -> dict[Share, StepNumbers] | None:
    """What is added up in a value outside of loops, or None where that is not known.

    Of a group within loops a weight is one for each of its steps.
    """
    form = _form(_Search(owners), output)
    if form is None:
        return None
    return {term: weights for term, weights in form.items() if isinstance(term, Share)}


def where_groups_met(owners: Owners, output: Value) -> Value | None:
    """The first sum of several groups to which a constant is added, if there is one."""
    search = _Search(owners)
    _form(search, output)
    return next(iter(search.met), None)


def _form(search: _Search, value: Value) -> Shares:
    pending = [value]
    while pending:
        missing = [v for v in _made_from(search.owners, pending[-1]) if v not in search.known]
        pending += missing
        if not missing:
            made = pending.pop()
            if made not in search.known:
                search.known[made] = _settled(search, made, _made(search, made))
    return search.known[value]


def _made_from(owners: Owners, value: Value) -> list[Value]:
    op = mlir.defining_operation(value)
    if op is not None and op.name == "stablehlo.while" and is_sum(owners.of(value)):
        return list(op.operands)
    is_followed = op is not None and op.name in RULES and _is_told_apart(owners, value)
    return list(op.operands) if op is not None and is_followed else []


def _is_told_apart(owners: Owners, value: Value) -> bool:
    """Whether constants in a value can be told from the rest of it: a sum, or one example's."""
    known = owners.of(value)
    is_one = isinstance(known, Owned) and not known.labels.varies
    return is_sum(known) or (is_one and has_constants_in_rows(owners, value))


def _made(search: _Search, value: Value) -> Shares:
    owners, op = search.owners, mlir.defining_operation(value)
    if operands := _made_from(owners, value):
        assert op is not None
        if op.name == "stablehlo.while":
            return _of_loop(search, op, mlir.results(op).index(value))
        form = combined(owners, op, [search.known[v] for v in operands])
        return _of_rows(search, value) if form is None else form
    if not is_shared(owners.of(value)):
        return _of_rows(search, value)
    if not holds_constant(owners, value):
        return {}
    differs = any(varies(owners.varying, loop, value) for loop in mlir.loops_around(value))
    return None if differs else {search.share(None, value): ONE}


def _settled(search: _Search, value: Value, form: Shares) -> Shares:
    """Constants become those of the group beside which they are; not known, beside several."""
    shares = [term for term in form or {} if isinstance(term, Share)]
    constants = [share for share in shares if share.group is None]
    groups = {id(share.group): share.group for share in shares if share.group is not None}
    if not form or not constants or not groups:
        return form
    group = next(iter(groups.values()))
    if len(groups) > 1 or len(group.steps) != len(mlir.loops_around(value)):
        search.met.append(value)
        return None
    beside = is_sum(search.owners.of(value))
    own: dict[Term, Share] = {
        share: search.share(group, share.constant, beside) for share in constants
    }
    return with_terms_in_place(form, lambda term: {own.get(term, term): ONE})


def _of_rows(search: _Search, value: Value) -> Shares:
    """What sums the rows of some examples: a term of theirs, and the constant in their rows."""
    owners = search.owners
    groups = _groups(owners, value)
    if not groups:
        return None
    beside = holds_constant(owners, value)
    if beside and len(set(groups)) > 1:
        search.met.append(value)
        return None
    each = zip(*(group.examples for group in groups), strict=True)
    group = Group(groups[0].steps, tuple(frozenset[int]().union(*sets) for sets in each))
    group = search.groups.setdefault(group, group)
    own: dict[Term, StepNumbers] = {search.share(group): ONE}
    if not has_constant(owners, value):
        return own
    is_even = are_the_same_in_rows(owners, value, group.steps, group.examples)
    return own | {search.share(group, value, beside): ONE} if is_even else None


def _groups(owners: Owners, value: Value) -> list[Group]:
    """The examples of each of the values whose rows are summed in one; none, where it comes of a
    loop or branch, or is carried, or where some have more rows than others.
    """
    found = closure([value], partial(_summed_in, owners))
    makers = {v: mlir.defining_operation(v) for v in found if is_sum(owners.of(v))}
    if any(op is None or op.name in mlir.CONTROL_FLOW for op in makers.values()):
        return []
    trips = [counted_loop(owners, loop) for loop in reversed(mlir.loops_around(value))]
    steps = tuple(loop.trips for loop in trips if loop is not None)
    if len(steps) < len(trips) or math.prod(steps) * owners.size > MOST_LABELS:
        return []
    rows = [known for v in found if isinstance(known := owners.of(v), Owned)]
    counts = [counts_at(known.labels, steps) for known in rows if not known.is_shared]
    if any(len(set(own.values())) > 1 for by_step in counts for own in by_step):
        return []
    return [Group(steps, tuple(map(frozenset, by_step))) for by_step in counts]


def _summed_in(owners: Owners, value: Value) -> list[Value]:
    op = mlir.defining_operation(value)
    if op is None or not is_sum(owners.of(value)):
        return []
    if op.name == mlir.BARRIER:
        return [op.operands[mlir.results(op).index(value)]]
    return [op.operands[i] for i in own_operands(owners, op)]


def _of_loop(search: _Search, loop: Operation, number: int) -> Shares:
    """What is added up in a result of a loop: what it starts from, and what its steps bring."""
    counted, body = counted_loop(search.owners, loop), loop.regions[1].blocks[0]
    if counted is None or counted.trips > MOST_STEPS:
        return None
    carried = [carry for carry in body.arguments if is_sum(search.owners.of(carry))]
    search.known |= {carry: {carry: ONE} for carry in carried}
    returned = mlir.operands(mlir.return_operation(body))
    totals = dict(zip(body.arguments, returned, strict=True))
    by_step: dict[Term, Shares] = {carry: _form(search, totals[carry]) for carry in carried}
    last = body.arguments[number]
    found = _over_steps(by_step, last, counted.trips, len(mlir.loops_around(loop.results[0])))
    starts = zip(body.arguments, loop.operands, strict=True)
    begun: dict[Term, Shares] = {carry: search.known[start] for carry, start in starts}
    return with_terms_in_place(found, lambda term: begun.get(term, {term: ONE}))


def _over_steps(by_step: dict[Term, Shares], carry: Value, trips: int, axis: int) -> Shares:
    """A carry after all steps, by what each makes of it, from the last step to the first."""
    ahead: Shares = {carry: ONE}
    brought: dict[Term, list[StepNumbers]] = {}
    for step in reversed(range(trips)):
        ahead = with_terms_in_place(ahead, partial(_at, by_step, step, axis))
        if ahead is None:
            return None
        for term in [term for term in ahead if term not in by_step]:
            none_yet = [np.zeros(())] * trips
            brought.setdefault(term, none_yet)[step] = ahead.pop(term)
    return {term: _stacked(term, steps, axis) for term, steps in brought.items()} | ahead


def _at(by_step: dict[Term, Shares], step: int, axis: int, carry: Term) -> Shares:
    """What a step makes of a carry, with weights as of outside of the loop."""
    form = by_step[carry]
    if form is None:
        return None
    return {
        term: w.take(min(step, w.shape[axis] - 1), axis) if w.ndim > axis else w
        for term, w in form.items()
    }


def _stacked(term: Term, weights: list[StepNumbers], axis: int) -> StepNumbers:
    """The weights of all steps: one each, for a group within the loop; else together."""
    deepest = max(axis, *(w.ndim for w in weights))
    every = np.broadcast_arrays(*(within(w, deepest) for w in weights))
    is_inside = isinstance(term, Share) and term.group and len(term.group.steps) > axis
    return np.stack(every, axis) if is_inside else sum(every, np.zeros(()))
