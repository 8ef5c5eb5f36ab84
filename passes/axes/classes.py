"""Classes: what a value of the module is to the examples.

    Shared     no example reaches it, or only as data of the batch that counts as a constant
    Batched    at index i of its batch digits it depends on example i alone; `summed` digits have
               been summed over: r + sum over them of c_i
    Mixed      neither is shown, and no gradient may be it

The batch is a few digits: (B,), or (M, b) where a microbatch reshape splits it. Of a Batched value
each of them lies in exactly one dimension, is the step of a loop around, is summed over, or is the
one place that `at` says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.structure.digits import Digit

NOWHERE: frozenset[Digit] = frozenset()
# Among what data varies along: places that constants gave to examples, as a matrix does that mixes
# them; and what is a product of sums, of which none is more a constant than another.
LAID_OUT, PRODUCT = Digit(0), Digit(0)


@dataclass(frozen=True)
class Shared:
    """No example's. `data`: the data of the batch in it, taken as a constant; `term`: why it may be
    no term of a gradient. `varies`: the batch digits along which such data may differ, from place
    to place or from step to step.
    """

    data: Reason | None = None
    term: Reason | None = None
    varies: frozenset[Digit] = NOWHERE


@dataclass(frozen=True)
class Batched:
    """The examples' own, or sums over them. `site`: the op that first summed; `term`: why the part
    of it that no example reaches may be no term of a gradient. `bare`: no example reaches it at
    all, but it lies along the batch, so that its row b is example b's. `laid_out`: constants gave
    examples places in the sum; `running`: a loop around goes on with it.
    """

    summed: frozenset[Digit] = NOWHERE
    at: Mapping[Digit, int] = field(default_factory=dict[Digit, int])
    site: Operation | None = None
    term: Reason | None = None
    bare: bool = False
    laid_out: bool = False
    running: bool = False


@dataclass(frozen=True)
class Mixed:
    """Examples meet, and not in a sum; or, where `unknown`, in a way that is not understood."""

    reason: Reason
    unknown: bool = False


Class = Shared | Batched | Mixed
SHARED, ROWS = Shared(), Batched()


def is_sum(known: Class) -> bool:
    """Whether a value is r + sum of c_b."""
    return isinstance(known, Batched) and bool(known.summed)


def is_rows(known: Class) -> bool:
    """Whether a value is the examples' own, summed nowhere."""
    return isinstance(known, Batched) and not known.summed


def is_free(known: Class) -> bool:
    """Whether nothing of any example is in a value."""
    return isinstance(known, Shared) and known.data is None


def joined(one: Class, other: Class, mixed: Mixed) -> Class:
    """The least class that holds for either of two values; `mixed` where none does."""
    match one, other:
        case (Mixed(), _):
            return one
        case (_, Mixed()):
            return other
        case (Shared(), Shared()):
            varies = one.varies | other.varies
            return Shared(one.data or other.data, one.term or other.term, varies)
        case (Shared() as constant, Batched() as rows) | (Batched() as rows, Shared() as constant):
            if constant.data and not rows.summed:
                return mixed
            return replace(rows, term=rows.term or (constant.term if rows.summed else None))
        case (Batched(), Batched()):
            if one.at != other.at:
                return mixed
            summed, term = one.summed | other.summed, one.term or other.term
            site, bare = one.site or other.site, one.bare and other.bare
            laid_out, running = one.laid_out or other.laid_out, one.running or other.running
            return Batched(summed, one.at, site, term, bare, laid_out, running)


def same(one: Class, other: Class) -> bool:
    """Whether two classes claim the same, whatever their reasons."""
    match one, other:
        case (Shared(), Shared()):
            kept = one.varies == other.varies
            return kept and (not one.data, not one.term) == (not other.data, not other.term)
        case (Batched(), Batched()):
            kept = (one.summed, one.at, one.bare) == (other.summed, other.at, other.bare)
            noted = [(not c.term, c.laid_out, c.running) for c in (one, other)]
            return kept and noted[0] == noted[1]
        case _:
            return type(one) is type(other)
