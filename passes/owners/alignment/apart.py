"""Apart: constants that meet some of the examples, and not others.

    sum(m[i] * (x[i] @ w + b) for i in range(B))       m[0] meets example 0 alone

A constant that is added to what all examples bring is shared by all. One that was met by some
alone belongs to these, though no example reaches it: as a term of a gradient it would be given to
others too. And data of the batch of which each example meets a part of its own is no constant that
all share.
"""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from hlo_surgery.passes.dataflow.ancestors import ancestors
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import elements, is_splat
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Block, Operation, Value
from hlo_surgery.passes.ir.source_lines import source_line
from hlo_surgery.passes.owners.alignment.constant_parts import has_constant_part
from hlo_surgery.passes.owners.classes import (
    Apart,
    Class,
    Owned,
    Owners,
    has_owners,
    is_shared,
    is_sum,
)
from hlo_surgery.passes.owners.constants import data_in, rearranged
from hlo_surgery.passes.owners.labelling.labels import NONE

WHY = "a constant meets some of the examples and not others, and is added to this gradient"
HELP = (
    "write the loss with jax.vmap or jax.lax.map, and not example by example; "
    "pass what differs from one to another as a batch argument"
)
ADDS = frozenset(["stablehlo.add", "stablehlo.subtract"])
PASSED = frozenset(
    f"stablehlo.{name}" for name in ("broadcast_in_dim", "reshape", "convert", "transpose")
)


def constants_apart(owners: Owners, block: Block) -> dict[Value, Apart]:
    """The constants of a block that meet some of the examples alone, each with an op where it
    does.
    """
    met, where = dict[object, set[int]](), dict[object, tuple[Value, Apart]]()
    for op in mlir.nested_operations(cast(Any, block.owner).operation):
        if op.name in mlir.CONTROL_FLOW or not len(op.results):
            continue
        classes = owners.at(op)
        examples = {b for c in classes for b in _examples_in(c)}
        for value, data in _constants(op, classes) if examples else ():
            source = _source(value)
            key = _key_of(source)
            met.setdefault(key, set()).update(examples)
            where.setdefault(key, (source, Apart(op, data)))
    return dict(where[key] for key, examples in met.items() if len(examples) < owners.size)


def _examples_in(known: Class) -> set[int]:
    if not isinstance(known, Owned) or known.is_shared:
        return set()
    return {int(b) for b in np.unique(known.labels.owners) if b != NONE}


def _constants(op: Operation, classes: Sequence[Class]) -> Iterator[tuple[Value, Reason | None]]:
    """The operands that no example reaches, but for zeros and numbers of places, with the data that
    they hold. What is added is an offset of what examples own.
    """
    if op.name in ADDS:
        return
    for value, known in zip(op.operands, classes, strict=False):
        if is_shared(known) and mlir.is_inexact(value) and not is_splat(value, 0):
            yield value, data_in(known)


def _source(value: Value) -> Value:
    """What a value holds, wherever it was broadcast to, or carried through a loop."""
    while True:
        op = mlir.defining_operation(value)
        before = _carried_as(value) if op is None else None
        if op is not None and op.name in PASSED:
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


def _key_of(value: Value) -> object:
    """Constants of one number are one, wherever they are written."""
    op = mlir.defining_operation(value)
    if op is None or op.name != "stablehlo.constant":
        return value
    numbers = np.unique(elements(op))
    return (str(numbers.dtype), numbers.tobytes()) if numbers.size == 1 else value


def apart_reason(owners: Owners, gradient: Value) -> Reason | None:
    """Why a gradient rests on constants that meet some of the examples alone."""
    if not owners.apart:
        return None
    behind = ancestors([gradient])
    for value, met in owners.apart.items():
        if met.data and owners.contributions is None and value in behind:
            return rearranged(met.op, met.data).reason
    if not _has_constant(owners, gradient):
        return None
    op = next(iter(owners.apart.values())).op
    return Reason(WHY, op.name, source_line(op), HELP)


def _has_constant(owners: Owners, gradient: Value) -> bool:
    """Whether a gradient holds something that no example brings."""
    known = owners.of(gradient)
    if is_sum(known):
        return has_constant_part(owners, gradient)
    return not has_owners(known) and not is_splat(gradient, 0)
