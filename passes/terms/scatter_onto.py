"""Scatter onto: the sum of a scatter into zeros and of another value, as a scatter into that value.

    %s = scatter 0, %i, %u ; %c = convert %s ; %g = add %m, %c      =>      %g = scatter %m, %i, %u

The gradient of a table that is both looked up and multiplied by (a tied embedding and head) is such
a sum. Scattered into place, an example's rows cost what the rows take, and never a table of zeros.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import jax
import numpy as np
from jax import lax

from hlo_surgery.passes.ir.attributes import integers
from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.linearity import added_results
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.raising.indexing import scatter
from hlo_surgery.passes.raising.raise_op import raise_op
from hlo_surgery.passes.raising.table import Raised
from hlo_surgery.passes.terms.steps import Input, Step, is_made

PASSED_THROUGH = frozenset(["stablehlo.convert", "stablehlo.transpose"])


@dataclass(frozen=True)
class Onto:
    """An add as a scatter onto `other`: the scatter, and the ops that move its result there."""

    scatter: Step
    moves: tuple[Step, ...]
    other: Input

    @property
    def inputs(self) -> tuple[Input, ...]:
        """What is added to, the indices, and the updates."""
        return (self.other, *self.scatter.inputs[1:])

    @property
    def replaced(self) -> list[Value]:
        """What is no longer made."""
        return [step.op.results[0] for step in (self.scatter, *self.moves)]


def scatters_onto(steps: Sequence[Step]) -> dict[Value, Onto]:
    """By its result, each add of a scatter into zeros that serves nothing else."""
    makers = {step.op.results[0]: step for step in steps}
    uses = Counter(value for step in steps for value, _ in step.inputs)
    adds = [step for step in steps if step.op.name == "stablehlo.add"]
    found = {step.op.results[0]: _scattered(step, makers, uses) for step in adds}
    return {value: onto for value, onto in found.items() if onto is not None}


def _scattered(add: Step, makers: dict[Value, Step], uses: Counter[Value]) -> Onto | None:
    for key, other in zip(add.inputs, reversed(add.inputs), strict=True):
        chain = _behind(key, makers, uses)
        if chain and not add.is_site and _adds_to_zeros(chain[0].op) and _widens([*chain, add]):
            return Onto(chain[0], tuple(chain[1:]), other)
    return None


def _behind(key: Input, makers: dict[Value, Step], uses: Counter[Value]) -> list[Step]:
    """The steps that make a value for one use alone: moves, and the first that is none."""
    chain: list[Step] = []
    while (
        is_made(key, makers)
        and uses[key[0]] == 1
        and all(step.op.name in PASSED_THROUGH for step in chain)
    ):
        chain.insert(0, makers[key[0]])
        key = chain[0].inputs[0]
    return chain


def _adds_to_zeros(op: Operation) -> bool:
    if op.name != "stablehlo.scatter" or len(op.results) != 1:
        return False
    return is_splat(op.operands[0], 0) and all(added_results(op)) and raise_op(op) is not None


def _widens(steps: Sequence[Step]) -> bool:
    """Whether nothing is rounded on the way: the sum may be taken in its result's type."""
    dtypes = [dtype_of(step.op.results[0]) for step in steps]
    return all(np.can_cast(one, other) for one, other in pairwise(dtypes))


def scatter_onto(onto: Onto, dtype: np.dtype) -> Raised:
    """A function of what `inputs` names, that adds in `dtype`."""
    orders = [
        integers(step.op, "permutation")
        for step in onto.moves
        if step.op.name == "stablehlo.transpose"
    ]
    add = scatter(onto.scatter.op, dtype)
    assert add is not None

    def added(other: jax.Array, indices: jax.Array, updates: jax.Array) -> tuple[jax.Array, ...]:
        for order in reversed(orders):
            other = lax.transpose(other, [order.index(d) for d in range(len(order))])
        (total,) = add(other, indices, updates)
        for order in orders:
            total = lax.transpose(total, order)
        return (total,)

    return added
