"""Positions: Shared values that hold something for each example nevertheless, such as a dropout mask for the batch.

No example reaches them, yet row b belongs to example b. A sum over such rows belongs to no example's contribution,
and so must not enter a gradient as a constant.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from hlo_surgery import mlir
from hlo_surgery.errors import Reason
from hlo_surgery.mlir import Block, Operation, Value
from hlo_surgery.passes import own_examples, sharding_rules
from hlo_surgery.passes.control_flow import linked
from hlo_surgery.passes.lattice import Axes, Class, Crossed, Local, PerExample, Shared, Split, Summed
from hlo_surgery.passes.places import views
from hlo_surgery.passes.sharding_rules import ExampleFactor, Rule
from hlo_surgery.passes.source_lines import source_line
from hlo_surgery.passes.step_positions import POSITIONAL, POSITIONAL_HELP
from hlo_surgery.passes.uniform import Known, is_uniform, sources


@dataclass(frozen=True)
class Run:
    """A Shared value, the axis of it that runs along with the examples, and how many of them."""

    value: Value
    along: PerExample
    size: int


def positional_sums(axes: Axes, block: Block) -> dict[Value, Reason]:
    """Sums of Shared values over an axis along which they run with the examples, by value, each with its reason.

    What runs along with the examples, as the search found it, is noted in `axes`.
    """
    runs, found = _aligned(axes, block)
    axes.aligned = {run.value for run in runs}
    return found


def placed_values(axes: Axes, block: Block) -> dict[Value, PerExample]:
    """Results of ops that are constants of the batch, or sums, and run along with the examples; and how they do."""
    runs, _ = _aligned(axes, block)
    return {r.value: r.along for r in runs if r.size == axes.size and _is_placeable(axes, r.value)}


def _is_placeable(axes: Axes, value: Value) -> bool:
    op = mlir.defining_operation(value)
    return _is_constant(axes, value) and op is not None and op.name not in mlir.CONTROL_FLOW


def even_rows(axes: Axes, block: Block) -> dict[Value, PerExample]:
    """Constants of the batch that meet the examples row by row, and hold the same in each row; and along which axis."""
    met = [run for run in _met_directly(axes, block) if run.size == axes.size and _is_constant(axes, run.value)]
    known: Known = {}
    along = {run.value: run.along for run in met if is_uniform(run.value, run.along, run.size, known)}
    return {v: axis for v, axis in along.items() if all(run.along == axis for run in met if run.value == v)}


def _is_constant(axes: Axes, value: Value) -> bool:
    known = axes.of(value)
    return isinstance(known, Summed) or (isinstance(known, Shared) and known.data is not None)


def _aligned(axes: Axes, block: Block) -> tuple[list[Run], dict[Value, Reason]]:
    """What runs along with the examples, and sums over such rows."""
    known: Known = {}
    aligned = dict.fromkeys(_aligned_directly(axes, block, known))
    pending, found = list(aligned), dict[Value, Reason]()
    while pending:
        run = pending.pop()
        for neighbour in [*_behind(axes, run, known), *_ahead(axes, run, found)]:
            if neighbour not in aligned:
                aligned[neighbour] = None
                pending.append(neighbour)
    return list(aligned), found


def _aligned_directly(axes: Axes, block: Block, known: Known) -> Iterator[Run]:
    """Those operands that may hold something for each example."""
    met = _met_directly(axes, block)
    return (run for run in met if not is_uniform(run.value, run.along, run.size, known))


def _met_directly(axes: Axes, block: Block) -> Iterator[Run]:
    """Shared operands beside PerExample ones, with the axis that runs along with the examples."""
    for op in mlir.nested_operations(block.owner.operation):
        for classes, size in _views(axes, axes.at(op)):
            if any(isinstance(c, PerExample) for c in classes):
                yield from _met_operands(op, classes, size)


def _views(axes: Axes, classes: list[Class]) -> list[tuple[list[Class], int]]:
    """The classes where a part of the batch, or either dimension of a split one, counts as the examples' own axis."""
    local = next((c for c in classes if isinstance(c, Local)), None)
    if local:
        return [([c.axis if isinstance(c, Local) and c.axis else c for c in classes], local.count)]
    split = next((c for c in classes if isinstance(c, Split)), None)
    if split:
        majors: list[Class] = [c.major if isinstance(c, Split) else c for c in classes]
        minors: list[Class] = [c.minor if isinstance(c, Split) else c for c in classes]
        return [(majors, split.parts), (minors, axes.size // split.parts)]
    if any(isinstance(c, Crossed) for c in classes):
        return [(view, axes.size) for view in views(classes, Shared())]
    return [(classes, axes.size)]


def _met_operands(op: Operation, classes: list[Class], size: int) -> Iterator[Run]:
    own = own_examples.own_numbers(op, classes, size)
    rule = sharding_rules.rule_of(op)
    if own is not None:
        found: Sequence[PerExample | None] = own.operands
    elif rule is not None and (factor := common_factor(op, rule, classes, size)):
        pairs = zip(op.operands, rule.operands, strict=True)
        found = [sharding_rules.find_axis(rule, factors, value, factor) for value, factors in pairs]
    else:
        return
    for value, known, along in zip(op.operands, classes, found, strict=True):
        if along and isinstance(known, Shared):
            yield Run(value, along, size)


def _behind(axes: Axes, run: Run, known: Known) -> Iterator[Run]:
    yield from (Run(v, run.along, run.size) for v in linked(run.value) if isinstance(axes.of(v), Shared))
    op = mlir.defining_operation(run.value)
    for source, axis in (sources(op, run.along, run.size) or []) if op is not None else []:
        if axis and isinstance(axes.of(source), Shared) and not is_uniform(source, axis, run.size, known):
            yield Run(source, axis, run.size)


def _ahead(axes: Axes, run: Run, found: dict[Value, Reason]) -> Iterator[Run]:
    """Axes of the values made from this one; where the axis is reduced, the result is noted as found."""
    for use in run.value.uses:
        op = cast(Any, use.owner).operation
        rule, index = sharding_rules.rule_of(op), int(cast(Any, use).operand_number)
        if rule is None or not all(isinstance(axes.of(v), Shared) for v in op.operands):
            continue
        if op.name == "stablehlo.reshape":
            axis = sharding_rules.reshaped_axis(run.value, op.results[0], run.along, run.size)
            yield from [Run(op.results[0], axis, run.size)] if axis else []
            continue
        factor = sharding_rules.find_factor(rule, rule.operands[index], run.value, run.along, run.size)
        for result, factors in zip(op.results, rule.results, strict=True):
            axis = factor and sharding_rules.find_axis(rule, factors, result, factor)
            if axis:
                yield Run(result, axis, run.size)
            elif factor:
                found[result] = Reason(POSITIONAL, op.name, source_line(op), POSITIONAL_HELP)


def common_factor(op: Operation, rule: Rule, classes: list[Class], size: int) -> ExampleFactor | None:
    """The one factor of the rule in which all operands hold their examples; None where they differ."""
    own = {
        sharding_rules.find_factor(rule, rule.operands[i], op.operands[i], c, size)
        for i, c in enumerate(classes)
        if isinstance(c, PerExample)
    }
    return own.pop() if len(own) == 1 else None
