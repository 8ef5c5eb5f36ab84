"""Apart: ops on some of the examples, as a Python loop over them has, beside constants.

    sum(m[i] * (x[i] @ w + b) for i in range(B))       m[0] meets example 0 alone
    mean(x[[0, 0, 1, 2]] @ w + b)                      b is in two rows of example 0

A constant that is added to what all examples bring is shared by all. Where examples are taken
apart, one may belong to some of them, though no example reaches it: as a term of a gradient it
would be given to the others too. And data of the batch of which each example meets a part of its
own is no constant that all share.
"""

from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any, cast

import numpy as np

from hlo_surgery.passes.dataflow.ancestors import ancestors
from hlo_surgery.passes.ir import linearity, mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.constants import COPIES
from hlo_surgery.passes.ir.errors import APART_HELP, Reason
from hlo_surgery.passes.ir.mlir import Block, Operation, Value
from hlo_surgery.passes.ir.source_lines import reason_at
from hlo_surgery.passes.ir.traits import Kind, ops_of
from hlo_surgery.passes.normalise.constraints import unmarked
from hlo_surgery.passes.owners.alignment.constant_parts import holds_constant, terms_of
from hlo_surgery.passes.owners.alignment.updated_rows import updates_some
from hlo_surgery.passes.owners.classes import (
    Class,
    Owned,
    is_shared,
    is_sum,
)
from hlo_surgery.passes.owners.constants import data_in, rearranged
from hlo_surgery.passes.owners.labelling.labels import Labels, counts_at, examples_at
from hlo_surgery.passes.owners.offsets import uneven_at
from hlo_surgery.passes.owners.owners import (
    Apart,
    Owners,
)
from hlo_surgery.passes.owners.shares.even_shares import UNKNOWN, have_even_shares
from hlo_surgery.passes.owners.shares.share_forms import where_groups_met

WHY = (
    "examples are taken apart, and a constant is added to this gradient: whether all have an equal "
    "share of it is not shown"
)
MORE = (
    "some examples have more rows here than others, and a constant is added to this gradient: "
    "whose it is, and in what parts, is not shown"
)
MORE_HELP = (
    "take each example once, and weigh its loss by how often it counts, with weights that are a "
    "batch argument; or repeat rows before, in what is passed as the batch"
)
MET = (
    "examples are taken apart, and a constant is added to this gradient where several groups of "
    "them have met: whether it is meant for all, or for which of them, is not shown"
)
MET_HELP = (
    "take the gradient of each group's loss by itself, with its share of the constant, and add "
    "these up, in a loop or not; of one loss of all groups the gradient does not say whose is what"
)
# What leaves elements as they are, and puts nothing beside them.
KEEPS_ELEMENTS = ops_of(Kind.MOVES) | {
    "stablehlo.convert",
    "stablehlo.dynamic_slice",
    "stablehlo.dynamic_update_slice",
}
# What picks elements, by numbers or truths.
PICKS = {
    "stablehlo.gather",
    "stablehlo.scatter",
    "stablehlo.dynamic_slice",
    "stablehlo.dynamic_update_slice",
    "stablehlo.select",
}


def find_apart(owners: Owners, block: Block) -> Apart:
    """Where a block takes examples apart, and the data that some of them meet alone."""
    first, alone = None, set[frozenset[int]]()
    is_uneven, of_steps = cache(has_more_of_some), cache(partial(_some_of_steps, owners.size))
    met, why = dict[Value, set[int]](), dict[Value, Reason]()
    for op in mlir.nested_operations(cast(Any, block.owner).operation):
        if not len(op.results):
            continue
        taken = _taken(owners, op)
        examples = frozenset[int]().union(*(_examples_in(known) for _, known in taken))
        if updates_some(owners, op) or _picks_unseen(owners, op):
            first = first or op
            alone.add(UNKNOWN)
        if not examples:
            continue
        if mlir.is_inexact(op.results[0]) and op.name not in mlir.CONTROL_FLOW:
            labels = _labels(taken)
            uneven = any(map(is_uneven, labels))
            first = first or (op if uneven or _has_some(owners, labels) else None)
            if op.name not in KEEPS_ELEMENTS and not _adds_terms(owners, op):
                alone |= of_steps(tuple(labels))
                alone |= {UNKNOWN} if uneven else set()
        for value, data in _data(taken):
            met.setdefault(value, set()).update(examples)
            why.setdefault(value, rearranged(op, data).reason)
    return Apart(first, frozenset(alone), {v: why[v] for v in _met_by_some(owners, block, met)})


def _picks_unseen(owners: Owners, op: Operation) -> bool:
    """Whether an op picks rows of the examples, and of which, or how many of each, is not known: it
    makes a sum of what examples own, and adds nothing up.
    """
    if op.name in PICKS:
        return (
            is_sum(owners.of(op.results[0]))
            and not linearity.sums(op, 0)
            and any(isinstance(known, Owned) and known.labels.examples for known in owners.at(op))
        )
    return any(
        is_sum(owners.of(result)) and bool(_examples_in(owners.of(value)))
        for result, value in _returned(op)
    )


def _returned(op: Operation) -> Iterator[tuple[Value, Value]]:
    """Each result of a loop or branch, with what a body returns for it."""
    if op.name not in mlir.CONTROL_FLOW:
        return
    bodies = op.regions[1:] if op.name == "stablehlo.while" else op.regions
    for body in bodies:
        returned = mlir.operands(mlir.return_operation(body.blocks[0]))
        yield from zip(op.results, returned, strict=True)


def _has_some(owners: Owners, owned: Sequence[Labels]) -> bool:
    """Whether an op takes some of the examples, or some of them at more steps than others."""
    examples = frozenset[int]().union(*(labels.examples for labels in owned))
    by_step = (labels for labels in owned if labels.steps and labels.examples)
    uneven = not all(labels.covers(owners.size) for labels in by_step)
    return 0 < len(examples) < owners.size or uneven


def _labels(taken: Sequence[tuple[Value, Class]]) -> list[Labels]:
    return [known.labels for _, known in taken if isinstance(known, Owned)]


def has_more_of_some(labels: Labels) -> bool:
    """Whether some examples have more elements than others, of those with any, at some step."""
    steps = labels.owners.shape[: labels.steps]
    return any(len(set(counts.values())) > 1 for counts in counts_at(labels, steps))


def _some_of_steps(size: int, labels: Sequence[Labels]) -> set[frozenset[int]]:
    """The examples of what an op takes at each step of the loops around, where these are some of
    `size`.
    """
    depth = max((own.steps for own in labels), default=0)
    shapes = [own.inside(depth).owners.shape[:depth] for own in labels]
    steps = np.broadcast_shapes(*shapes)
    each = zip(*(examples_at(own, steps) for own in labels), strict=True)
    found = {frozenset[int]().union(*sets) for sets in each}
    return {examples for examples in found if 0 < len(examples) < size}


def _adds_terms(owners: Owners, op: Operation) -> bool:
    """Whether an op adds some examples' terms to others', and nothing else."""
    is_addition = op.name in ("stablehlo.add", "stablehlo.subtract")
    terms = not any(is_shared(owners.of(v)) for v in op.operands)
    return is_addition and terms and is_sum(owners.of(op.results[0]))


def _met_by_some(owners: Owners, block: Block, met: dict[Value, set[int]]) -> list[Value]:
    """The data that some examples meet, and others do not, nor what was computed just alike."""
    partly = [v for v, examples in met.items() if len(examples) < owners.size]
    if not partly:
        return []
    first = _first_alike(owners, block)
    together: dict[Value, set[int]] = {}
    for value, examples in met.items():
        together.setdefault(first.get(value, value), set()).update(examples)
    return [v for v in partly if len(together[first.get(v, v)]) < owners.size]


def _first_alike(owners: Owners, block: Block) -> dict[Value, Value]:
    """For values that no example reaches, the first that is computed by the same ops of the same.

    Each round of a Python loop computes its own.
    """
    first: dict[Value, Value] = {}
    seen: dict[object, list[Value]] = {}
    for op in mlir.nested_operations(cast(Any, block.owner).operation):
        if len(op.regions) or not all(is_shared(owners.of(v)) for v in op.results):
            continue
        operands = tuple(first.get(v, v) for v in mlir.operands(op))
        key = (op.name, *unmarked(op).items(), operands)
        alike = seen.setdefault(key, mlir.results(op))
        first |= zip(op.results, alike, strict=True)
    return first


def _examples_in(known: Class) -> frozenset[int]:
    return known.labels.examples if isinstance(known, Owned) else frozenset()


def _taken(owners: Owners, op: Operation) -> list[tuple[Value, Class]]:
    """What an op takes, and a loop or branch takes from outside as well."""
    outside = mlir.captured(op) if op.name in mlir.CONTROL_FLOW else []
    own = zip(op.operands, owners.at(op), strict=False)
    return [*own, *((value, owners.of(value)) for value in outside)]


def _data(taken: Sequence[tuple[Value, Class]]) -> Iterator[tuple[Value, Reason]]:
    """What no example reaches of what an op takes, and holds data of the batch."""
    for value, known in taken:
        data = data_in(known) if is_shared(known) else None
        if data:
            yield _source(value), data


def _source(value: Value) -> Value:
    """What a value holds, wherever it was broadcast to, or carried through a loop."""
    while True:
        op = mlir.defining_operation(value)
        before = _carried_as(value) if op is None else None
        if op is not None and op.name in COPIES:
            before = op.operands[0]
        if before is None:
            return value
        value = before


def _carried_as(argument: Value) -> Value | None:
    """What a loop's argument is at all steps, if it is never changed."""
    loop = cast(Any, argument.owner).owner.operation
    if loop.name != "stablehlo.while":
        return None
    number = list(cast(Any, argument.owner).arguments).index(argument)
    body = loop.regions[1].blocks[0]
    returned = mlir.operands(mlir.return_operation(body))[number]
    return loop.operands[number] if returned == body.arguments[number] else None


def apart_reason(owners: Owners, block: Block, gradient: Value) -> Reason | None:
    """Why a gradient rests on constants of which some examples may have another share."""
    owners.apart = owners.apart or find_apart(owners, block)
    if owners.apart.data and owners.contributions is None:
        behind = ancestors([gradient])
        met = (reason for value, reason in owners.apart.data.items() if value in behind)
        if reason := next(met, None):
            return reason
    op = owners.apart.op
    if op is None or not holds_constant(owners, gradient):
        return None
    if have_even_shares(owners, gradient, owners.apart.examples):
        return None
    met = where_groups_met(owners, gradient)
    if met is not None and (where := mlir.defining_operation(met)):
        return reason_at(where, MET, MET_HELP)
    if any(map(has_more_of_some, _labels(_taken(owners, op)))):
        return reason_at(op, MORE, MORE_HELP)
    return reason_at(op, WHY, APART_HELP)


def uneven_reason(owners: Owners, block: Block, output: Value) -> Reason | None:
    """Why some examples may bring other constants to a sum than others do."""
    behind = closure([output], partial(terms_of, owners)) if owners.uneven else set[Value]()
    uneven = next((v for v in behind if v in owners.uneven), None)
    if uneven is None:
        return None
    op = mlir.defining_operation(uneven)
    assert op is not None
    # What a choice gives to some steps alone is no share that all have.
    if op.name not in mlir.CONTROL_FLOW and has_even_shares(owners, block, output):
        return None
    return uneven_at(op).reason


def has_even_shares(owners: Owners, block: Block, output: Value) -> bool:
    """Whether there are constants in an output of which all examples have as much each."""
    owners.apart = owners.apart or find_apart(owners, block)
    return have_even_shares(owners, output, owners.apart.examples)
