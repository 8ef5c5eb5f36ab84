"""Gradient slices: given a gradient output, the ops that sum its examples (sites) and the affine ops behind (tail).

%m = dot_general %h, %l   contracts the examples  =>  site
%t = transpose %m                                 =>  tail
return %t
"""

from dataclasses import dataclass

from hlo_surgery import mlir
from hlo_surgery.mlir import Operation, Value
from hlo_surgery.passes import sharding_rules
from hlo_surgery.passes.lattice import Axes, PerExample, Shared, Summed
from hlo_surgery.passes.positions import common_factor


@dataclass(frozen=True)
class Step:
    """One op of a slice, and for a site the example axis of each operand that has one."""

    op: Operation
    axes: tuple[PerExample | None, ...]

    @property
    def is_site(self) -> bool:
        """Whether examples are summed here."""
        return any(self.axes)


@dataclass(frozen=True)
class GradientSlice:
    """All that lies between the examples and one gradient output, in program order."""

    output: Value
    steps: tuple[Step, ...]

    @property
    def sites(self) -> tuple[Step, ...]:
        """The ops at which examples are summed."""
        return tuple(step for step in self.steps if step.is_site)

    @property
    def tail(self) -> tuple[Step, ...]:
        """The affine ops behind them."""
        return tuple(step for step in self.steps if not step.is_site)


def gradient_slice(axes: Axes, output: Value) -> GradientSlice:
    """The slice of an output that is Summed, or Shared (then it is empty)."""
    found: set[Value] = set()
    pending = [output]
    while pending:
        value = pending.pop()
        if value in found or not isinstance(axes.of(value), Summed):
            continue
        found.add(value)
        op = mlir.defining_operation(value)
        pending += op.operands if op is not None else []
    return GradientSlice(output, tuple(_step(axes, op) for op in _in_program_order(output, found)))


def _in_program_order(output: Value, made: set[Value]) -> list[Operation]:
    op = mlir.defining_operation(output)
    return [] if op is None else [op for op in mlir.operations(op.block) if not made.isdisjoint(op.results)]


def _step(axes: Axes, op: Operation) -> Step:
    classes = [axes.of(v) for v in op.operands]
    if not any(isinstance(c, PerExample) for c in classes):
        return Step(op, (None,) * len(classes))
    rule = sharding_rules.rule_of(op)
    factor = rule and common_factor(op, rule, classes, axes.size)
    assert rule is not None
    assert factor is not None
    pairs = zip(op.operands, classes, rule.operands, strict=True)
    found = (
        sharding_rules.find_axis(rule, factors, value, factor) if isinstance(known, PerExample | Shared) else None
        for value, known, factors in pairs
    )
    return Step(op, tuple(found))


def initial_operands(op: Operation) -> range:
    """Positions of the operands on top of which an op sums: a scatter's operand, a reduce's initial value."""
    count = len(op.results)
    if op.name == "stablehlo.scatter":
        return range(count)
    if op.name in ("stablehlo.reduce", "stablehlo.reduce_window"):
        return range(count, 2 * count)
    return range(0)
