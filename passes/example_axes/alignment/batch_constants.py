"""Batch constants: data of several examples where it meets an example's own value.

A value that no parameter reaches may rest on the data of several examples. Where all examples meet
the same of it, it counts as a constant of the batch, which the plan lists:

    x - mean(x, 0)        one mean for all        =>  a constant

Where each meets a place of its own in it, it is data rearranged over the examples, and is refused:

    x * cumsum(x, 0)      b meets row b           =>  refused
    x * x[::-1]

A loop over the examples, or over parts of them, is no other program: what differs from step to step
is data at a place of each part's own, as the row of an array is.

    for b: s = s + x[b] ; l[b] = f(x[b] * s)      =>  refused, as with cumsum
    for b: l[b] = f(x[b] * mean(x))               =>  a constant

A sum of data that goes on being summed, as `s` alone, is no meeting: it is a constant only where it
is used as one.

A constant may scale what the examples add to a gradient. It is no term of one: it would belong to
all examples alike, though the examples are in it.

    sum(f(w, x)) / sum(m)                         =>  a constant
    sum(w) * sum(x) * sum(m)                      =>  refused: whose share is what?
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from hlo_surgery.passes.example_axes.alignment.step_positions import POSITIONAL
from hlo_surgery.passes.example_axes.alignment.uniform import is_uniform
from hlo_surgery.passes.example_axes.lattice import (
    SHARED,
    Axes,
    Class,
    Local,
    Mixed,
    PerExample,
    Shared,
    Summed,
)
from hlo_surgery.passes.example_axes.loop_steps import varies
from hlo_surgery.passes.example_axes.reasons import PICKING, mixed
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import MIXING_HELP, Reason
from hlo_surgery.passes.ir.linearity import initial_operands
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.ir.source_lines import source_line

TERM = (
    "a constant made of the whole batch is a term of the gradient, of which no example's share "
    "is known"
)
UNDIVIDED = "sums over the batch are multiplied, and which of them is the constant is not known"
TERM_HELP = (
    "compute the constant before, and pass it as an argument of its own, as what is known to all "
    "examples; "
    "or ask for the statistics of other parameters"
)


def as_term(data: Reason) -> Reason:
    """Why data of the whole batch is refused as a term of a gradient."""
    if MIXING_HELP not in data.help:
        return data
    help = data.help.replace(MIXING_HELP, TERM_HELP) if data.op in PICKING else TERM_HELP
    return replace(data, why=f"{TERM}: {data.why}", help=help)


def demoted(
    axes: Axes, values: Sequence[Value], classes: Sequence[Class], summed: Collection[int]
) -> list[Class]:
    """The classes where these values, sums of data, count as constants: no sum is used so."""
    found = list(classes)
    for i in summed:
        known = classes[i]
        assert isinstance(known, Summed)
        what = (
            "a sum over the batch" if values[i] in axes.trained else "a sum of data over the batch"
        )
        reason = Reason(f"{what} is used as a constant", known.site.name, source_line(known.site))
        axes.data.setdefault(values[i], reason)
        found[i] = Shared(reason)
    return found


def as_constant(axes: Axes, value: Value, found: Class) -> Class:
    """Data that is mixed counts as a constant of the batch."""
    if isinstance(found, Mixed) and value not in axes.trained:
        axes.data.setdefault(value, found.reason)
        return Shared(found.reason)
    return found


def unlike(
    op: Operation, classes: Sequence[Class], along: Sequence[PerExample | None], size: int
) -> Reason | None:
    """Data of the whole batch, among the operands, that differs along the examples' axis.

    `along`: that axis in each operand. What has none is the same for all, unless it is written at
    some places only.
    """
    update = {"stablehlo.dynamic_update_slice": 1, "stablehlo.scatter": len(along) - 1}.get(op.name)
    lands = update is not None and along[0] is not None and along[update] is None
    for value, known, axis in zip(op.operands, classes, along, strict=True):
        data = data_in(known)
        if data and not (is_uniform(value, axis, size) if axis else not lands):
            return data
    return None


def rearranged(op: Operation, data: Reason) -> Mixed:
    """The class of what is made where examples meet places of their own in the batch's data."""
    why = "data of the whole batch, rearranged over the examples, meets each example's own values"
    return mixed(op, f"{why} ({data.op} at {data.where})")


def differing(
    axes: Axes, values: Sequence[Value], classes: Sequence[Class], local: Local
) -> dict[int, Reason]:
    """Which values beside a part of the batch are the batch's data, and differ from part to part.

    Where all that is mixed counts as constant, only sums that go on being summed are told apart.
    """
    loop = mlir.defining_operation(local.loop)
    assert loop is not None
    held = {
        i: _data(axes, value, known)
        for i, (value, known) in enumerate(zip(values, classes, strict=True))
    }
    taken = [i for i in held if isinstance(classes[i], Summed) or not axes.contribution]
    return {i: data for i in taken if (data := held[i]) and varies(axes, loop, values[i])}


def data_in(known: Class) -> Reason | None:
    """The whole batch's data in a value that no example reaches; examples' positions hold none."""
    return (
        known.data
        if isinstance(known, Shared) and known.data and known.data.why != POSITIONAL
        else None
    )


def initial_data(op: Operation, classes: Sequence[Class]) -> Reason | None:
    """Data of the whole batch on top of which an op sums."""
    onto = [classes[i] for i in initial_operands(op)]
    return next((c.data for c in onto if isinstance(c, Shared | Summed) and c.data), None)


def shared(classes: Iterable[Class]) -> Shared:
    """The class of what is made of Shared values: a product of sums, or data, or else positions."""
    held = [c for c in classes if isinstance(c, Shared) and c.data]
    return max(held, key=lambda c: (is_undivided(c), data_in(c) is not None), default=SHARED)


def is_undivided(known: Class) -> bool:
    """Whether a constant is a product of sums over the batch."""
    return isinstance(known, Shared) and known.data is not None and known.data.why == UNDIVIDED


def _data(axes: Axes, value: Value, known: Class) -> Reason | None:
    if isinstance(known, Summed) and value not in axes.trained:
        return known.data or Reason(
            "a sum of data over the batch", known.site.name, source_line(known.site)
        )
    return data_in(known)


def decided_apart(axes: Axes, op: Operation, predicate: Value, found: Class) -> Class:
    """What loops or branches make of examples where data that differs between parts decides."""
    data = data_in(axes.of(predicate))
    if axes.contribution or isinstance(found, Shared) or not data:
        return found
    loops = [loop for loop in mlir.enclosing_loops(op) if loop.results[0] in axes.part_loops]
    return rearranged(op, data) if any(varies(axes, loop, predicate) for loop in loops) else found
