"""Parts: loops that take the batch part by part, as microbatches or, by `lax.map`, one by one.

    %p = reshape %x : [B, D] -> [k, B/k, D]                          %x: PerExample  =>  %p: Split
    while %i < k { %s = dynamic_slice %p, %i ; ... }                                 =>  %s: Local

Inside, the part's examples lie along the other dimension, B/k of them; with a single one, anything
may happen to it. What a part writes at its own place of a stack is Split again. Every part must
come once: the index is a permutation.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from hlo_surgery.passes.example_axes.alignment.batch_constants import (
    data_in,
    demoted,
    differing,
    rearranged,
)
from hlo_surgery.passes.example_axes.counters import counter_values, is_permutation, values_over
from hlo_surgery.passes.example_axes.lattice import (
    Axes,
    Class,
    Local,
    PerExample,
    Shared,
    Split,
    Summed,
)
from hlo_surgery.passes.example_axes.loop_steps import varies
from hlo_surgery.passes.example_axes.reasons import mixed
from hlo_surgery.passes.example_axes.split_batches import classify_split
from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.mlir import Operation, Value

ClassifyExamples = Callable[[Axes, Operation, list[Class]], list[Class]]
SLICE, WRITE = "stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"


def slices_parts(axes: Axes, op: Operation, classes: list[Class]) -> bool:
    """Whether the op takes single examples of a whole batch, as `lax.map` does, or what belongs to
    their positions.
    """
    if op.name != SLICE:
        return False
    axis = classes[0]
    if isinstance(axis, PerExample) and axis.is_whole:
        return mlir.shape(op.results[0])[axis.dim] == 1
    return _is_positional(axes, axis) and _positional(axes, op) is not None


def _is_positional(axes: Axes, known: Class) -> bool:
    """Whether a value may hold something for each example; the whole batch's data does not."""
    return isinstance(known, Shared) and (axes.contribution or not data_in(known))


def _positional(axes: Axes, op: Operation) -> Local | None:
    """The part for which a loop over examples slices a Shared value at the example's number."""
    whole, part = mlir.shape(op.operands[0]), mlir.shape(op.results[0])
    cut = [d for d in range(len(whole)) if whole[d] == axes.size and part[d] == 1]
    if not any(loop.results[0] in axes.parting for loop in mlir.enclosing_loops(op)):
        return None
    for dim in cut:
        found = _order(op, op.operands[1 + dim], axes.size)
        if found and axes.parting.get(found[0]) == found[1]:
            return Local(None, 1, True, found[1], found[0], op.operands[1 + dim])
    return None


def classify_parts(
    axes: Axes, op: Operation, classes: list[Class], classify: ClassifyExamples
) -> list[Class]:
    """The classes of an op's results where the batch is in parts."""
    local = next((c for c in classes if isinstance(c, Local)), None)
    if op.name == SLICE and not isinstance(classes[0], Local) and not _keeps_parts(op, classes[0]):
        positional = _positional(axes, op) if _is_positional(axes, classes[0]) else None
        return [positional or _part(axes, op, classes[0])]
    if (
        op.name == WRITE
        and isinstance(classes[1], Local)
        and (dim := _written_place(op, classes[1])) is not None
    ):
        return [_written(axes, op, classes, dim)]
    if local:
        return _on_part(axes, op, classes, local, classify)
    return classify_split(axes, op, classes)


def _keeps_parts(op: Operation, known: Class) -> bool:
    """Whether a slice is of all parts, along dimensions of their own."""
    whole, part = mlir.shape(op.operands[0]), mlir.shape(op.results[0])
    return isinstance(known, Split) and all(
        whole[d] == part[d] for d in (known.major.dim, known.minor.dim)
    )


def _order(op: Operation, index: Value, parts: int) -> tuple[Value, tuple[int, ...]] | None:
    """The loop whose counter the index follows, and its order of the parts, each once."""
    for loop in mlir.enclosing_loops(op):
        counters = counter_values(loop)
        numbers = values_over(index, counters) if counters else None
        if numbers is not None and is_permutation(numbers, parts):
            return loop.results[0], tuple(numbers.tolist())
    return None


def _part(axes: Axes, op: Operation, known: Class) -> Class:
    """What a loop takes out of a batch at its own number."""
    whole, part = mlir.shape(op.operands[0]), mlir.shape(op.results[0])
    cut = [d for d in range(len(whole)) if whole[d] != part[d]]
    axis, count, major = (
        _place(axes, known, cut[0]) if len(cut) == 1 and part[cut[0]] == 1 else (None, 0, True)
    )
    found = _order(op, op.operands[1 + cut[0]], whole[cut[0]]) if count else None
    if not found:
        return mixed(
            op, "a slice is taken along the example axis, and not as a loop over all examples would"
        )
    axes.part_loops[found[0]] = len(found[1])
    if axis is None:
        axes.parting[found[0]] = found[1]
    return Local(axis, count, major, found[1], found[0], op.operands[1 + cut[0]])


def _place(axes: Axes, known: Class, dim: int) -> tuple[PerExample | None, int, bool]:
    """Where a part's examples lie once the batch is cut, how many, and if along the major one."""
    match known:
        case PerExample() if known.dim == dim:
            return None, 1, True
        case Split(major, minor, parts) if major.dim == dim and major.is_whole:
            return minor, axes.size // parts, True
        case Split(major, minor, parts) if minor.dim == dim and minor.is_whole:
            return major, parts, False
        case _:
            return None, 0, True


def _written_place(op: Operation, local: Local) -> int | None:
    """The dimension along which a loop writes each part at the part's own number."""
    whole, part = mlir.shape(op.operands[0]), mlir.shape(op.operands[1])
    cut = [d for d in range(len(whole)) if whole[d] != part[d]]
    if len(cut) != 1 or part[cut[0]] != 1:
        return None
    same = _order(op, op.operands[2 + cut[0]], whole[cut[0]]) == (local.loop, local.order)
    return cut[0] if same else None


def _written(axes: Axes, op: Operation, classes: list[Class], dim: int) -> Class:
    """What a loop puts back at the part's own number."""
    local, place = classes[1], PerExample(dim)
    assert isinstance(local, Local)
    if local.axis is None:
        found: Class = place
    elif local.major:
        found = Split(place, local.axis, len(local.order))
    else:
        found = Split(local.axis, place, local.count)
    if classes[0] not in (Shared(), found) or len(local.order) * local.count != axes.size:
        return mixed(op, "a part of the batch is written beside other values")
    return found


def _on_part(
    axes: Axes, op: Operation, classes: list[Class], local: Local, classify: ClassifyExamples
) -> list[Class]:
    """An op on the examples of one part."""
    if not all(isinstance(c, Shared | Summed) or _same_part(c, local) for c in classes):
        return [mixed(op, "a part of the batch meets other examples")] * len(op.results)
    apart = differing(axes, op.operands, classes, local)
    if apart and not axes.contribution and not _adds_to(op, classes, apart):
        return [rearranged(op, next(iter(apart.values())))] * len(op.results)
    if local.axis is None:
        return [_on_example(axes, op, classes, local, apart)] * len(op.results)
    inside = replace(axes, size=local.count)
    views = [c.axis if isinstance(c, Local) and c.axis else c for c in classes]
    found = classify(inside, op, views)
    if apart and not axes.contribution and not all(isinstance(c, Summed) for c in found):
        return [rearranged(op, next(iter(apart.values())))] * len(op.results)
    return [replace(local, axis=c) if isinstance(c, PerExample) else c for c in found]


def _same_part(known: Class, local: Local) -> bool:
    return isinstance(known, Local) and replace(known, axis=local.axis) == local


def _on_example(
    axes: Axes, op: Operation, classes: list[Class], local: Local, apart: Collection[int]
) -> Class:
    """A single example's value: added to a sum, it joins it; else it stays the example's own."""
    data = {
        i
        for i, c in enumerate(classes)
        if isinstance(c, Summed) and op.operands[i] not in axes.trained
    }
    known = demoted(
        axes, op.operands, classes, data - set(apart) | _settled_sums(axes, op, classes, local)
    )
    axes.taken[op.results[0]] = tuple(known)
    added = [c for c in known if isinstance(c, Summed)]
    if not added and not apart:
        return local
    if _adds_to(op, known, apart):
        held = (
            c.data for c in [*(known[i] for i in apart), *added] if isinstance(c, Shared | Summed)
        )
        return Summed(op, next((d for d in held if d), None))
    if all(v in data for v, c in enumerate(known) if isinstance(c, Summed)):
        demoted(axes, op.operands, classes, data & set(apart))
        return local
    return mixed(op, "a sum over the examples meets one example's own values")


def _settled_sums(axes: Axes, op: Operation, classes: list[Class], local: Local) -> set[int]:
    """In contributions, sums alike at all steps: constants beside an example, as without loops."""
    loop = mlir.defining_operation(local.loop)
    assert loop is not None
    sums = (i for i, c in enumerate(classes) if isinstance(c, Summed) and axes.contribution)
    return {i for i in sums if not varies(axes, loop, op.operands[i])}


def _adds_to(op: Operation, classes: Sequence[Class], apart: Collection[int]) -> bool:
    """Whether the op adds the examples at hand to sums, and to these values, and does no more."""
    together = frozenset(apart) | {
        i for i, c in enumerate(classes) if isinstance(c, Local | Summed)
    }
    return linearity.is_linear(op, together)
