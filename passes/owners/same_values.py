"""Same values: whether two values are made alike from the same.

    %a = tanh %x                ; %b = tanh %y                  same if %x and %y are
    %a = tanh (broadcast %t)    ; %b = broadcast (tanh %t)      the same
    %a = slice %u [0:1]         ; %b = slice %u [1:2]           the same, if %u repeats one number

What stands for an argument, as what a loop enters with or returns, is looked at in its place.
"""

from collections.abc import Callable
from typing import Any, cast

from hlo_surgery.passes.dataflow import sharding_rules
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.all_hold import all_hold
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.ir.traits import Kind, ops_of
from hlo_surgery.passes.normalise.constraints import unmarked

ELEMENTWISE = ops_of(Kind.ELEMENTWISE)
# Where what goes in is one number, again and again, so is what comes out.
REARRANGED = frozenset(
    f"stablehlo.{name}" for name in ("broadcast_in_dim", "reshape", "slice", "transpose")
)
# Each of these draws numbers of its own.
DRAWING = frozenset(["stablehlo.rng"])
Dims = tuple[int, ...]
# Every element [i, j, ..] of one value is that of the other at the indices of these dimensions.
Claim = tuple[Value, Value, Dims]


def are_same(
    one: Value,
    other: Value,
    arguments: dict[Value, Value],
    seen: Callable[[Value], Value | None] = lambda value: value,
) -> bool:
    """Whether two values of one shape are the same. `arguments`: what stands for arguments from
    which the first is made; `seen`: what is known to be equal to a value, None where that is not
    to be looked at.
    """
    known = dict(arguments)
    start = one, other, _all(one)
    return one.type == other.type and all_hold(start, lambda c: _rests_on(*c, known, seen), {})


def _rests_on(
    one: Value,
    other: Value,
    dims: Dims,
    known: dict[Value, Value],
    seen: Callable[[Value], Value | None],
) -> list[Claim] | None:
    """The claims that must hold for this one to; None where it does not."""
    one = known.get(one, one)
    if one == other and _is_all(dims, one):
        return []
    first, second = seen(one), seen(other)
    if first is None or second is None:
        return None
    if (first, second) != (one, other):
        return [(first, second, dims)]
    numbers = _number_in(first), _number_in(second)
    if numbers[0] is not None and numbers[1] is not None and numbers != (first, second):
        return [(numbers[0], numbers[1], ())]
    return _broadcast(first, second, dims) or _of_ops(first, second, dims, known)


def _number_in(value: Value) -> Value | None:
    """The number of which all elements of a value are copies, if its moves show that."""
    op = mlir.defining_operation(value)
    while mlir.shape(value) and op is not None and op.name in REARRANGED:
        value = op.operands[0]
        op = mlir.defining_operation(value)
    return None if mlir.shape(value) else value


def _is_all(dims: Dims, value: Value) -> bool:
    return dims == _all(value)


def _all(value: Value) -> Dims:
    return tuple(range(len(mlir.shape(value))))


def _broadcast(one: Value, other: Value, dims: Dims) -> list[Claim] | None:
    """The claim of what one of the two repeats along dimensions, if one does."""
    spread = _spread(other)
    if spread is not None:
        return [(one, spread[0], tuple(dims[d] for d in spread[1]))]
    spread = _spread(one)
    if spread is not None and set(dims) <= set(spread[1]):
        return [(spread[0], other, tuple(spread[1].index(d) for d in dims))]
    return None


def _spread(value: Value) -> tuple[Value, Dims] | None:
    """What a value repeats along dimensions that are new, and where its own are."""
    op = mlir.defining_operation(value)
    if op is None or op.name != "stablehlo.broadcast_in_dim":
        return None
    dims = tuple(cast(Any, op.attributes["broadcast_dimensions"]))
    sizes = tuple(mlir.shape(value)[d] for d in dims)
    return (op.operands[0], dims) if sizes == mlir.shape(op.operands[0]) else None


def _of_ops(one: Value, other: Value, dims: Dims, known: dict[Value, Value]) -> list[Claim] | None:
    first, second = mlir.defining_operation(one), mlir.defining_operation(other)
    if first is None or second is None or not is_same_kind(first, second):
        return None
    if mlir.results(first).index(one) != mlir.results(second).index(other):
        return None
    pairs = list(zip(first.operands, second.operands, strict=True))
    if one.type != other.type or not _is_all(dims, one):
        return _of_elements(first, second, dims, pairs)
    for region, twin in zip(first.regions, second.regions, strict=True):
        block, copy = region.blocks[0], twin.blocks[0]
        returned = [mlir.operands(mlir.return_operation(b)) for b in (block, copy)]
        if len(block.arguments) != len(copy.arguments) or len(returned[0]) != len(returned[1]):
            return None
        known.update(zip(block.arguments, copy.arguments, strict=True))
        pairs += zip(*returned, strict=True)
    alike = all(x.type == y.type for x, y in pairs)
    return [(x, y, _all(x)) for x, y in pairs] if alike else None


def _of_elements(
    first: Operation, second: Operation, dims: Dims, pairs: list[tuple[Value, Value]]
) -> list[Claim] | None:
    """The claims for what two ops make element by element of values of different shapes."""
    kinds = {mlir.element_type(op.results[0]) for op in (first, second)}
    shapes = {mlir.shape(v) for op in (first, second) for v in (*op.operands, *op.results)}
    sizes = {mlir.shape(first.results[0]), mlir.shape(second.results[0])}
    if first.name not in ELEMENTWISE or len(kinds) > 1 or shapes != sizes:
        return None
    return [(x, y, dims) for x, y in pairs]


def is_same_kind(first: Operation, second: Operation) -> bool:
    """Whether two ops make the same of the same, but for what their regions do."""
    counts = [(op.name, len(op.operands), len(op.regions)) for op in (first, second)]
    repeats = first.name not in DRAWING and counts[0] == counts[1]
    return repeats and _said(first) == _said(second)


def _said(op: Operation) -> dict[str, object]:
    """An op's attributes, other than what follows from its shapes."""
    return {k: v for k, v in unmarked(op).items() if k != sharding_rules.ATTRIBUTE}
