"""Weights of steps: what a loop's steps multiply what they add by, on the way to its sums.

    while %i < 4 { %c = add %c, (divide (subtract %g, %c), %i + 1) }        %g: 1/4 at each step
    while %i < 4 { %c = add (multiply %c, 0.9), %g }                        %g: .729 .81 .9 1

A term is what rests on no sum of earlier steps, and only those with constants count.
"""

from functools import partial

from hlo_surgery.passes.dataflow.loop_steps import varies
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.linearity import initial_operands
from hlo_surgery.passes.ir.mlir import Block, Operation, Value
from hlo_surgery.passes.owners.alignment.constant_parts import (
    constant_places,
    constant_terms,
    holds_constant,
)
from hlo_surgery.passes.owners.classes import (
    is_shared,
    is_sum,
)
from hlo_surgery.passes.owners.labelling.indices import counted_loop
from hlo_surgery.passes.owners.owners import Owners
from hlo_surgery.passes.owners.shares.step_numbers import StepNumbers
from hlo_surgery.passes.owners.shares.weighted_terms import (
    Form,
    added,
    are_alike,
    chosen,
    combined,
    once,
    with_terms_in_place,
)

# What is added up in a value, as far as it is known: nothing, where no constant is.
Sum = Form[Value]
Forms = dict[Value, Sum]

MOST_STEPS = 1 << 14


def step_forms(owners: Owners, loop: Operation) -> list[Sum]:
    """What is added up in each result of a loop: its initial values, and constants of its steps."""
    return _loop_forms(owners, loop, {}, loop)


def _loop_forms(owners: Owners, loop: Operation, around: Forms, over: Operation) -> list[Sum]:
    """The forms of a loop's results; `over`: the loop of whose steps the constants are, around
    this one or itself, and `around`: the forms in its step.
    """
    body = loop.regions[1].blocks[0]
    end = mlir.return_operation(body)
    carried = [carry for carry in body.arguments if is_sum(owners.of(carry))]
    forms: Forms = {value: None if form != {} else form for value, form in around.items()}
    forms |= {carry: {carry: once(owners, end)} for carry in carried}
    _follow(owners, body, forms, over)
    totals = dict(zip(body.arguments, mlir.operands(end), strict=True))
    by_step = {carry: _form(owners, end, forms, over, totals[carry]) for carry in carried}
    starts = dict(zip(body.arguments, loop.operands, strict=True))
    found = {carry: _over_steps(owners, loop, by_step, carry) for carry in carried}
    return [_with_starts(found.get(carry), starts) for carry in body.arguments]


def _with_starts(form: Sum, starts: dict[Value, Value]) -> Sum:
    """Initial values in place of a loop's carries."""
    if form is None:
        return None
    return added({starts.get(value, value): weights} for value, weights in form.items())


def _over_steps(owners: Owners, loop: Operation, by_step: Forms, carry: Value) -> Sum:
    """A carry after all steps, by what each makes of it, from the last step to the first."""
    ahead: dict[Value, StepNumbers] = {carry: once(owners, loop)}
    last: Sum = None
    for step in reversed(range(_steps(owners, loop, by_step))):
        made = with_terms_in_place(ahead, partial(_at, owners, loop, by_step, step))
        if made is None:
            return None
        brought = {value: weights for value, weights in made.items() if value not in by_step}
        ahead = {value: weights for value, weights in made.items() if value in by_step}
        last = brought if last is None else last
        if not are_alike(brought, last):
            return None
    return None if last is None else last | ahead


def _steps(owners: Owners, loop: Operation, by_step: Forms) -> int:
    """How many steps are looked at: of all of them; where all do the same, one more than there are
    carries, since what n carries make of a constant over n + 1 steps tells what comes before.
    """
    counted = counted_loop(owners, loop)
    enough = len(by_step) + 1
    weights = [w for form in by_step.values() for w in (form or {}).values()]
    if counted is None:
        return enough
    if all(w.shape[-1] == 1 for w in weights):
        return min(enough, counted.trips)
    return counted.trips if counted.trips <= MOST_STEPS else 0


def _at(owners: Owners, loop: Operation, by_step: Forms, step: int, value: Value) -> Sum:
    """What a step makes of a carry, with weights as of outside of the loop."""
    form = by_step[value]
    if form is None or counted_loop(owners, loop) is None:
        return form
    return {v: w.take(min(step, w.shape[-1] - 1), -1) for v, w in form.items()}


def _follow(owners: Owners, block: Block, forms: Forms, over: Operation) -> None:
    """Adds the forms of all sums over the examples, and of what rests on them."""
    for op in mlir.operations(block):
        used = [forms[v] for v in (*op.operands, *mlir.captured(op)) if v in forms]
        if used or any(is_sum(owners.of(result)) for result in op.results):
            found = _made(owners, op, forms, over)
            alone = all(_is_of_the_step(owners, form) for form in used)
            for result, form in zip(op.results, found, strict=True):
                whole = form is None and alone and _is_same_at_each_step(owners, result, over)
                forms[result] = {result: once(owners, op)} if whole else form


def _made(owners: Owners, op: Operation, forms: Forms, over: Operation) -> list[Sum]:
    """The forms of an op's results."""
    used = [forms.get(v, {}) for v in (*op.operands, *mlir.captured(op))]
    if all(form == {} for form in used) and not any(_has_constant(owners, v) for v in op.results):
        return [{} for _ in op.results]
    if op.name == "stablehlo.while":
        inside = partial(_form, owners, op, forms, over)
        return [with_terms_in_place(form, inside) for form in _inner(owners, op, forms, over)]
    if op.name in mlir.CONTROL_FLOW:
        returned = _returned(owners, op, forms, over)
        return [chosen(owners, op, branches) for branches in returned]
    operands = [_form(owners, op, forms, over, v) for v in op.operands]
    return [combined(owners, op, operands) for _ in op.results]


def _inner(owners: Owners, loop: Operation, forms: Forms, over: Operation) -> list[Sum]:
    """The forms of a loop within a step, if it runs as often in each."""
    if counted_loop(owners, loop) is None:
        return [None for _ in loop.results]
    return _loop_forms(owners, loop, forms, over)


def _is_of_the_step(owners: Owners, form: Sum) -> bool:
    """Whether no sum of earlier steps is in a form."""
    return form is not None and not any(
        mlir.defining_operation(value) is None and is_sum(owners.of(value)) for value in form
    )


def _is_same_at_each_step(owners: Owners, value: Value, over: Operation) -> bool:
    """Whether nothing on the way from the constants of a step to a value varies with the step."""
    terms = constant_terms(owners, value)
    return not any(varies(owners.varying, over, v) for t in terms for v in _beside(owners, t))


def _beside(owners: Owners, term: Value) -> list[Value]:
    """What tells what becomes of the constants in a term: what stands beside them; of a constant
    itself; at a site nothing, as it adds to them.
    """
    op = mlir.defining_operation(term)
    if is_shared(owners.of(term)):
        return [term]
    if op is None or not is_sum(owners.of(term)):
        return []
    if op.name == "stablehlo.while":
        return mlir.operands(mlir.return_operation(op.regions[0].blocks[0]))
    if op.name in mlir.CONTROL_FLOW:
        return [op.operands[0]]
    places = constant_places(owners, op)
    is_site = places == frozenset(initial_operands(op))
    return [] if is_site else [v for i, v in enumerate(op.operands) if i not in places]


def _returned(owners: Owners, op: Operation, forms: Forms, over: Operation) -> list[list[Sum]]:
    """What the branches return for each result, as the numbers choose: `if` has its false last."""
    blocks = [region.blocks[0] for region in op.regions]
    for block in blocks:
        _follow(owners, block, forms, over)
    ends = [mlir.return_operation(block) for block in blocks]
    rows = [[_form(owners, end, forms, over, v) for v in end.operands] for end in ends]
    ordered = rows[::-1] if op.name == "stablehlo.if" else rows
    return [list(column) for column in zip(*ordered, strict=True)]


def _form(owners: Owners, user: Operation, forms: Forms, over: Operation, value: Value) -> Sum:
    """The form of an operand; what no example reaches is one term, if it is one constant."""
    if value in forms:
        return forms[value]
    if not _has_constant(owners, value):
        return {}
    return None if varies(owners.varying, over, value) else {value: once(owners, user)}


def _has_constant(owners: Owners, value: Value) -> bool:
    return mlir.is_inexact(value) and holds_constant(owners, value)
