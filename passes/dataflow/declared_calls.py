"""Declared calls: the axes along which a custom call takes examples one by one, as its user says.

    custom_call @kernel(%q : 4x8, %w : 8) : 4x8 {hlo_surgery.example_axes = [[0, -1, 0]]}
        =>   ([b, _], [_]) -> ([b, _])

Each list is one factor: its axis in every operand and result, -1 where it has none. What is said is
not proved: rule 27 of soundness.md says what is trusted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from hlo_surgery.passes.dataflow.sharding_rules import Axes, Rule, rule_along
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, ir
from hlo_surgery.passes.ir.source_lines import source_line

ATTRIBUTE = "hlo_surgery.example_axes"
CUSTOM_CALL = "stablehlo.custom_call"
NONE = -1


@dataclass(frozen=True)
class Trusted:
    """A call that was declared: its name, its source line, and its axes as text."""

    call: str
    where: str
    axes: str

    def __str__(self) -> str:
        return f"taken on trust: {self.call} at {self.where}: one by one along {self.axes}"


def call_names(op: Operation) -> list[str]:
    """What a custom call goes by: its target, and the name of the kernel that it launches."""
    names = [mlir.text_attribute(op, name) for name in ("call_target_name", "kernel_name")]
    config = mlir.attributes(op).get("mhlo.backend_config")
    if isinstance(config, ir.DictAttr) and "name" in config:
        names.append(str(cast(Any, config["name"]).value))
    return [name for name in names if name]


def declare(op: Operation, factors: Sequence[Axes]) -> None:
    """Note the axes at the op, counted from the front. Raises ValueError where they do not fit."""
    known = [_fitting(op, axes) for axes in factors]
    with mlir.context():
        i64 = ir.IntegerType.get_signless(64)
        rows = [[ir.IntegerAttr.get(i64, NONE if a is None else a) for a in own] for own in known]
        op.attributes[ATTRIBUTE] = ir.ArrayAttr.get([ir.ArrayAttr.get(row) for row in rows])


def _fitting(op: Operation, axes: Axes) -> Axes:
    """The axes from the front, where each exists and all have one size."""
    values = [*op.operands, *op.results]
    shapes = [mlir.shape(v) for v in values]
    name, where = call_names(op)[0], source_line(op)
    if len(axes) != len(shapes):
        raise ValueError(
            f"{len(axes)} axes are declared for {name} at {where}, which has {len(op.operands)} "
            f"operands and {len(op.results)} results; pass one for each, or None"
        )
    for axis, shape in zip(axes, shapes, strict=True):
        if axis is not None and not -len(shape) <= axis < len(shape):
            raise ValueError(
                f"axis {axis} is declared for {name} at {where}, of an array of shape {shape}"
            )
    sizes = {s[a] for a, s in zip(axes, shapes, strict=True) if a is not None}
    if len(sizes) > 1:
        raise ValueError(
            f"the axes declared for {name} at {where} have different sizes: "
            f"{', '.join(map(str, sorted(sizes)))}; all are the axis of the examples"
        )
    return tuple(None if a is None else a % len(s) for a, s in zip(axes, shapes, strict=True))


def declared_axes(op: Operation) -> list[Axes] | None:
    """The axes that were declared of an op, a tuple for each factor; None where none were."""
    if op.name != CUSTOM_CALL or ATTRIBUTE not in op.attributes:
        return None
    rows = cast(Any, op.attributes[ATTRIBUTE])
    return [tuple(None if a.value == NONE else a.value for a in row) for row in rows]


def trusted(op: Operation) -> Trusted | None:
    """What was declared of an op, to be said to its user; None where nothing was."""
    factors = [axes for axes in declared_axes(op) or [] if any(a is not None for a in axes)]
    if not factors:
        return None
    count = len(op.operands)
    texts = [f"{_text(axes[:count])} -> {_text(axes[count:])}" for axes in factors]
    return Trusted(call_names(op)[-1], source_line(op), "; ".join(texts))


def _text(axes: Axes) -> str:
    return f"({', '.join('-' if a is None else str(a) for a in axes)})"


def declared_rule(op: Operation) -> Rule | None:
    """The rule that was declared; None where none was."""
    factors = declared_axes(op)
    return None if factors is None else rule_along(op, factors)
