"""Control flow: the classes of what loops and branches return, given how a block is classified.

    %r = while (%c = %init) { %n = add %c, %site ; return %n }     %init: Shared, %site: Summed  =>  %c, %r: Summed

A loop's carry starts with the class of its initial value and is joined with what the body returns, until nothing
changes (the lattice is finite). A branch's results join those of all branches.
"""

from collections.abc import Callable
from typing import Any

from hlo_surgery import mlir
from hlo_surgery.errors import Reason
from hlo_surgery.mlir import Block, Operation, Value
from hlo_surgery.passes.lattice import Axes, Class, Mixed, PerExample, Shared, Summed
from hlo_surgery.passes.source_lines import source_line

Classify = Callable[[Axes, Block], None]


def classify_while(axes: Axes, op: Operation, classify: Classify) -> list[Class]:
    """The classes of a loop's results."""
    condition, body = (region.blocks[0] for region in op.regions)
    carries = [axes.of(v) for v in op.operands]
    trained = [v in axes.trained for v in op.operands]
    while True:
        _enter(axes, (condition, body), carries, trained)
        classify(axes, body)
        returned = mlir.operands(mlir.return_operation(body))
        joined = [_join(op, old, axes.of(v)) for old, v in zip(carries, returned, strict=True)]
        reached = [old or v in axes.trained for old, v in zip(trained, returned, strict=True)]
        if joined == carries and reached == trained:
            break
        carries, trained = joined, reached
    classify(axes, condition)
    return _with_condition(axes, op, axes.of(mlir.operands(mlir.return_operation(condition))[0]), carries, trained)


def _enter(axes: Axes, blocks: tuple[Block, Block], carries: list[Class], trained: list[bool]) -> None:
    for block in blocks:
        for argument, known, is_trained in zip(block.arguments, carries, trained, strict=True):
            axes.classes[argument] = known
            if is_trained:
                axes.trained.add(argument)


def _with_condition(
    axes: Axes, op: Operation, predicate: Class, carries: list[Class], trained: list[bool]
) -> list[Class]:
    """The carries are the results, where no example decides on its own how often the loop runs."""
    if isinstance(predicate, Shared):
        for result, is_trained in zip(op.results, trained, strict=True):
            if is_trained:
                axes.trained.add(result)
        return carries
    axes.trained.update(op.results)
    why = "the examples decide together how often this loop runs"
    return [c if c == Shared() else mixed_at(op, why) for c in carries]


def classify_case(axes: Axes, op: Operation, classify: Classify) -> list[Class]:
    """The classes of a branch's results: those of all branches, joined."""
    branches = [region.blocks[0] for region in op.regions]
    for branch in branches:
        classify(axes, branch)
    predicate = axes.of(op.operands[0])
    returned = [mlir.operands(mlir.return_operation(branch)) for branch in branches]
    for results in zip(op.results, *returned, strict=True):
        if any(v in axes.trained for v in [op.operands[0], *results[1:]]):
            axes.trained.add(results[0])
    if not isinstance(predicate, Shared):
        return [mixed_at(op, "the examples decide together which branch is taken")] * len(op.results)
    joined = [axes.of(v) for v in returned[0]]
    for values in returned[1:]:
        joined = [_join(op, old, axes.of(v)) for old, v in zip(joined, values, strict=True)]
    return joined


def mixed_at(op: Operation, why: str) -> Mixed:
    """The class of a value that this op mixes."""
    return Mixed(Reason(why, op.name, source_line(op)))


def _join(op: Operation, one: Class, other: Class) -> Class:
    """The least class that holds for values of either."""
    match one, other:
        case (Mixed(), _) | (_, Shared(None)):
            return one
        case (_, Mixed()) | (Shared(None), _):
            return other
        case (Shared(), Shared()) | (Summed(_, _), Shared()) if isinstance(one, Shared) or one.data:
            return one
        case (Summed(site), Shared(data)) | (Shared(data), Summed(site)):
            return Summed(site, data)
        case (Summed(site, data), Summed(_, more)):
            return Summed(site, data or more)
        case (PerExample(), PerExample()) if one == other:
            return one
        case _:
            return mixed_at(op, "a value of this loop or branch holds the examples now in one way, now in another")


def linked(value: Value) -> list[Value]:
    """The values that a loop or branch passes on as this one: initial, carried, returned and resulting."""
    return [v for use in value.uses for v in _through(use)] + ties(value)


def _through(use: Any) -> list[Value]:
    op, number = use.owner.operation, int(use.operand_number)
    if op.name == "stablehlo.while":
        return _ties(op, number)
    if op.name == "stablehlo.return" and op.parent.name in mlir.CONTROL_FLOW:
        return _ties(op.parent.operation, number) if number < len(op.parent.operation.results) else []
    return []


def ties(value: Value) -> list[Value]:
    """For a result of a loop or branch, or an argument of a loop: all that it is one state with."""
    owner: Any = value.owner
    op = mlir.defining_operation(value)
    if op is not None:
        branches = op.name in mlir.CONTROL_FLOW
        return _ties(op, mlir.results(op).index(value)) if branches else []
    loop = owner.owner.operation
    return _ties(loop, list(owner.arguments).index(value)) if loop.name == "stablehlo.while" else []


def _ties(op: Operation, number: int) -> list[Value]:
    returned = [mlir.operands(mlir.return_operation(r.blocks[0])) for r in op.regions]
    if op.name == "stablehlo.while":
        body = op.regions[1].blocks[0]
        return [op.operands[number], op.results[number], body.arguments[number], returned[1][number]]
    return [op.results[number], *(values[number] for values in returned)]
