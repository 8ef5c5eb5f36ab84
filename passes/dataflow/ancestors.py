"""Ancestors: given values, all values that they are made of, inside loops and branches as well.

%m = reduce %x ; %y = tanh %x ; %g = dot_general %y, %x       behind %g: %g, %y, %x, and not %m

Copies: what a value holds at other places, and whether it is one number everywhere.

Linked values: those that a loop, branch or barrier passes on as one state.

%r = while (%c = %initial) { ... return %next }       %initial, %c, %next, %r are one state

Reached: which arguments of a block act on each of its values: op by op, operands on results.

Held constants: what `hs.constant` marked, as a barrier with a word of it.

    composite "hlo_surgery.constant" %x    =>    optimization_barrier %x {held_constant}

All passes know a barrier, and the analysis asks whether it holds a constant. When all is done, its
operand is used in place of it.

Held: values that reach what is returned only through marks of constants, so that they are data.

%m = reduce add %s ; %d = subtract %s, %m ; %c = optimization_barrier %d {held_constant}
    =>   %m, %d and %c are held; %s is not where it is used elsewhere too

Hidden parameters: those that are no argument of floats, where a gradient has no such argument.

    jax.jit(lambda x: jax.grad(loss)(W, x))      =>  W is a constant of the module
    loss(q / 64, x), loss(normal(key), x)        =>  integers, or drawn numbers

So whatever may hold them counts as a parameter: what parameters do not reach is data, of which
more is taken as a constant.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from functools import reduce
from operator import or_
from typing import Any, cast

from hlo_surgery.passes.dataflow.kernels import ATTRIBUTE
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import elements, is_table
from hlo_surgery.passes.ir.mlir import (
    BARRIER,
    Block,
    Module,
    Operation,
    Operations,
    Shape,
    Value,
    Values,
    closure,
    ir,
)
from hlo_surgery.passes.ir.modules import COMPOSITE, unmarked
from hlo_surgery.passes.ir.traits import Kind, initial_operands, ops_of

# Ops that pass on what they are given, as states.
PASSING = mlir.CONTROL_FLOW | {BARRIER}


def ties(value: Value) -> Values:
    """For what a loop, branch or barrier results in, or a loop carries: all of the same state."""
    op = mlir.defining_operation(value)
    if op is not None:
        return _ties(op, mlir.results(op).index(value)) if op.name in PASSING else []
    owner: Any = value.owner
    loop = owner.owner.operation
    return _ties(loop, list(owner.arguments).index(value)) if loop.name == "stablehlo.while" else []


def _ties(op: Operation, number: int) -> Values:
    if op.name == BARRIER:
        return [op.operands[number], op.results[number]]
    returned = [mlir.returned(block) for block in mlir.blocks(op)]
    if op.name == "stablehlo.while":
        body = mlir.blocks(op)[1]
        return [
            op.operands[number],
            op.results[number],
            body.arguments[number],
            returned[1][number],
        ]
    return [op.results[number], *(values[number] for values in returned)]


def behind_barriers(value: Value) -> Value:
    """The value itself, behind optimization barriers, which pass on each operand as it is."""
    while op := mlir.made_by(value, BARRIER):
        value = op.operands[mlir.results(op).index(value)]
    return value


COPIES = ops_of(Kind.COPIES)


def copied_from(value: Value) -> Value:
    """What a value copies, at other places or in another element type; itself if nothing."""
    while op := mlir.made_by(value, *COPIES):
        value = op.operands[0]
    return value


def is_splat(value: Value, number: float) -> bool:
    """Whether all elements are this number, as far as constants and their copies show."""
    op = mlir.made_by(copied_from(value), "stablehlo.constant")
    if op is None:
        return False
    if mlir.is_complex(op.result):
        return bool((elements(op) == number).all())
    attribute = cast(Any, op.attributes["value"])
    return bool(attribute.is_splat) and attribute.get_splat_value().value == number


def sums_from_zero(op: Operation) -> bool:
    """Whether an op has one result, and what it sums lies on top of zeros alone."""
    zeros = all(is_splat(op.operands[i], 0) for i in initial_operands(op))
    return zeros and len(op.results) == 1


def unspread(value: Value) -> Value:
    """A value that another repeats along dimensions of its own."""
    while op := mlir.made_by(value, "stablehlo.broadcast_in_dim", "stablehlo.reshape"):
        value = op.operands[0]
    return value


def made_alike(one: Value, other: Value, pairs: Mapping[Value, Value]) -> bool:
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


def ancestors(values: Values) -> set[Value]:
    """The values themselves and all behind them; of a loop or branch, all that it computes from."""
    return closure(values, behind)


def behind(value: Value) -> Values:
    """What a value is made of, one step back."""
    op = mlir.defining_operation(value)
    if op is None:
        return ties(value)
    if op.name not in mlir.CONTROL_FLOW:
        return mlir.taken(op)
    returned = (mlir.returned(block) for block in mlir.blocks(op))
    return [*op.operands, *(v for values in returned for v in values)]


def sources(block: Block) -> dict[Value, int]:
    """For each value a number whose bit i says whether it rests on argument i, or may."""
    found: dict[Value, int] = {argument: 1 << i for i, argument in enumerate(block.arguments)}
    for op in mlir.operations(block):
        used = reduce(or_, (found.get(v, 0) for v in mlir.taken(op)), 0)
        found.update(dict.fromkeys(mlir.results(op), used))
    return found


CONSTANT = "hlo_surgery.constant"
HELD = "held_constant"


def hold_constants(module: Module) -> None:
    """Put a barrier in place of every mark."""
    for op in mlir.all_operations(module):
        if op.name == COMPOSITE and mlir.text_attribute(op, "name") == CONSTANT:
            mlir.rename(op, mlir.BARRIER, {HELD: ir.UnitAttr.get(mlir.context())})


def release_constants(module: Module) -> None:
    """Use what is marked itself."""
    for op in mlir.all_operations(module):
        if holds_constant(op):
            mlir.replace(op, mlir.operands(op))


def holds_constant(op: Operation) -> bool:
    """Whether the op marks what is to count as a constant of the batch."""
    return op.name == mlir.BARRIER and HELD in op.attributes


def held_values(block: Block, ops: Operations) -> set[Value]:
    """The results of marks, and what these are made of and what is returned is not, unless through
    marks. `ops`: all of the block.
    """
    marked = [result for op in ops if holds_constant(op) for result in op.results]
    returned = mlir.returned(block) if marked else []
    return ancestors(marked) - past_marks(returned)


def past_marks(values: Values) -> set[Value]:
    """The values and all that they are made of otherwise than through a mark of a constant."""
    found = closure(values, lambda value: [] if _is_mark(value) else behind(value))
    return {value for value in found if not _is_mark(value)}


def _is_mark(value: Value) -> bool:
    op = mlir.defining_operation(value)
    return op is not None and holds_constant(op)


# Tables, counted and drawn numbers, of which arrays of parameters may be made.
MADE_FROM = frozenset(["stablehlo.iota", "stablehlo.rng", "stablehlo.rng_bit_generator"])


def hidden_parameters(
    block: Block, ops: Operations, batch: Collection[int], gradients: Collection[int]
) -> set[Value]:
    """What may be parameters, or what these are made of, beside arguments of floats. Where each
    gradient has an argument of its shape, that is matrices of constants of such a shape alone. A
    gradient of zeros needs none: what is not used may have been left out. `ops`: all of the block.
    """
    outputs = mlir.returned(block)
    own = [outputs[number] for number in gradients]
    asked = Counter(map(mlir.shape, own))
    used = {mlir.shape(v) for v in own if not is_splat(v, 0)}
    missing = used.intersection(asked - Counter(_shapes_of_floats(block.arguments, batch)))
    others = [v for i, v in enumerate(block.arguments) if i not in batch]
    found = set[Value](others if missing else ())
    matrices = {shape for shape in asked if len(shape) > 1}
    for op in ops:
        alike = is_table(op) and mlir.shape(op.result) in matrices
        if alike or (missing and len(op.results) and _may_hold(op, missing)):
            found.update(op.results)
    return found


def _shapes_of_floats(arguments: Values, batch: Collection[int]) -> list[Shape]:
    own = (v for i, v in enumerate(arguments) if i not in batch)
    return [mlir.shape(v) for v in own if mlir.is_inexact(v)]


def _may_hold(op: Operation, missing: set[Shape]) -> bool:
    if op.name in MADE_FROM or is_table(op):
        return True
    # An array of one number, as parameters may begin.
    filled = op.name == "stablehlo.broadcast_in_dim" and not mlir.shape(op.operands[0])
    is_one = filled or op.name == "stablehlo.constant"
    return is_one and mlir.shape(op.result) in missing
