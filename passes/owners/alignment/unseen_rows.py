"""Unseen rows: what may lie row by row beside the examples where a dump no longer shows it.

    loss: mean %mask * (%x @ w + b) + ...       gradient of b: reduce %mask over [B], and others

`jax.jit` leaves out what only an unused result needs, here the product with %x, in which %mask
met the examples. What is left sums as many rows as there are, and is either a constant of all
examples or has a term for each of them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from operator import mul

from hlo_surgery.passes.dataflow.uniform import Known
from hlo_surgery.passes.dataflow.vanishing import vanishes
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Block, Operation, Value
from hlo_surgery.passes.ir.source_lines import reason_at
from hlo_surgery.passes.owners.alignment.constant_parts import shared_terms
from hlo_surgery.passes.owners.alignment.makings import (
    Forms,
    form,
    has_rows,
    made_of,
    makers,
    summed,
    whole,
)
from hlo_surgery.passes.owners.classes import Owned, is_sum
from hlo_surgery.passes.owners.labelling.indices import counted_loop
from hlo_surgery.passes.owners.owners import Owners

UNSEEN = (
    "a part of this gradient rests on no example, and may have a term for each: the module lacks "
    "what none of its outputs needs, which would show it"
)
UNSEEN_HELP = (
    "let the module show all of the loss: return it with the gradients, as jax.value_and_grad "
    "does, or lower with jax.jit(..., keep_unused=True); and pass what has a row for each example "
    "(a dropout mask, a weight) as a batch argument"
)
ADD, SCATTER = "stablehlo.add", "stablehlo.scatter"
# Ops that put an operand among other elements, and which.
PUTTING = {"stablehlo.pad": 0, "stablehlo.dynamic_update_slice": 1, SCATTER: -1}


def unseen_reason(owners: Owners, parameters: Collection[Value], output: Value) -> Reason | None:
    """Why a constant part of an output may have a term for each example; None where it has not.

    To be asked of modules that may lack what no output needs, and do not show all (`shows_all`).
    """
    # Those by a weight of zero count, and what a sum starts from does not.
    shared = shared_terms(owners, output)
    weighted = [term for v in shared for term in _terms(v) if not is_splat(term, 0)]
    terms = [term for term in weighted if not vanishes(term)]
    if terms and _are_weighted(weighted, owners.size):
        op = makers(terms)[0]
    else:
        sizes, known = _numbers_of_rows(owners) if terms else set[int](), Known()
        found = (_op_on_rows(owners, term, parameters, sizes, known) for term in terms)
        op = next(filter(None, found), None)
    return op and reason_at(op, UNSEEN, UNSEEN_HELP)


def _op_on_rows(
    owners: Owners, term: Value, parameters: Collection[Value], sizes: set[int], known: Known
) -> Operation | None:
    """The first op on rows that may be the examples', or, where nothing is of the parameters, those
    of groups of them.
    """
    behind = closure([term], made_of)
    if behind.isdisjoint(parameters):
        sizes = sizes | set(range(2, owners.size))

    def is_of_rows(size: int) -> bool:
        return size % owners.size == 0 or size in sizes

    for op in makers(behind):
        along = [each for each in map(whole, summed(op)) if is_of_rows(each[-1])]
        has_any = any(has_rows(each, parameters, known) for each in along)
        if has_any or _puts_rows(owners, op) or _is_looped(owners, op, is_of_rows):
            return op
    return None


def _is_looped(owners: Owners, op: Operation, is_of_rows: Callable[[int], bool]) -> bool:
    """Whether an op is in a loop that may have a step for each row: what differs by step may be
    anything.
    """
    counted = [counted_loop(owners, loop) for loop in mlir.enclosing_loops(op)]
    return any(loop is None or is_of_rows(loop.trips) for loop in counted)


def shows_all(owners: Owners, block: Block, gradients: Collection[int]) -> bool:
    """Whether a module has all of its loss: a number that parameters reach and that is a sum over
    the examples, which is returned beside the gradients, or which nothing uses.
    """
    outputs = enumerate(mlir.operands(mlir.return_operation(block)))
    returned = [value for number, value in outputs if number not in gradients]
    unused = [v for op in mlir.operations(block) for v in op.results if not any(v.uses)]
    return any(_is_loss(owners, value) for value in [*returned, *unused])


def _is_loss(owners: Owners, value: Value) -> bool:
    is_number = mlir.is_inexact(value) and not mlir.shape(value)
    return is_number and value in owners.trained and is_sum(owners.of(value))


def _numbers_of_rows(owners: Owners) -> set[int]:
    """How many rows the examples have together: sizes of what holds them, reshaped or not."""
    found = {owners.size}
    for value, known in owners.classes.items():
        if isinstance(known, Owned):
            shape = mlir.shape(value)
            first = next(
                (dim for dim in range(len(shape)) if known.labels.varies_along(dim)), len(shape)
            )
            found.update(accumulate(shape[first:], mul))
    return found


def parameters_of(owners: Owners, block: Block) -> set[Value]:
    """Arguments of floats that are the gradients' parameters: whose shape as many outputs have."""
    outputs = Counter(map(mlir.shape, mlir.operands(mlir.return_operation(block))))
    own = [v for v in block.arguments if v in owners.trained and mlir.is_inexact(v)]
    given = Counter(map(mlir.shape, own))
    return {v for v in own if given[mlir.shape(v)] <= outputs[mlir.shape(v)]}


def _terms(value: Value) -> list[Value]:
    """What is added up in a value."""
    found: list[Value] = []
    pending = [value]
    while pending:
        one = pending.pop()
        op = mlir.defining_operation(one)
        if op is not None and op.name == ADD:
            pending += mlir.operands(op)
        else:
            found.append(one)
    return found


def _are_weighted(terms: Sequence[Value], size: int) -> bool:
    """Whether as many terms as examples are alike but for their numbers, as where a Python loop
    over the examples adds them.
    """
    seen: Forms = {}
    alike = Counter(form(term, seen) for term in set(terms))
    return any(count >= size for count in alike.values())


def _puts_rows(owners: Owners, op: Operation) -> bool:
    """Whether a row for each example is put among others, as in the gradient of a slice, or of rows
    that are looked up.
    """
    if op.name not in PUTTING or not len(op.results):
        return False
    value, result = mlir.operands(op)[PUTTING[op.name]], op.results[0]
    pairs = zip(mlir.shape(value), mlir.shape(result), strict=False)
    longer = any(own == owners.size < whole for own, whole in pairs)
    looked_up = op.name == SCATTER and any(n % owners.size == 0 for n in mlir.shape(value))
    return (longer or looked_up) and not vanishes(value)
