"""Unseen rows: what may lie row by row beside the examples where a dump no longer shows it.

    loss: mean %mask * (%x @ w + b) + ...       gradient of b: reduce %mask over [B], and others

`jax.jit` leaves out what only an unused result needs, here the product with %x, in which %mask
met the examples. What is left sums as many rows as there are, and is either a constant of all
examples or has a term for each of them.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from hlo_surgery.passes.dataflow.uniform import Along, Known
from hlo_surgery.passes.dataflow.vanishing import vanishes
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.constants import copied_from, is_splat, is_table
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Block, Operation, Value
from hlo_surgery.passes.ir.source_lines import reason_at
from hlo_surgery.passes.owners.alignment.constant_parts import shared_terms
from hlo_surgery.passes.owners.alignment.makings import (
    Forms,
    form,
    has_rows,
    is_counted,
    is_of_parameters,
    made_of,
    makers,
    starts_along,
    summed,
    whole,
)
from hlo_surgery.passes.owners.alignment.rows_of_matrices import is_put_in_order
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
ADDING = frozenset(
    f"stablehlo.{name}" for name in ("add", "subtract", "dot_general", "reduce", "reduce_window")
)
ADD, SCATTER = "stablehlo.add", "stablehlo.scatter"
# Ops that put an operand among other elements, and which.
PUTTING = {"stablehlo.pad": 0, "stablehlo.dynamic_update_slice": 1, SCATTER: -1}


class Asked(NamedTuple):
    """What rows may be the examples': where their number is a multiple of theirs or in `sizes`, and
    they are not the rows of `parameters` (`parameters_of`). `known`: what is uniform.
    """

    owners: Owners
    parameters: Mapping[Value, bool]
    sizes: set[int]
    known: Known

    def may_be_rows(self, size: int) -> bool:
        """Whether the examples may have so many rows together."""
        return size % self.owners.size == 0 or size in self.sizes

    def is_of_weights(self, axes: Sequence[Along]) -> bool:
        """Whether the rows along axes that meet are those of a parameter's weights, all reached by
        all examples, of which a whole dimension lies there; of B rows only where nothing else has
        any but what is counted, as an identity.
        """
        starts = [start for along in axes for start in starts_along(along, self.known)]
        parameters, known, size = self.parameters, self.known, axes[0][-1]
        own = [each for each in starts if is_of_parameters(each, parameters, known)]
        behind = closure([v for v, axis, _ in own if axis.is_whole], made_of)
        weights = [v for v in parameters if v in behind and size in mlir.shape(v)]
        others = [each[0] for each in starts if each not in own]
        return any(parameters[v] for v in weights) and (
            size != self.owners.size or all(is_counted(v, parameters) for v in others)
        )


def unseen_reason(owners: Owners, parameters: Mapping[Value, bool], output: Value) -> Reason | None:
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
        sizes = _numbers_of_rows(owners) if terms else set[int]()
        asked = Asked(owners, parameters, sizes, Known())
        op = next(filter(None, (_op_on_rows(asked, term) for term in terms)), None)
    return op and reason_at(op, UNSEEN, UNSEEN_HELP)


def _op_on_rows(asked: Asked, term: Value) -> Operation | None:
    """The first op on rows that may be the examples', or, where nothing is of the parameters, those
    of groups of them.
    """
    behind = closure([term], made_of)
    if behind.isdisjoint(asked.parameters):
        asked = asked._replace(sizes=asked.sizes | set(range(2, asked.owners.size)))
    ways = (_sums_rows, _puts_rows, _is_looped)
    return next((op for op in makers(behind) if any(way(asked, op) for way in ways)), None)


def _sums_rows(asked: Asked, op: Operation) -> bool:
    """Whether an op sums rows that differ, and not by parameters alone."""
    axes = [axes for axes in summed(op) if asked.may_be_rows(axes[0][-1])]
    others = (each for each in axes if not asked.is_of_weights(each))
    return any(has_rows(along, asked.parameters, asked.known) for each in others for along in each)


def _is_looped(asked: Asked, op: Operation) -> bool:
    """Whether an op is in a loop that may add something up with a step for each row: what differs
    by step may be anything.
    """
    loops = filter(_adds_up, mlir.enclosing_loops(op))
    counted = [counted_loop(asked.owners, loop) for loop in loops]
    return any(loop is None or asked.may_be_rows(loop.trips) for loop in counted)


def _adds_up(loop: Operation) -> bool:
    """Whether a loop may have sums of its own: one that permutes pivots, say, has none."""
    if any(map(mlir.is_inexact, loop.results)):
        return True
    within = mlir.nested_operations(loop)
    return any(op.name in ADDING and not any(map(_is_number, op.operands)) for op in within)


def _is_number(value: Value) -> bool:
    """Whether a value is a constant of one number, as a counter adds at each step."""
    op = mlir.defining_operation(copied_from(value))
    return op is not None and op.name == "stablehlo.constant" and not is_table(op)


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


def parameters_of(owners: Owners, block: Block, gradients: Collection[int]) -> dict[Value, bool]:
    """Arguments of floats that are the gradients' parameters: whose shape as many of these have;
    and whether each of them is a sum over the examples.
    """
    outputs = mlir.operands(mlir.return_operation(block))
    sums: dict[tuple[int, ...], list[bool]] = defaultdict(list)
    for value in (outputs[number] for number in gradients):
        sums[mlir.shape(value)].append(is_sum(owners.of(value)))
    own = [v for v in block.arguments if v in owners.trained and mlir.is_inexact(v)]
    given = Counter(map(mlir.shape, own))
    asked = {v: sums[mlir.shape(v)] for v in own}
    return {v: all(alike) for v, alike in asked.items() if given[mlir.shape(v)] <= len(alike)}


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


def _puts_rows(asked: Asked, op: Operation) -> bool:
    """Whether a row for each example is put among others, as in the gradient of a slice, or of rows
    that are looked up.
    """
    if op.name not in PUTTING or not len(op.results):
        return False
    value, result = mlir.operands(op)[PUTTING[op.name]], op.results[0]
    size = asked.owners.size
    pairs = zip(mlir.shape(value), mlir.shape(result), strict=False)
    longer = any(own == size < length for own, length in pairs)
    looked_up = op.name == SCATTER and _looks_up(asked, op, value)
    return (longer or looked_up) and not vanishes(value)


def _looks_up(asked: Asked, scatter: Operation, rows: Value) -> bool:
    size = asked.owners.size
    counted = [whole(rows, dim) for dim, n in enumerate(mlir.shape(rows)) if n % size == 0]
    of_weights = all(asked.is_of_weights([along]) for along in counted)
    return not (of_weights or is_put_in_order(scatter))
