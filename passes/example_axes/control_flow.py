"""Control flow: the classes of what loops and branches return, given how a block is classified.

    %r = while (%c = %init) { %n = add %c, %site ; return %n }
        %init: Shared, %site: Summed    =>  %c, %r: Summed

A loop's carry starts with the class of its initial value and is joined with what the body returns,
until nothing changes (the lattice is finite). A branch's results join those of all branches.
"""

from collections.abc import Callable
from typing import Any

from hlo_surgery.passes.example_axes.alignment.batch_constants import (
    as_constant,
    decided_apart,
    shared,
)
from hlo_surgery.passes.example_axes.lattice import (
    Axes,
    Class,
    Local,
    Mixed,
    PerExample,
    Shared,
    Split,
    Summed,
)
from hlo_surgery.passes.example_axes.reasons import mixed
from hlo_surgery.passes.example_axes.until_done import frozen_carries
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Block, Operation, Value

Classify = Callable[[Axes, Block], None]


def classify_while(axes: Axes, op: Operation, classify: Classify) -> list[Class]:
    """The classes of a loop's results."""
    condition, body = (region.blocks[0] for region in op.regions)
    carries = [axes.of(v) for v in op.operands]
    trained = [v in axes.trained for v in op.operands]
    data = dict(axes.data)
    while True:
        loops = len(axes.part_loops), len(axes.parting)
        _start_over(axes, data)
        _enter(axes, (condition, body), carries, trained)
        classify(axes, body)
        returned = mlir.operands(mlir.return_operation(body))
        joined = [_carried(axes, op, old, v) for old, v in zip(carries, returned, strict=True)]
        reached = [old or v in axes.trained for old, v in zip(trained, returned, strict=True)]
        if (
            joined == carries
            and reached == trained
            and loops == (len(axes.part_loops), len(axes.parting))
        ):
            break
        carries, trained = joined, reached
    classify(axes, condition)
    return _with_condition(
        axes, op, mlir.operands(mlir.return_operation(condition))[0], carries, trained
    )


def _start_over(axes: Axes, data: dict[Value, Reason]) -> None:
    """Forget an earlier round's constants: it may have known too little of the loop's state."""
    axes.data.clear()
    axes.data.update(data)


def _carried(axes: Axes, op: Operation, old: Class, returned: Value) -> Class:
    """A loop over parts of the batch must not carry what belongs to one part into the next.

    What single examples are added to is a sum, if the next round over the body agrees.
    """
    new, site = axes.of(returned), mlir.defining_operation(returned)
    found = _join(op, old, new)
    part = found if isinstance(found, Local) and found.loop == op.results[0] else None
    if (
        part
        and part.axis is None
        and isinstance(old, Shared)
        and site
        and mlir.is_inexact(returned)
    ):
        return Summed(site, old.data)
    disagrees = (
        isinstance(old, Summed)
        and isinstance(new, Shared | Local)
        and site is not None
        and old.site == site
    )
    if part or disagrees:
        return mixed(op, "a loop over parts of the batch carries state from one part to the next")
    return found


def _enter(
    axes: Axes, blocks: tuple[Block, Block], carries: list[Class], trained: list[bool]
) -> None:
    for block in blocks:
        for argument, known, is_trained in zip(block.arguments, carries, trained, strict=True):
            if is_trained:
                axes.trained.add(argument)
            axes.classes[argument] = as_constant(axes, argument, known)


def _with_condition(
    axes: Axes, op: Operation, decider: Value, carries: list[Class], trained: list[bool]
) -> list[Class]:
    """The carries are the results, where no example decides on its own how often the loop runs."""
    predicate = axes.of(decider)
    if isinstance(predicate, Shared):
        for result, is_trained in zip(op.results, trained, strict=True):
            if is_trained:
                axes.trained.add(result)
        return [_decided(axes, op, decider, c) for c in carries]
    axes.trained.update(op.results)
    if alone := _of_one_example([predicate, *carries]):
        return [alone] * len(carries)
    frozen = frozen_carries(axes, op)
    why = "the examples decide together how often this loop runs"
    return [c if i in frozen else mixed(op, why) for i, c in enumerate(carries)]


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
    if alone := _of_one_example([predicate, *(axes.of(v) for values in returned for v in values)]):
        return [alone] * len(op.results)
    if not isinstance(predicate, Shared):
        return [mixed(op, "the examples decide together which branch is taken")] * len(op.results)
    joined = [axes.of(v) for v in returned[0]]
    for values in returned[1:]:
        joined = [_join(op, old, axes.of(v)) for old, v in zip(joined, values, strict=True)]
    return [_decided(axes, op, op.operands[0], c) for c in joined]


def _decided(axes: Axes, op: Operation, predicate: Value, found: Class) -> Class:
    """What no example decides on: what data of the batch decides on is data of the batch."""
    known = axes.of(predicate)
    if isinstance(found, Shared) and isinstance(known, Shared):
        return shared([found, known])
    return decided_apart(axes, op, predicate, found)


def _of_one_example(classes: list[Class]) -> Local | None:
    """A single example's own class, if only Shared is beside it: it may decide what it likes."""
    local = next((c for c in classes if isinstance(c, Local) and c.axis is None), None)
    return local if local and all(c in (local, Shared()) for c in classes) else None


def _join(op: Operation, one: Class, other: Class) -> Class:
    """The least class that holds for values of either."""
    match one, other:
        case (Mixed(), _) | (_, Shared(None)):
            return one
        case (_, Mixed()) | (Shared(None), _):
            return other
        case (Shared(), Shared()):
            return shared([one, other])
        case (Summed(_, data), Shared()) if data:
            return one
        case (Summed(site), Shared(data)) | (Shared(data), Summed(site)):
            return Summed(site, data)
        case (Summed(site, data), Summed(_, more)):
            return Summed(site, data or more)
        case (PerExample(), PerExample()) | (Split(), Split()) | (Local(), Local()) if one == other:
            return one
        case _:
            return mixed(
                op,
                "a value of this loop or branch holds the examples now in one way, now in another",
            )


def linked(value: Value) -> list[Value]:
    """Values that a loop or branch passes on as this one: initial, carried, returned, resulting."""
    return [v for use in value.uses for v in _through(use)] + ties(value)


def _through(use: Any) -> list[Value]:
    op, number = use.owner.operation, int(use.operand_number)
    if op.name == "stablehlo.while":
        return _ties(op, number)
    if op.name == "stablehlo.return" and op.parent.name in mlir.CONTROL_FLOW:
        return (
            _ties(op.parent.operation, number) if number < len(op.parent.operation.results) else []
        )
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
        return [
            op.operands[number],
            op.results[number],
            body.arguments[number],
            returned[1][number],
        ]
    return [op.results[number], *(values[number] for values in returned)]
