"""Classify: a block, op by op: what each result is to the examples.

Where examples meet in an op, it is asked again with what is nobody's as constants, and with sums of
data as constants of the batch (`constants.py`); if they meet all the same, its results are Mixed.

Analysis: given a flat `main` and the examples' axes, what every value is to the examples.

structured      which dimensions hold the same digits, by unification
classified      Shared, Batched or Mixed, in one forward pass
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from hlo_surgery.passes.axes import control_flow, reasons
from hlo_surgery.passes.axes.constants import (
    BROADCAST,
    as_constant,
    constants,
    differs,
    meets,
    multiplies,
    rearranged,
    repeats,
    settled,
)
from hlo_surgery.passes.axes.meeting import met
from hlo_surgery.passes.axes.reasons import ROW_OF_EACH
from hlo_surgery.passes.axes.state import (
    PRODUCT,
    ROWS,
    SHARED,
    Batched,
    Class,
    Classes,
    Mixed,
    Shared,
    State,
    is_free,
    is_rows,
    is_sum,
)
from hlo_surgery.passes.dataflow.ancestors import held_values, hidden_parameters, holds_constant
from hlo_surgery.passes.ir import mlir, traits
from hlo_surgery.passes.ir.errors import Reason, reason_at
from hlo_surgery.passes.ir.mlir import Block, Operation, Value, Values, func
from hlo_surgery.passes.ir.traits import integers
from hlo_surgery.passes.structure.digits import leaves, unify
from hlo_surgery.passes.structure.structure import Taking
from hlo_surgery.passes.structure.unification import Ragged, structured


def classify_block(state: State, block: Block) -> None:
    """Classify what a block's ops make, in order; its arguments have classes already."""
    for taking in state.structure.ops[block]:
        if taking.name == "stablehlo.while":
            control_flow.classify_loop(state, taking.op, classify_block)
        elif taking.name in mlir.CONTROL_FLOW:
            control_flow.classify_branches(state, taking.op, classify_block)
        elif taking.name == mlir.BARRIER:
            _classify_barrier(state, taking.op)
        elif taking.results:
            _classify_op(state, taking)


def _classify_barrier(state: State, op: Operation) -> None:
    """Each operand as it is; what a mark of constants holds is one, if it is no example's."""
    marks = holds_constant(op)
    for value, result in zip(op.operands, op.results, strict=True):
        known = state.of(value)
        if not (isinstance(known, Mixed) or state.lie_alike(value, result)):
            known = Mixed(reasons.meeting(op, reasons.APART))
        if not marks and value in state.trained:
            state.trained.add(result)
        if marks and state.structure.ragged is not None and not isinstance(known, Shared):
            # Routing that rests on all rows: it is known to all, as indices that are given are.
            what = reason_at(op, "what the examples make is marked as a constant")
            known = Shared(term=state.data.setdefault(result, what))
        elif marks and isinstance(known, Batched) and known.summed:
            known = as_constant(state, value, known)
        state.classes[result] = settled(state, result, known, result in state.trained)


def _classify_op(state: State, taking: Taking) -> None:
    op, _, operands, results = taking
    captured = mlir.captured(op)
    if not state.trained.isdisjoint([*operands, *captured]):
        state.trained.update(results)
    if state.held:
        state.trained -= state.held.intersection(results)
    state.taken.pop(results[0], None)
    classes = [state.of(v) for v in operands]
    if not captured and all(c is SHARED for c in classes) and not state.digits(*operands):
        # So is half of a module: no example, nor anything that lies along the batch.
        found: Classes = [SHARED] * len(results)
    else:
        found = _made(state, op, classes, captured)
    if state.contribution and _lies_along(state, operands, classes):
        found = [_whose_is_unknown(known) for known in found]
    for result, known in zip(results, found, strict=True):
        state.classes[result] = settled(state, result, known, result in state.trained)


def _lies_along(state: State, operands: Values, classes: Classes) -> bool:
    """Whether some of these are parameters, or made of such alone, that differ along the batch."""
    pairs = zip(operands, classes, strict=True)
    return any(is_free(c) and v in state.trained and differs(state, v) for v, c in pairs)


def _whose_is_unknown(known: Class) -> Class:
    """What is mixed beside a parameter along the batch: a row of its gradient is no example's."""
    if isinstance(known, Shared) and known.data is not None:
        return Mixed(known.data, unknown=True)
    return replace(known, unknown=True) if isinstance(known, Mixed) else known


def _made(state: State, op: Operation, classes: Classes, captured: Values) -> Classes:
    inside = [state.of(v) for v in captured]
    count = len(op.results)
    if mixed := next((c for c in (*classes, *inside) if isinstance(c, Mixed)), None):
        return [mixed] * count
    if not all(map(is_free, inside)):
        return [Mixed(reasons.unknown(op), unknown=True)] * count
    if all(0 in mlir.shape(result) for result in op.results):
        return [SHARED] * count
    if reasons.is_first_devices(op) and any(isinstance(c, Batched) and c.at for c in classes):
        return [Mixed(reasons.meeting(op, reasons.APART))] * count
    if _is_of_data(classes):
        classes = _bare_as_constants(state, op, classes)
    if not _has(Batched, classes):
        return _of_constants(state, op, classes)
    if _scales_a_product(state, op, classes):
        classes = _sums_as_constants(state, op, classes)
        return [_as_product(c) for c in constants(state, op, classes)]
    if state.scope and any(isinstance(c, Batched) and not (c.summed or c.bare) for c in classes):
        # Beside a step's own examples a sum of data that is over is a constant, and no term.
        given = _sums_as_constants(state, op, classes)
        if given != classes:
            classes = state.taken[op.results[0]] = given
    if state.contribution and op.name == BROADCAST and _may_be_laid_out(state, op):
        return constants(state, op, _sums_as_constants(state, op, classes))
    found = _of_examples(state, op, classes)
    return _otherwise(state, op, classes, found) if _has(Mixed, found) else found


def _may_be_laid_out(state: State, op: Operation) -> bool:
    """Whether a broadcast gives a sum rows, as many as a multiple of the examples: as a cotangent
    it would be the same for each.
    """
    size = math.prod(digit.size for digit in state.batch)
    kept = integers(op, "broadcast_dimensions")
    added = [n for dim, n in enumerate(mlir.shape(op.result)) if dim not in kept]
    return is_sum(state.of(op.operands[0])) and any(n > 1 and n % size == 0 for n in added)


def _scales_a_product(state: State, op: Operation, classes: Classes) -> bool:
    """Whether an op multiplies sums of data by a product of such: as well it might be one of those
    that is the sum.
    """
    products = [i for i, c in enumerate(classes) if isinstance(c, Shared) and PRODUCT in c.varies]
    sums = [i for i, c in enumerate(classes) if isinstance(c, Batched)]
    given = all(is_sum(classes[i]) and op.operands[i] not in state.trained for i in sums)
    alone = any(traits.is_linear(op, {i}) for i in products)
    return given and alone and not traits.is_linear(op, [*sums, *products])


def _is_of_data(classes: Classes) -> bool:
    """Whether data of the batch is there, and no example but what merely lies along the batch."""
    has_data = any(isinstance(c, Shared) and c.data for c in classes)
    return has_data and all(not isinstance(c, Batched) or c.bare for c in classes)


def _has(kind: type[Class], classes: Classes) -> bool:
    return any(isinstance(c, kind) for c in classes)


def _otherwise(state: State, op: Operation, classes: Classes, found: Classes) -> Classes:
    """Where examples meet: with what is nobody's as constants; then with sums of data as such."""
    readings = (_bare_as_constants, _sums_as_constants, _sums_as_constants)
    for reading in readings:
        before, classes = classes, reading(state, op, classes)
        if classes == before:
            continue
        if _has(Batched, classes):
            again = _of_examples(state, op, classes)
        else:
            again = constants(state, op, classes)
        if not _has(Mixed, again):
            state.taken[op.results[0]] = list(classes)
            is_product = reading is _sums_as_constants and multiplies(op)
            return [_as_product(c) if is_product else c for c in again]
        found = again if reading is _sums_as_constants else found
    return found


def _as_product(known: Class) -> Class:
    """What sums that are multiplied make: a constant of which none is more the constant."""
    if not isinstance(known, Shared) or not known.data:
        return known
    return replace(known, varies=known.varies | {PRODUCT})


def _bare_as_constants(state: State, op: Operation, classes: Classes) -> Classes:
    pairs = zip(op.operands, classes, strict=True)
    alone = all(not isinstance(c, Batched) or c.bare for c in classes)
    return [
        _bare_constant(state, op, v, c, alone) if isinstance(c, Batched) and c.bare else c
        for v, c in pairs
    ]


def _bare_constant(
    state: State, op: Operation, value: Value, known: Batched, alone: bool
) -> Shared:
    """Of parameters by rows, what mixes them is nobody's share as a term; nor is what steps hand
    on.
    """
    trained = alone and value in state.trained
    term = reason_at(op, reasons.ROW_OF_EACH) if trained or known.running else None
    steps = frozenset(state.scope) - state.digits(value)
    return Shared(term=known.term or term, varies=steps)


def _sums_as_constants(state: State, op: Operation, classes: Classes) -> Classes:
    """Sums of data, or in contributions any, that are over; first those in which the op is linear
    in no way, as a divisor.
    """
    over = {
        i: known
        for i, (value, known) in enumerate(zip(op.operands, classes, strict=True))
        if isinstance(known, Batched) and known.summed and not known.running
        if value not in state.trained or state.contribution
    }
    never = {i: c for i, c in over.items() if not traits.is_linear(op, {i})}
    found = list(classes)
    for i, known in (never or over).items():
        found[i] = as_constant(state, op.operands[i], known)
    return found


def _of_examples(state: State, op: Operation, classes: Classes) -> Classes:
    """What an op makes of examples' own values, beside constants; Mixed where data of the batch
    meets them rearranged.
    """
    data = [(i, c, c.data) for i, c in enumerate(classes) if isinstance(c, Shared) and c.data]
    if data and not state.contribution:
        chosen = _chooses_places(state, op, classes)
        for i, known, reason in data:
            if chosen or meets(state, op.operands[i], known):
                return [Mixed(rearranged(op, reason))] * len(op.results)
    return met(state, op, classes)


def _chooses_places(state: State, op: Operation, classes: Classes) -> bool:
    """Whether an op puts data of the batch, beside examples, at the places of some of them: where
    no example says so itself.
    """
    if op.name in ("stablehlo.scatter", "stablehlo.dynamic_update_slice"):
        return True
    chooser = classes[0]
    given = isinstance(chooser, Shared) or (isinstance(chooser, Batched) and chooser.bare)
    if op.name != "stablehlo.select" or not given:
        return False
    predicate = op.operands[0]
    assert not isinstance(chooser, Mixed)
    stepwise = isinstance(chooser, Batched) or bool(chooser.varies)
    return stepwise or differs(state, predicate)


def _of_constants(state: State, op: Operation, classes: Classes) -> Classes:
    """What an op makes of what no example reaches. What lies along the batch, and is summed or
    taken step by step, is summed by examples: row b is example b's.
    """
    trained = not state.trained.isdisjoint(op.results)
    for value, known in zip(op.operands, classes, strict=True):
        data = known.data if isinstance(known, Shared) and not state.contribution else None
        if trained and data and isinstance(known, Shared) and meets(state, value, known):
            return [Mixed(rearranged(op, data))] * len(op.results)
    rows = [_as_rows(state, op, i, known) for i, known in enumerate(classes)]
    if _has(Batched, rows):
        found = _of_examples(state, op, rows)
        if not _has(Mixed, found):
            state.taken[op.results[0]] = rows
            return found
    if _loses_rows(state, op):
        why = reason_at(op, reasons.ROW_OF_EACH)
        classes = [replace(c, term=c.term or why) if isinstance(c, Shared) else c for c in classes]
    return constants(state, op, classes)


def _loses_rows(state: State, op: Operation) -> bool:
    """Whether an op makes one value of what differs from example to example, or takes some
    example's, even if all are alike: as a cotangent it is that example's.
    """
    kept = state.digits(*op.results)
    lost = [(v, d) for v in op.operands for d in state.digits(v) - kept if mlir.is_inexact(v)]
    taken = op.name in reasons.PICKING and any(d not in state.scope for _, d in lost)
    return taken or any(not repeats(state, v, d) for v, d in lost)


def _as_rows(state: State, op: Operation, number: int, known: Class) -> Class:
    """A constant as rows of the batch, where the op sums these or takes one of them."""
    value = op.operands[number]
    own = state.digits(value)
    if not own or not isinstance(known, Shared) or known.data:
        return known
    kept = state.digits(*op.results)
    if own <= kept or not all(d in own or d in state.scope for d in state.batch):
        return known
    return Batched(term=known.term, bare=True)


def find_axes(
    function: func.FuncOp,
    batch: Mapping[int, int],
    size: int,
    gradients: Collection[int],
    contribution: bool = False,
    ragged: Ragged | None = None,
) -> State:
    """Classify every value of a flat function. `batch`: axis of the examples by argument number;
    `size`: B; `gradients`: the outputs that are; `contribution`: take all that is mixed as
    constant; `ragged`: the axes of arguments along which ids tell whose each row is.

    The function's ops carry Shardy's rules already.
    """
    block = mlir.body(function)
    structure, digits = structured(block, batch, size, ragged)
    given = {*batch, *(ragged or {})}
    while True:
        state = _classified(State(structure, leaves(digits), contribution), block, given, gradients)
        new = [pair for pair in state.wanted if leaves([pair[0]]) != leaves(pair[1])]
        if not all(unify([digit], dim) for digit, dim in new) or not new:
            return state


def _classified(
    state: State, block: Block, batch: Collection[int], gradients: Collection[int]
) -> State:
    ops = [taking.op for own in state.structure.ops.values() for taking in own]
    state.held = held_values(block, ops)
    trained = {a for i, a in enumerate(block.arguments) if i not in batch and mlir.is_inexact(a)}
    _classify(state, block, batch, trained | hidden_parameters(block, ops, batch, gradients))
    outputs = mlir.returned(block)
    if any(is_rows(state.of(outputs[n])) and state.digits(outputs[n]) for n in gradients):
        # It is no parameter's gradient then, and what it was taken with respect to is no data.
        reached = {a for a in block.arguments if mlir.is_inexact(a)}
        _classify(state, block, batch, state.trained | reached)
    return state


def _classify(state: State, block: Block, batch: Collection[int], trained: set[Value]) -> None:
    state.classes.clear()
    state.taken.clear()
    state.data.clear()
    state.trained = trained
    for number, argument in enumerate(block.arguments):
        if number in batch:
            state.classes[argument] = ROWS
        elif argument in trained and state.digits(argument):
            term = Reason(ROW_OF_EACH, "func.func", "module")
            state.classes[argument] = Shared(term=term)
    classify_block(state, block)
