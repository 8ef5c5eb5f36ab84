"""Classes: what a value of the module is to the examples, a chain Owned <= Summed <= Mixed.

    Owned    every element depends on one example at most, its owner
    Summed   r + sum of c_b, c_b depending on example b alone and r on none
    Mixed    neither is shown

Owned is a case of Summed: c_b is the value with what others own at zero.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import MIXING_HELP, Reason
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.ir.source_lines import reason_at, source_line
from hlo_surgery.passes.ir.traits import Kind, ops_of
from hlo_surgery.passes.owners.following.terms import Term
from hlo_surgery.passes.owners.labelling.labels import Labels


@dataclass(frozen=True)
class Owned:
    """Every element depends on one example at most.

    `data`: elements that nobody owns hold data of the whole batch, taken as a constant. `offset`:
    owned elements may hold a constant that is added to what rests on their example. `vacant`: what
    nobody owns is zero.
    """

    labels: Labels
    data: Reason | None = None
    offset: bool = False
    vacant: bool = False

    @property
    def filled(self) -> bool:
        """Whether some elements are nobody's, and may be other than zero."""
        return self.labels.has_nobodys and not self.vacant

    @property
    def is_shared(self) -> bool:
        """Whether no example reaches the value."""
        return self.labels.is_nobodys


@dataclass(frozen=True)
class Summed:
    """r + sum of c_b. `site` is the op that summed first; `data` is set where r holds data of the
    whole batch.

    `instead`: the class of a sum of data if what was summed before counts as a constant.
    """

    site: Operation
    data: Reason | None = None
    instead: Owned | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Mixed:
    """Examples meet, and not in a sum; or, where `unknown`, in a way that is not understood."""

    reason: Reason
    unknown: bool = False


@dataclass(frozen=True)
class Crossed:
    """In contributions alone: an element is computed by several examples, by each of these
    labellings by another, as in a matrix of similarities; those of the others are constants to it.
    """

    places: tuple[Labels, ...]


@dataclass(frozen=True)
class Followed:
    """Every element depends on one example at most, as `term` says when the program runs; what
    meets others there is found by checks. `given`: it came through a mark of constants.
    """

    term: Term
    given: bool = False


@dataclass(frozen=True)
class Paired:
    """Every element depends on two examples at most, as where rows meet rows: on those that two
    terms say. `masked`: something has told pairs apart that may count and others.
    """

    one: Term
    other: Term
    masked: bool


Class = Owned | Summed | Mixed | Crossed | Followed | Paired
TOO_MANY = "the examples lie in too many places to follow"
PICKING, ELEMENTWISE = ops_of(Kind.PICKS), ops_of(Kind.ELEMENTWISE)
PICKED = "examples are taken out of the batch, or in another order, and meet others"
APART = (
    "each example meets others: the operands hold the examples along different or divided "
    "dimensions"
)
DISAGREE = "devices return different values for an output that is said to be the same on all"
DISAGREE_HELP = "add jax.lax.pmean over all the axes that the batch is split over"
MOVED = "values are moved or combined along the example axis"
PICKING_HELP = (
    "permute, choose or mix examples before the call; of examples of several rows, which lie one "
    "behind the other, pass rows_per_example=..., and keep an index within its example's rows by "
    f"jnp.clip(i, 0, rows - 1); else {MIXING_HELP}"
)
# Of what a loop reads or writes block by block, as the kernels that JAX interprets do.
BLOCKS_HELP = (
    "if this is a kernel, which JAX interprets here, say that it takes the examples one by one, by "
    f"hs.per_example_call(fn, in_axes, out_axes) around it; {PICKING_HELP}"
)
RANKING_HELP = (
    "rank examples before the call, and pass what comes of it, such as a weight for each, as a "
    f"batch argument; else {MIXING_HELP}"
)


def mixed(op: Operation, why: str, unknown: bool = False, help: str = MIXING_HELP) -> Mixed:
    """The class of a value that this op mixes, or of which nothing is known."""
    if is_first_devices(op):
        return Mixed(disagreement(op), unknown)
    return Mixed(reason_at(op, why, _fitting(op, why) if help == MIXING_HELP else help), unknown)


def _fitting(op: Operation, why: str) -> str:
    """The way out that fits the op."""
    if op.name == "stablehlo.sort":
        return RANKING_HELP
    if op.name.startswith("stablehlo.dynamic") and mlir.enclosing_loops(op):
        return BLOCKS_HELP
    return PICKING_HELP if _is_moved(op, why) else MIXING_HELP


def is_first_devices(op: Operation) -> bool:
    """Whether this marks the first device's value where all should agree: `max(x, x)`."""
    return op.name == "stablehlo.maximum" and op.operands[0] == op.operands[1]


def disagreement(op: Operation) -> Reason:
    """Why the first device's value is not taken for that of all, which act on other examples."""
    return Reason(DISAGREE, "sdy.manual_computation", source_line(op), DISAGREE_HELP)


def _is_moved(op: Operation, why: str) -> bool:
    """Whether examples meet because they were moved among each other's places, as in mixup."""
    return op.name in PICKING or why == MOVED or (why == APART and op.name in ELEMENTWISE)


def is_zero(known: Class) -> bool:
    """Whether all of a value is known to be zero."""
    return isinstance(known, Owned) and known.is_shared and known.vacant


def is_shared(known: Class) -> bool:
    """Whether no example reaches a value of this class."""
    return isinstance(known, Owned) and known.is_shared


def has_owners(known: Class) -> bool:
    """Whether elements of a value of this class have owners."""
    return isinstance(known, Owned) and not known.is_shared


def has_nobodys(known: Class) -> bool:
    """Whether some elements of an owned value are nobody's."""
    return isinstance(known, Owned) and known.labels.has_nobodys


def has_one_each(known: Class) -> bool:
    """Whether elements have owners, and no example two of them at a step."""
    if not isinstance(known, Owned) or known.is_shared:
        return False
    labels = known.labels
    count = math.prod(labels.shape)
    rows = labels.owners.reshape(-1, math.prod(labels.owners.shape[labels.steps :]))
    return all(np.unique(row).size == count for row in rows)


def is_sum(known: Class) -> bool:
    """Whether a value of this class is a sum over the examples."""
    return isinstance(known, Summed)


def is_constant_or_sum(known: Class) -> bool:
    """Whether no example has a place in a value, but perhaps a term."""
    return isinstance(known, Summed) or is_shared(known)


def is_bare(known: Class) -> bool:
    """Whether a value holds neither an example nor data of any."""
    return isinstance(known, Owned) and known.is_shared and known.data is None


def owned_operands(classes: Sequence[Class]) -> frozenset[int]:
    """The positions of those that examples reach without a sum."""
    return frozenset(i for i, c in enumerate(classes) if isinstance(c, Owned) and not c.is_shared)


def summed_operands(classes: Sequence[Class]) -> frozenset[int]:
    """The positions of sums over the examples."""
    return frozenset(i for i, c in enumerate(classes) if isinstance(c, Summed))
