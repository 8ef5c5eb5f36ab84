"""Uniform: whether a value is the same for every example along an axis, as far as its making shows.

broadcast_in_dim %m : [D] -> [B, D]       along the first dimension      =>  uniform
add %u, %v                                both uniform along it          =>  uniform
slice %u                                  all of it uniform along it     =>  uniform
"""

from collections.abc import Sequence
from typing import Any, cast

from hlo_surgery.passes.dataflow import sharding_rules
from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.dataflow.linked import behind_barriers
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.all_hold import all_hold
from hlo_surgery.passes.ir.constants import elements
from hlo_surgery.passes.ir.mlir import Operation, Value

# A value, an axis of it, and the number of places along that.
Along = tuple[Value, PerExample, int]
Known = dict[Along, bool]


def is_uniform(value: Value, along: PerExample, size: int, known: Known | None = None) -> bool:
    """Whether each of the `size` places along an axis holds the same; False where not shown.

    `known`: answers of the same module as it is now, for who asks of many of its values.
    """
    return all_hold(
        (value, along, size), lambda claim: _uniform_if(*claim), {} if known is None else known
    )


def _uniform_if(value: Value, along: PerExample, size: int) -> Sequence[Along] | None:
    """What must be uniform for a value to be so; None where it is not, or does not show it."""
    bare = behind_barriers(value)
    if bare != value:
        return [(bare, along, size)]
    op = mlir.defining_operation(value)
    if op is None:
        return None
    if op.name == "stablehlo.constant":
        return [] if _is_uniform_constant(op, along, size) else None
    if op.name == "stablehlo.broadcast_in_dim":
        return _uniform_broadcast_if(op, along, size)
    if op.name == "stablehlo.slice" and mlir.shape(op.operands[0]) != mlir.shape(value):
        length = mlir.shape(op.operands[0])[along.dim]
        return [(op.operands[0], PerExample(along.dim), length)]
    found = sources(op, along, size) or []
    pairs = [(v, axis, size) for v, axis in found if axis]
    return None if _lands_somewhere(op, found) else pairs or None


def _lands_somewhere(op: Operation, found: Sequence[tuple[Value, PerExample | None]]) -> bool:
    """Whether an update without the axis is put at some of its places, the others kept."""
    update = {"stablehlo.dynamic_update_slice": 1, "stablehlo.scatter": len(found) - 1}.get(op.name)
    return bool(found) and update is not None and found[update][1] is None


def _is_uniform_constant(op: Operation, along: PerExample, size: int) -> bool:
    numbers = elements(op)
    if not numbers.size:
        return True
    parted = numbers.reshape(*numbers.shape[: along.dim], along.before, size, -1)
    return bool((parted == parted[..., :1, :]).all())


def _uniform_broadcast_if(op: Operation, along: PerExample, size: int) -> Sequence[Along]:
    targets = list(cast(Any, op.attributes["broadcast_dimensions"]))
    source = targets.index(along.dim) if along.dim in targets else None
    if source is None or mlir.shape(op.operands[0])[source] == 1:
        return []
    return [(op.operands[0], PerExample(source, along.before, along.after), size)]


def sources(
    op: Operation, along: PerExample, size: int
) -> list[tuple[Value, PerExample | None]] | None:
    """An op's operands, each with its axis that runs along with this one of the first result.

    An operand without such an axis is paired with None. None where the op does not tell.
    """
    if op.name == "stablehlo.reshape":
        axis = sharding_rules.reshaped_axis(op.results[0], op.operands[0], along, size)
        return [(op.operands[0], axis)] if axis else None
    rule = sharding_rules.rule_of(op)
    factor = rule and sharding_rules.find_factor(rule, rule.results[0], op.results[0], along, size)
    if rule is None or not factor or factor.factor in rule.blocked:
        return None
    axes = [
        sharding_rules.find_axis(rule, f, v, factor)
        for f, v in zip(rule.operands, op.operands, strict=True)
    ]
    return list(zip(op.operands, axes, strict=True))
