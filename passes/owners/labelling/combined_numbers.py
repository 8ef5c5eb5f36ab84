"""Combined numbers: integers that an op makes of many, one of them or their sum.

    %i = reduce(%x, iota) argmax        0 to L - 1
    %p = sort(%x, iota)                 0 to L - 1, each
    %n = reduce(%flags) add             0 to L

Which one it is, only a run tells; it lies between the least and the greatest of those.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import integer, integers, ones_unless_given, padding
from hlo_surgery.passes.ir.linearity import added_results, combined_by
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.owners.labelling.bounds import Bounds, ends_of
from hlo_surgery.passes.owners.labelling.integer_ops import spread

# Ops that return one of their operands at each place.
PICKS = {
    "stablehlo.select": (1, 2),
    "stablehlo.minimum": (0, 1),
    "stablehlo.maximum": (0, 1),
}


def combined_from(op: Operation, number: int) -> list[Value]:
    """The operands of which a result has its numbers."""
    if op.name in ("stablehlo.reduce", "stablehlo.reduce_window"):
        count = len(op.results)
        return [op.operands[number], op.operands[count + number]]
    return [op.operands[number]]


def combined(op: Operation, number: int, steps: int, given: Sequence[Bounds]) -> Bounds | None:
    """The bounds of a result, of those of `combined_from`."""
    return COMBINED[op.name](op, number, steps, *given)


def _reduced(op: Operation, number: int, steps: int, x: Bounds, start: Bounds) -> Bounds | None:
    axes = tuple(steps + dim for dim in integers(op, "dimensions"))
    if added_results(op)[number]:
        sums = x.each(lambda numbers: numbers.sum(axes, np.int64))
        return _added(sums, x, start, math.prod(x.low.shape[axis] for axis in axes))
    if x.low.dtype == np.bool_ and combined_by(op, "stablehlo.and")[number]:
        low, high = (np.asarray(end.all(axes)) for end in (x.low, x.high))
        start = start.each(lambda flag: spread(flag, low, steps))
        return Bounds(low & start.low, high & start.high)
    if not _is_one_of_two(op, number):
        return None
    least, greatest = ends_of(x.low.dtype)
    low = x.low.min(axes, initial=greatest.item())
    high = x.high.max(axes, initial=least.item())
    start = start.each(lambda numbers: spread(numbers, low, steps))
    return Bounds(np.minimum(low, start.low), np.maximum(high, start.high))


def _windowed(op: Operation, number: int, steps: int, x: Bounds, start: Bounds) -> Bounds | None:
    """A window's sum, of which elements may lie in the padding and count for nothing."""
    if not added_results(op)[number]:
        return None
    dim = _prefix_dim(op)
    if dim is not None:
        axis = steps + dim
        sums = x.each(lambda numbers: numbers.cumsum(axis, np.int64))
        return _added(sums, x, start, x.low.shape[axis])
    count, each = math.prod(integers(op, "window_dimensions")), _of_any(op, number, steps, x)
    low, high = (end.astype(np.int64) * count for end in (each.low, each.high))
    return _added(Bounds(np.minimum(low, 0), np.maximum(high, 0)), x, start, count)


def _prefix_dim(op: Operation) -> int | None:
    """The dimension along which windows hold all elements so far; None where they hold others."""
    shape, sizes = mlir.shape(op.operands[0]), integers(op, "window_dimensions")
    long = [dim for dim, size in enumerate(sizes) if size > 1]
    names = ("window_strides", "base_dilations", "window_dilations")
    plain = all(set(ones_unless_given(op, name, 1)) <= {1} for name in names)
    expected = [(size - 1, 0) for size in sizes]
    if len(long) != 1 or not plain or padding(op, len(sizes)) != expected:
        return None
    return long[0] if sizes[long[0]] == shape[long[0]] else None


def _added(sums: Bounds, x: Bounds, start: Bounds, count: int) -> Bounds | None:
    """Sums of so many numbers, in 64 bits, in their own type; None where one may not fit, or what
    they are added to is not zero.
    """
    least, greatest = (int(end) for end in ends_of(x.low.dtype))
    largest = max(abs(int(x.low.min(initial=0))), abs(int(x.high.max(initial=0))))
    fits = x.low.dtype != np.bool_ and largest * count < 1 << 62
    if start.low.any() or start.high.any() or not fits:
        return None
    if (sums.low < least).any() or (sums.high > greatest).any():
        return None
    return sums.each(lambda numbers: numbers.astype(x.low.dtype))


def _is_one_of_two(op: Operation, number: int) -> bool:
    """Whether a reduction's body returns one of what it compares, result by result."""
    body, count = op.regions[0].blocks[0], len(op.results)
    own = [body.arguments[number], body.arguments[count + number]]
    pending = [mlir.operands(mlir.return_operation(body))[number]]
    while pending:
        value = pending.pop()
        maker = mlir.defining_operation(value)
        if value in own:
            continue
        if maker is None or maker.name not in PICKS:
            return False
        pending += [maker.operands[i] for i in PICKS[maker.name]]
    return True


def _sorted(op: Operation, number: int, steps: int, x: Bounds) -> Bounds:
    axis = steps + integer(op, "dimension")
    return _all_along(x, (axis,), x.low.shape)


def _of_any(op: Operation, number: int, steps: int, x: Bounds) -> Bounds:
    """Those of every element, in the result's shape, of as many dimensions or not."""
    lead, shape = x.low.shape[:steps], mlir.shape(op.results[0])
    least, greatest = ends_of(x.low.dtype)
    within = tuple(range(steps, x.low.ndim))
    ends = Bounds(
        x.low.min(within, initial=greatest.item()), x.high.max(within, initial=least.item())
    )
    single = ends.each(lambda end: np.reshape(end, (*lead, *[1] * len(shape))))
    return single.each(lambda end: np.broadcast_to(end, (*lead, *shape)))


def _all_along(x: Bounds, axes: tuple[int, ...], shape: Sequence[int]) -> Bounds:
    least, greatest = ends_of(x.low.dtype)
    low = x.low.min(axes, initial=greatest.item(), keepdims=True)
    high = x.high.max(axes, initial=least.item(), keepdims=True)
    return Bounds(np.broadcast_to(low, shape), np.broadcast_to(high, shape))


COMBINED: dict[str, Callable[..., Bounds | None]] = {
    "stablehlo.reduce": _reduced,
    "stablehlo.reduce_window": _windowed,
    "stablehlo.sort": _sorted,
    "stablehlo.gather": _of_any,
}
