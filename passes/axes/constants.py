"""Constants: data of the batch, and what else no example reaches.

    %m = reduce add %mask      no parameter reaches it: a sum of data
    %r = divide %l, %m         used as no sum could be: %m counts as a constant of the batch

What no parameter reaches is *data*: where examples meet in it, it is a constant of the batch, which
is listed. One number for all may scale the examples; what differs along the batch may meet neither
examples nor parameters; and as a term of a gradient it would be nobody's share.
"""

import math
from collections.abc import Sequence
from typing import Any, cast

from hlo_surgery.passes.axes import reasons
from hlo_surgery.passes.axes.state import (
    LAID_OUT,
    NOWHERE,
    PRODUCT,
    ROWS,
    SHARED,
    Batched,
    Class,
    Classes,
    Mixed,
    Shared,
    State,
)
from hlo_surgery.passes.dataflow.ancestors import is_splat
from hlo_surgery.passes.dataflow.vanishing import is_uniform
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import CALL_HELP, DATA_HELP, Reason, reason_at
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.ir.traits import is_linear
from hlo_surgery.passes.structure.digits import Digit, leaves

BROADCAST = "stablehlo.broadcast_in_dim"


def settled(
    state: State, value: Value, known: Class, trained: bool, steps: Sequence[Digit] = ()
) -> Class:
    """The class that a value keeps: what is mixed, and data, is a constant of the batch; where the
    user takes mixing for constant, what is mixed has rows where there are any. `steps`: digits of a
    loop that hands the value on.
    """
    if not isinstance(known, Mixed):
        return known
    is_moved = known.reason.op in reasons.MOVES
    contributes = state.contribution and not known.unknown and not is_moved
    if trained and not contributes:
        return known
    state.data.setdefault(value, known.reason)
    held = state.places(value)
    if not contributes:
        # It may differ from step to step of any loop around; and what is no single number, reduced
        # over all examples, may be single ones'.
        reduced = _is_one_number(state, value) and reasons.is_reduced(known.reason)
        varies = {*held, *state.scope, *steps, *([] if reduced else [LAID_OUT])}
        return Shared(known.reason, known.reason, frozenset(varies))
    if held and all(len(held.get(d, ())) == 1 or d in state.scope for d in state.batch):
        return ROWS
    return Shared(known.reason, known.reason)


def _is_one_number(state: State, value: Value) -> bool:
    """Whether a reduction of whole dimensions made a value, and one number of them."""
    op = mlir.made_by(value, "stablehlo.reduce")
    if op is None or math.prod(mlir.shape(value)) > 1:
        return False
    digits = leaves(
        d for operand in op.operands for dim in state.structure.of(operand) for d in dim
    )
    return all(d in state.batch for d in digits if d in state.offsets)


def as_constant(state: State, value: Value, known: Batched) -> Shared:
    """A sum over the examples, or what lies along the batch and is nobody's, as a constant."""
    if known.bare:
        return Shared(term=known.term)
    assert known.site is not None
    what = "a sum over the batch" if value in state.trained else "a sum of data over the batch"
    reason = reason_at(known.site, f"{what} is used as a constant")
    state.data.setdefault(value, reason)
    held = state.digits(value)
    steps = frozenset(state.scope) - known.summed
    varies = frozenset(d for d in held if d not in known.summed or not repeats(state, value, d))
    told = frozenset([LAID_OUT] if known.laid_out else [])
    return Shared(reason, reason, varies | steps | told)


def repeats(state: State, value: Value, digit: Digit) -> bool:
    """Whether a value is the same at all places along a digit."""
    return all(is_uniform(value, dim) for dim in state.places(value).get(digit, ()))


def differs(state: State, value: Value) -> bool:
    """Whether a value is not the same at all places along a batch digit that lies in it."""
    return any(not repeats(state, value, digit) for digit in state.digits(value))


def rearranged(op: Operation, data: Reason) -> Reason:
    """Why data of the batch may not meet examples or parameters in an op."""
    if data.why == reasons.APART:
        return data
    if data.op in reasons.MOVES:
        return reasons.meeting(op, reasons.APART, data.help)
    help = CALL_HELP if data.help == CALL_HELP else DATA_HELP
    return reason_at(op, f"{reasons.REARRANGED} ({data.op} at {data.where})", help)


def constants(state: State, op: Operation, classes: Classes) -> Classes:
    """Constants of what is constant; data of the batch stays such, and may differ along it."""
    known = [c for c in classes if isinstance(c, Shared)]
    data = next((c.data for c in known if c.data), None)
    term = next((c.term for c in known if c.term), None)
    if data is None:
        return [Shared(term=term) if term else SHARED] * len(op.results)
    each = [(i, c.varies) for i, c in enumerate(classes) if isinstance(c, Shared)]
    kept = [v if keeps_product(op, i) else v - {PRODUCT} for i, v in each]
    varies = NOWHERE.union(*kept)
    return [
        Shared(data, term, _varying(state, op, result, classes, varies)) for result in op.results
    ]


def keeps_product(op: Operation, position: int) -> bool:
    """Whether what an op makes is still a product where an operand is one."""
    return is_linear(op, {position}) or multiplies(op)


def multiplies(op: Operation) -> bool:
    """Whether an op makes products of its operands, or of elements of one."""
    bodies = [mlir.operations(region.blocks[0]) for region in op.regions]
    within = any(each.name == "stablehlo.multiply" for body in bodies for each in body)
    return within or op.name in ("stablehlo.multiply", "stablehlo.dot_general", "stablehlo.power")


def meets(state: State, value: Value, known: Shared) -> bool:
    """Whether an op that takes data of the batch here meets other data for other examples."""
    return bool(known.varies & {*state.digits(value), *state.scope, LAID_OUT})


def _varying(
    state: State,
    op: Operation,
    result: Value,
    classes: Classes,
    varies: frozenset[Digit],
) -> frozenset[Digit]:
    """Along which batch digits data may differ in a result: as in the operands, and along those
    that are new in it, unless they repeat what is there.
    """
    held, scope = state.digits(result), frozenset(state.scope)
    found = varies & (held | scope | {LAID_OUT, PRODUCT})
    if op.name == BROADCAST:
        return found
    before = state.digits(*op.operands)
    picked = op.name in reasons.PICKING and bool(mlir.shape(op.operands[0]))
    from_data = isinstance(classes[0], Shared) and classes[0].data is not None
    return held | found if picked and from_data else found | (held - before)


def is_nothing(state: State, value: Value) -> bool:
    """Whether a constant is zero, or what a loop starts a sum from that has not been added to."""
    if is_splat(value, 0):
        return True
    block = cast(Any, value.owner)
    loop = None if mlir.defining_operation(value) is not None else block.owner.operation
    if loop is None or loop.name != "stablehlo.while":
        return False
    number = list(block.arguments).index(value)
    returned = mlir.returned(block)[number]
    goes_on = isinstance(state.classes.get(returned), Shared)
    return is_splat(loop.operands[number], 0) and not goes_on
