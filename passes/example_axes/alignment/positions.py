"""Positions: Shared values that hold something for each example, such as a batch's dropout mask.

No example reaches them, yet row b belongs to example b. A sum over such rows belongs to no
example's contribution, and so must not enter a gradient as a constant. Rows may belong to groups of
examples too, as a mask for each group, and what is summed within groups may hold such rows beside
the examples' terms:

    %v = multiply %w, %masks : [groups, D]         %s = add (sum of %x's terms in each group), %v
    %g = reduce %s over the groups                 =>  holds the sum of %v's rows
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from hlo_surgery.passes.example_axes import own_examples, sharding_rules
from hlo_surgery.passes.example_axes.alignment.constant_parts import added, has_constant_part
from hlo_surgery.passes.example_axes.alignment.places import views
from hlo_surgery.passes.example_axes.alignment.step_positions import POSITIONAL, POSITIONAL_HELP
from hlo_surgery.passes.example_axes.alignment.uniform import Known, is_uniform, sources
from hlo_surgery.passes.example_axes.control_flow import linked
from hlo_surgery.passes.example_axes.lattice import (
    Axes,
    Class,
    Crossed,
    Local,
    PerExample,
    Shared,
    Split,
    Summed,
)
from hlo_surgery.passes.example_axes.sharding_rules import ExampleFactor, Rule
from hlo_surgery.passes.example_axes.split_batches import split_axis
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Block, Operation, Value
from hlo_surgery.passes.ir.source_lines import source_line

MOVED = (
    "rows of a parameter are moved along the examples before they meet them, and so it is not "
    "known whose share of this gradient is whose"
)
MOVED_HELP = "pass the rows as a batch argument (batch_argnums), in the order of the examples"


@dataclass(frozen=True)
class Run:
    """A Shared value, the axis of it that runs along with the examples, and how many of them.

    `in_sum`: the value is a sum over other examples or positions, and it is its constant part that
    has these rows.
    """

    value: Value
    along: PerExample
    size: int
    in_sum: bool = False


def positional_sums(axes: Axes, block: Block) -> dict[Value, Reason]:
    """Sums of Shared values along an axis that runs with the examples, by value, with reasons.

    What runs along with the examples, as the search found it, is noted in `axes`; so is where it
    loses rows that parameters reach.
    """
    runs, found = _aligned(axes, block)
    axes.aligned = {run.value for run in runs}
    axes.moved = next(filter(None, (_moved(axes, run) for run in runs)), None)
    return found


def _moved(axes: Axes, run: Run) -> Reason | None:
    """Why it is not known where the rows of a value come from, if parameters reach them."""
    op = mlir.defining_operation(run.value)
    if op is None or op.name in mlir.CONTROL_FLOW or run.in_sum:
        return None
    if axes.trained.isdisjoint(op.operands) or _rows_in_sources(op, run) is not None:
        return None
    return Reason(MOVED, op.name, source_line(op), MOVED_HELP)


def placed_values(axes: Axes, block: Block) -> dict[Value, PerExample]:
    """Results that are constants or sums, and run along with the examples; and how they do."""
    runs, _ = _aligned(axes, block)
    return {
        r.value: r.along
        for r in runs
        if r.size == axes.size and not r.in_sum and _is_placeable(axes, r.value)
    }


def _is_placeable(axes: Axes, value: Value) -> bool:
    op = mlir.defining_operation(value)
    return _is_constant(axes, value) and op is not None and op.name not in mlir.CONTROL_FLOW


def even_rows(axes: Axes, block: Block) -> dict[Value, PerExample]:
    """Constants that meet examples row by row, and are alike in each; and along which axis."""
    met, known = dict[Value, set[PerExample]](), Known()
    for run in _met_directly(axes, block):
        if run.size == axes.size and _is_constant(axes, run.value):
            met.setdefault(run.value, set()).add(run.along)
    once = {v: axis for v, (axis, *others) in met.items() if not others}
    return {v: axis for v, axis in once.items() if is_uniform(v, axis, axes.size, known)}


def _is_constant(axes: Axes, value: Value) -> bool:
    known = axes.of(value)
    return isinstance(known, Summed) or (isinstance(known, Shared) and known.data is not None)


def _aligned(axes: Axes, block: Block) -> tuple[list[Run], dict[Value, Reason]]:
    """What runs along with the examples, and sums over such rows."""
    known: Known = {}
    placed = (Run(value, along, axes.size) for value, along in axes.placed.items())
    aligned = dict.fromkeys([*_aligned_directly(axes, block, known), *placed])
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
    """The classes where a part of the batch, or either dimension of a split one, counts as the
    examples' own axis.
    """
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
    yield from (
        _run(axes, v, run.along, run.size)
        for v in linked(run.value)
        if _is_constant_or_sum(axes, v)
    )
    op = mlir.defining_operation(run.value)
    if op is None or run.in_sum:
        return
    for source, axis, size in _rows_in_sources(op, run) or []:
        if isinstance(axes.of(source), Shared) and not is_uniform(source, axis, size, known):
            yield Run(source, axis, size)


def _rows_in_sources(op: Operation, run: Run) -> list[tuple[Value, PerExample, int]] | None:
    """The operands that hold the rows, how, and how many; None where the op does not tell."""
    if op.name == "stablehlo.reshape":
        rows = _reshaped(run, op.results[0], op.operands[0])
        return [(op.operands[0], axis, size) for axis, size in rows] or None
    found = sources(op, run.along, run.size)
    return None if found is None else [(v, axis, run.size) for v, axis in found if axis]


def _reshaped(run: Run, source: Value, target: Value) -> list[tuple[PerExample, int]]:
    """Where rows lie behind a reshape, and how many: groups where it splits them over two."""
    axis = sharding_rules.reshaped_axis(source, target, run.along, run.size)
    if axis:
        return [(axis, run.size)]
    split = split_axis(source, target, run.along, run.size)
    return [(split.major, split.parts), (split.minor, run.size // split.parts)] if split else []


def _is_constant_or_sum(axes: Axes, value: Value) -> bool:
    return isinstance(axes.of(value), Shared | Summed)


def _run(axes: Axes, value: Value, along: PerExample, size: int) -> Run:
    return Run(value, along, size, isinstance(axes.of(value), Summed))


def _ahead(axes: Axes, run: Run, found: dict[Value, Reason]) -> Iterator[Run]:
    """Axes of the values made from this one; where it is reduced, the result is noted."""
    for use in run.value.uses:
        op = cast(Any, use.owner).operation
        rule, index = sharding_rules.rule_of(op), int(cast(Any, use).operand_number)
        if rule is None or not _goes_on(axes, run, op, index):
            continue
        if op.name == "stablehlo.reshape":
            rows = _reshaped(run, run.value, op.results[0])
            yield from (_run(axes, op.results[0], axis, size) for axis, size in rows)
            continue
        factor = sharding_rules.find_factor(
            rule, rule.operands[index], run.value, run.along, run.size
        )
        for result, factors in zip(op.results, rule.results, strict=True):
            axis = factor and sharding_rules.find_axis(rule, factors, result, factor)
            if axis:
                yield _run(axes, result, axis, run.size)
            elif factor:
                found[result] = Reason(POSITIONAL, op.name, source_line(op), POSITIONAL_HELP)


def _goes_on(axes: Axes, run: Run, op: Operation, number: int) -> bool:
    """Whether an operand's rows are in an op's result, or in the constant part of a sum."""
    classes = axes.at(op)
    sums = [v for v, c in zip(op.operands, classes, strict=True) if isinstance(c, Summed)]
    unseen = isinstance(classes[number], Summed) and not run.in_sum
    if unseen or not all(isinstance(c, Shared | Summed) for c in classes):
        return False
    return number in added(axes, op) or not sums or any(has_constant_part(axes, v) for v in sums)


def common_factor(
    op: Operation, rule: Rule, classes: list[Class], size: int
) -> ExampleFactor | None:
    """The one factor of the rule that holds all operands' examples; None if they differ."""
    own = {
        sharding_rules.find_factor(rule, rule.operands[i], op.operands[i], c, size)
        for i, c in enumerate(classes)
        if isinstance(c, PerExample)
    }
    return own.pop() if len(own) == 1 else None
