"""Example axes: given a flat `main` and the axes of its batch arguments, the class of every value.

    %y = tanh %x            %x: PerExample(dim 0)              =>  %y: PerExample(dim 0)
    %g = dot_general %h %l  both contracted over the examples  =>  %g: Summed
    %m = reduce max %l      over the examples                  =>  %m: Mixed(why, where)

One forward pass over Shardy's rules. A value that no trained parameter reaches is data: where
examples meet in it, it counts as a constant of the batch, and that is said.
"""

from collections.abc import Collection
from dataclasses import replace

from hlo_surgery.passes.example_axes import own_examples, parts, sharding_rules, split_batches
from hlo_surgery.passes.example_axes.alignment.batch_constants import (
    as_constant,
    demoted,
    initial_data,
    rearranged,
    unlike,
)
from hlo_surgery.passes.example_axes.alignment.contributions import (
    evenly_summed,
    settle,
    settle_flow,
)
from hlo_surgery.passes.example_axes.alignment.places import classify_places
from hlo_surgery.passes.example_axes.alignment.positions import (
    common_factor,
    even_rows,
    placed_values,
    positional_sums,
)
from hlo_surgery.passes.example_axes.alignment.products_of_sums import (
    constant,
    multiplied,
    scaling_product,
)
from hlo_surgery.passes.example_axes.alignment.step_positions import step_sums
from hlo_surgery.passes.example_axes.control_flow import classify_case, classify_while
from hlo_surgery.passes.example_axes.lattice import (
    SHARED,
    Axes,
    Class,
    Crossed,
    Local,
    Mixed,
    PerExample,
    Shared,
    Split,
    Summed,
)
from hlo_surgery.passes.example_axes.reasons import PICKING, mixed
from hlo_surgery.passes.example_axes.sharding_rules import ExampleFactor, Rule
from hlo_surgery.passes.example_axes.views import view_axis
from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.errors import SUMS_HELP
from hlo_surgery.passes.ir.mlir import Block, Operation, Value, func
from hlo_surgery.passes.ir.source_lines import source_line


def find_example_axes(
    function: func.FuncOp,
    batch: dict[int, int],
    size: int,
    gradients: Collection[int],
    contribution: bool = False,
) -> Axes:
    """Classify every value of a flat function. `batch`: axis of the examples by argument number;
    `size`: B; `gradients`: the outputs that are; `contribution`: take all that is mixed as
    constant.

    The function's ops carry Shardy's rules already.
    """
    block = mlir.body(function)
    axes = Axes(size, contribution)
    _classify_arguments(axes, block, batch)
    classify_block(axes, block)
    if _differentiates_batch(axes, block, gradients):
        axes.trained.update(a for a in block.arguments if mlir.is_inexact(a))
        axes.data.clear()
        classify_block(axes, block)
    if contribution:
        _place_rows(axes, block)
    axes.positional = positional_sums(axes, block) | step_sums(axes, block)
    if axes.positional:
        classify_block(axes, block)
    return axes


def _place_rows(axes: Axes, block: Block) -> None:
    """Rows that run along with the examples' anywhere are theirs everywhere."""
    while _note_new(axes.placed, placed_values(axes, block)) | _note_new(
        axes.even, even_rows(axes, block)
    ):
        axes.unplaced.clear()
        axes.lost.clear()
        classify_block(axes, block)


def _note_new(known: dict[Value, PerExample], found: dict[Value, PerExample]) -> bool:
    new = {v: axis for v, axis in found.items() if v not in known}
    known.update(new)
    return bool(new)


def _classify_arguments(axes: Axes, block: Block, batch: dict[int, int]) -> None:
    """Batch arguments hold examples along a dimension; other floats count as parameters."""
    for i, argument in enumerate(block.arguments):
        if i in batch:
            axes.classes[argument] = PerExample(batch[i])
        elif mlir.is_inexact(argument):
            axes.trained.add(argument)


def _differentiates_batch(axes: Axes, block: Block, gradients: Collection[int]) -> bool:
    """Whether a gradient has rows of the examples, in whatever shape or type: it is no parameter's
    then, and what it was taken with respect to is no data.
    """
    outputs = mlir.operands(mlir.return_operation(block))
    rows = PerExample | Split | Local | Crossed
    return any(isinstance(axes.of(outputs[number]), rows) for number in gradients)


def classify_block(axes: Axes, block: Block) -> None:
    """Classify every value of a block, in order; the block's arguments are classified already."""
    for op in mlir.operations(block)[:-1]:
        if op.name in mlir.CONTROL_FLOW:
            _classify_flow(axes, op)
            continue
        sources = [*op.operands, *(mlir.captured(op) if len(op.regions) else [])]
        if not axes.trained.isdisjoint(sources):
            axes.trained.update(op.results)
        if len(op.results):
            axes.taken.pop(op.results[0], None)
        classes = _classify(axes, op, sources)
        for result, found in zip(op.results, classes, strict=True):
            axes.classes[result] = _constant(axes, op, result, found)
        if axes.contribution:
            settle(axes, op, classes)


def _classify_flow(axes: Axes, op: Operation) -> None:
    flow = classify_while if op.name == "stablehlo.while" else classify_case
    for result, found in zip(op.results, flow(axes, op, classify_block), strict=True):
        axes.classes[result] = _constant(axes, op, result, found)
    if axes.contribution and settle_flow(axes, op):
        _classify_flow(axes, op)


def _constant(axes: Axes, op: Operation, result: Value, found: Class) -> Class:
    """Mixed data is a constant of the batch; sums over positions of examples are of none."""
    if result in axes.positional and isinstance(found, Shared | Summed) and not found.data:
        return replace(found, data=axes.positional[result])
    if isinstance(found, Mixed) and axes.contribution and not found.unknown:
        axes.data.setdefault(result, found.reason)
        return Shared(found.reason)
    return as_constant(axes, result, found)


def _classify(axes: Axes, op: Operation, sources: list[Value]) -> list[Class]:
    classes = [axes.of(v) for v in sources]
    count = len(op.results)
    if op.name == "stablehlo.optimization_barrier":
        return classes
    bad = next((c for c in classes if isinstance(c, Mixed)), None)
    if bad is not None:
        return [bad] * count
    if even := evenly_summed(axes, op):
        return _classify_examples(axes, op, [even, *classes[1:]])
    if all(isinstance(c, Shared) for c in classes) and not parts.slices_parts(axes, op, classes):
        return [constant(op, classes)] * count
    own, outside = classes[: len(op.operands)], classes[len(op.operands) :]
    if not all(isinstance(c, Shared) for c in outside):
        return [
            mixed(op, "the op's body uses values of the examples from outside", unknown=True)
        ] * count
    if any(isinstance(c, Split) for c in own):
        data = (
            i
            for i, v in enumerate(op.operands)
            if isinstance(own[i], Summed) and v not in axes.trained
        )
        own = demoted(axes, op.operands, own, frozenset(data))
    if any(isinstance(c, Split | Local) for c in own) or parts.slices_parts(axes, op, own):
        return _classify_parts(axes, op, own)
    return _classify_examples(axes, op, own)


def _classify_parts(axes: Axes, op: Operation, classes: list[Class]) -> list[Class]:
    """The same where the batch is in parts; the op took its operands as parts then."""
    found = parts.classify_parts(axes, op, classes, _classify_examples)
    taken = axes.taken.get(op.results[0], classes)
    pairs = zip(classes, taken, strict=True)
    axes.taken[op.results[0]] = tuple(
        own if isinstance(own, Local) else seen for own, seen in pairs
    )
    return found


def _classify_examples(axes: Axes, op: Operation, classes: list[Class]) -> list[Class]:
    """An op that examples reach, through slices of their own or through sums."""
    axes.taken[op.results[0]] = tuple(classes)
    if any(isinstance(c, Crossed) for c in classes):
        return classify_places(axes, op, classes, _classify_examples)
    found = _classify_one_place(axes, op, classes)
    meets = axes.contribution and all(isinstance(c, Mixed) and not c.unknown for c in found)
    if meets and sum(isinstance(c, PerExample) for c in classes) > 1:
        return classify_places(axes, op, classes, _classify_examples)
    return found


def _classify_one_place(axes: Axes, op: Operation, classes: list[Class]) -> list[Class]:
    summed = frozenset(i for i, c in enumerate(classes) if isinstance(c, Summed))
    if all(isinstance(c, Shared) for c in classes):
        return [constant(op, classes)] * len(op.results)
    if not summed:
        return _sliced(axes, op, classes)
    if product := scaling_product(axes, op, classes, summed):
        demoted(axes, op.operands, classes, summed)
        return [product] * len(op.results)
    if linearity.is_linear(op, summed):
        others = [c for i, c in enumerate(classes) if i not in summed]
        if all(isinstance(c, Shared) for c in others):
            return [_linear(op, classes, summed)] * len(op.results)
        absorbed = [SHARED if i in summed else c for i, c in enumerate(classes)]
        onto = summed <= frozenset(linearity.initial_operands(op))
        if (
            onto
            and op.name in linearity.SUMMING_BODIES
            and all(isinstance(c, Summed) for c in _sliced(axes, op, absorbed))
        ):
            return [_linear(op, classes, summed)] * len(op.results)
    if op.name == "stablehlo.divide" and 1 in summed and op.operands[1] not in axes.trained:
        return _classify_examples(axes, op, demoted(axes, op.operands, classes, frozenset([1])))
    if not axes.contribution and any(op.operands[i] in axes.trained for i in summed):
        return [_meeting(op, classes, summed)] * len(op.results)
    # Of a sum that parameters reach and one of data, the data is the constant.
    data = frozenset(i for i in summed if op.operands[i] not in axes.trained)
    constants = demoted(axes, op.operands, classes, data or summed)
    if product := multiplied(op, summed) if len(data) in (0, len(summed)) else None:
        axes.taken[op.results[0]] = tuple(constants)
        return [product] * len(op.results)
    return _classify_examples(axes, op, constants)


def _linear(op: Operation, classes: list[Class], summed: frozenset[int]) -> Class:
    """The sum's own constant part, and what linear ops add, may hold the whole batch's data."""
    added = [i for i in range(len(classes)) if linearity.is_linear(op, summed | {i})]
    held = (c.data for c in (classes[i] for i in added) if isinstance(c, Shared | Summed))
    data = next((d for d in held if d), None)
    first = next(c for c in classes if isinstance(c, Summed))
    return Summed(first.site, data)


def _meeting(op: Operation, classes: list[Class], summed: frozenset[int]) -> Mixed:
    sites = [c.site for c in classes if isinstance(c, Summed)]
    line = f"{sites[0].name} at {source_line(sites[0])}"
    if any(isinstance(c, PerExample) for c in classes):
        return mixed(op, f"a sum over the examples ({line}) meets each example's own values")
    if len(summed) > 1:
        return mixed(
            op, f"two sums over the examples (the first by {line}) are multiplied", help=SUMS_HELP
        )
    return mixed(
        op, f"a sum over the examples ({line}) is used in a way that is not linear", help=SUMS_HELP
    )


def _sliced(axes: Axes, op: Operation, classes: list[Class]) -> list[Class]:
    """An op of values that hold each example in a slice of its own, and of Shared ones."""
    if op.name == "stablehlo.reshape":
        found = sharding_rules.reshaped_axis(
            op.operands[0], op.results[0], _first_axis(classes), axes.size
        )
        found = found or split_batches.split_axis(
            op.operands[0], op.results[0], _first_axis(classes), axes.size
        )
        return [found or mixed(op, "the example axis is split over several dimensions")]
    view = view_axis(op, classes, _first_axis(classes), axes.size)
    if view is not None:
        return [view]
    own = own_examples.own_numbers(op, classes, axes.size)
    if own is not None and _keeps_examples(op):
        data = None if axes.contribution else unlike(op, classes, own.operands, axes.size)
        return [rearranged(op, data) if data else own.result]
    if linearity.is_batched_call(op):
        return _batched(op, _first_axis(classes), classes)
    rule = sharding_rules.rule_of(op)
    if rule is None:
        name = mlir.text_attribute(op, "call_target_name") or "this op"
        return [
            mixed(op, f"nothing is known of how {name} treats the examples", unknown=True)
        ] * len(op.results)
    return _by_rule(axes, op, rule, classes)


def _keeps_examples(op: Operation) -> bool:
    return (
        op.name == "stablehlo.gather"
        or all(linearity.added_results(op))
        or linearity.overwrites(op)
    )


def _batched(op: Operation, axis: PerExample, classes: list[Class]) -> list[Class]:
    """A LAPACK call works matrix by matrix; the dimensions before the matrices are its batch."""
    from_left = linearity.solves_from_left(op)
    ranks = [
        len(mlir.shape(v))
        for v, c in zip(op.operands, classes, strict=True)
        if isinstance(c, PerExample)
    ]
    batched = axis.dim < max(ranks) - 2
    aligned = batched and all(c in (axis, SHARED) for c in classes)
    if from_left is not None and isinstance(classes[0], Shared) and classes[1] == axis:
        # With one matrix for all examples, each column (from the left) or row of the right-hand
        # side is its own.
        independent = ranks[0] - (1 if from_left else 2)
        aligned = aligned or axis.dim == independent
    if not aligned:
        return [
            mixed(op, "a linear-algebra call does not hold the examples along one batch dimension")
        ] * len(op.results)
    return [axis] * len(op.results)


def _first_axis(classes: list[Class]) -> PerExample:
    return next(c for c in classes if isinstance(c, PerExample))


def _by_rule(axes: Axes, op: Operation, rule: Rule, classes: list[Class]) -> list[Class]:
    found = common_factor(op, rule, classes, axes.size)
    if found is None:
        why = (
            "each example meets others: the operands hold the examples along different or "
            "divided dimensions"
        )
        return [mixed(op, why)] * len(op.results)
    if found.factor in rule.blocked:
        return [mixed(op, "values are moved or combined along the example axis")] * len(op.results)
    along = [
        sharding_rules.find_axis(rule, f, v, found)
        for f, v in zip(rule.operands, op.operands, strict=True)
    ]
    if not axes.contribution and (data := unlike(op, classes, along, axes.size)):
        return [rearranged(op, data)] * len(op.results)
    return [_result(axes, op, rule, found, i) for i in range(len(op.results))]


def _result(axes: Axes, op: Operation, rule: Rule, examples: ExampleFactor, index: int) -> Class:
    result = op.results[index]
    if examples.factor in rule.reduced:
        if linearity.sums(op, index):
            return Summed(op, initial_data(op, axes.at(op)))
        picked = "examples are taken out of the batch, or in another order"
        reduced = "the examples are reduced to one value, and not by a sum of floats"
        return mixed(op, picked if op.name in PICKING else reduced)
    along = sharding_rules.find_axis(rule, rule.results[index], result, examples)
    return along or mixed(op, "the examples are reduced to one value, and not by a sum")
