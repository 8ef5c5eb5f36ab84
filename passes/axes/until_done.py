"""Until done: loops that run until all examples are done, as `vmap` of a `while_loop` makes them.

    while any(p %c) { %n = select (p %c), (update %c), %c ; return %n }       %c: each example's own

An example that is done keeps its carry, so that it does not matter to it for how long the others go
on. That must hold for all that decides whether it is done, or it could start again.
"""

from hlo_surgery.passes.axes.classes import Shared, is_rows
from hlo_surgery.passes.axes.state import State
from hlo_surgery.passes.dataflow.sharding_rules import ATTRIBUTE
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.linearity import combined_by
from hlo_surgery.passes.ir.mlir import Block, Operation, Value
from hlo_surgery.passes.normalise.constraints import unmarked

AND, OR = "stablehlo.and", "stablehlo.or"
Pairs = dict[Value, Value]


def frozen_carries(state: State, loop: Operation) -> set[int]:
    """The carries that each example keeps once it is done; none of another kind of loop."""
    condition, body = (region.blocks[0] for region in loop.regions)
    asked = _going_on(state, condition)
    if asked is None:
        return set()
    pairs: Pairs = dict(zip(condition.arguments, body.arguments, strict=True))
    returned = mlir.operands(mlir.return_operation(body))
    frozen = {
        i
        for i, (new, old) in enumerate(zip(returned, body.arguments, strict=True))
        if new == old or _is_kept(state, new, old, asked, pairs)
    }
    behind = closure([asked], _operands)
    deciding = {i for i, a in enumerate(condition.arguments) if a in behind}
    return frozen if deciding <= frozen else set()


def _going_on(state: State, condition: Block) -> Value | None:
    """What of each example a condition asks, if it asks whether any goes on; all else that it asks,
    as for a cap on the steps, must be nobody's.
    """
    asked = [mlir.operands(mlir.return_operation(condition))[0]]
    for value in asked:
        asked += _both(value)
    others = [v for v in asked if not _both(v)]
    found = [v for v in others if _any_of(state, v) is not None]
    rest = [state.of(v) for v in others if v not in found]
    alone = all(isinstance(c, Shared) and c.data is None for c in rest)
    return _any_of(state, found[0]) if len(found) == 1 and alone else None


def _both(value: Value) -> list[Value]:
    op = mlir.defining_operation(value)
    return mlir.operands(op) if op is not None and op.name == AND else []


def _any_of(state: State, value: Value) -> Value | None:
    """The truths of the examples of which a value is whether any holds."""
    op = mlir.defining_operation(value)
    if op is None or op.name != "stablehlo.reduce" or len(op.results) > 1:
        return None
    truths, initial = op.operands
    is_any = all(combined_by(op, OR)) and is_splat(initial, 0) and not mlir.shape(value)
    return truths if is_any and is_rows(state.of(truths)) and state.digits(truths) else None


def _is_kept(state: State, new: Value, old: Value, asked: Value, pairs: Pairs) -> bool:
    """Whether a body returns its argument again for an example that is done."""
    op = mlir.defining_operation(new)
    if not is_rows(state.of(new)) or op is None:
        return False
    if op.name == AND:
        # A flag that was false stays so; the one that is asked decides itself.
        return old in op.operands and asked in pairs and pairs[asked] == old
    if op.name != "stablehlo.select" or op.operands[2] != old:
        return False
    return _is_same(asked, _unspread(op.operands[0]), pairs)


def _unspread(value: Value) -> Value:
    """A value that another repeats along dimensions of its own."""
    op = mlir.defining_operation(value)
    while op is not None and op.name in ("stablehlo.broadcast_in_dim", "stablehlo.reshape"):
        value = op.operands[0]
        op = mlir.defining_operation(value)
    return value


def _is_same(one: Value, other: Value, pairs: Pairs) -> bool:
    """Whether two values are made alike, of what `pairs` says is the same."""
    pending = [(one, other)]
    seen = set[tuple[Value, Value]]()
    while pending:
        first, second = pending.pop()
        first = pairs.get(first, first)
        if first == second or (first, second) in seen:
            continue
        seen.add((first, second))
        ops = mlir.defining_operation(first), mlir.defining_operation(second)
        if ops[0] is None or ops[1] is None or not _are_alike(ops[0], ops[1]):
            return False
        pending += zip(ops[0].operands, ops[1].operands, strict=True)
    return True


def _are_alike(one: Operation, other: Operation) -> bool:
    """Whether two ops, without bodies of their own, make the same of the same."""
    plain = not len(one.regions) and one.name != "stablehlo.rng" and len(one.results) == 1
    if one.name != other.name or not plain or len(one.operands) != len(other.operands):
        return False
    said = [{k: v for k, v in unmarked(op).items() if k != ATTRIBUTE} for op in (one, other)]
    return said[0] == said[1] and one.results[0].type == other.results[0].type


def _operands(value: Value) -> list[Value]:
    op = mlir.defining_operation(value)
    if op is None:
        return []
    return [*op.operands, *(mlir.captured(op) if len(op.regions) else [])]
