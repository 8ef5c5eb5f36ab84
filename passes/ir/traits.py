"""Traits: what kind of op each is, and where it is linear: one row an op, for all passes.

    transpose     EVALUATED | COPIES | MOVES     its elements elsewhere, all of them, none changed
    divide        ELEMENTWISE | EVALUATED        linear in operand 0 alone

A rule about an op that is not here: how it is raised (`passes/raising/`), and by which factors it
reads its operands (`passes/structure/rules.py`).
"""

from dataclasses import dataclass
from enum import Enum, Flag, auto

Positions = frozenset[int]


class Kind(Flag):
    """What an op does, in words that several passes ask for."""

    ELEMENTWISE = auto()  # each element of the result is made of those at its place
    EVALUATED = auto()  # its numbers are worth asking StableHLO's interpreter for
    COPIES = auto()  # the result holds every element of the operand, and nothing else
    MOVES = auto()  # elements of a gradient are put elsewhere, or dropped, and not changed
    PASSES = auto()  # elements stay at their places, and are the same but for rounding
    PICKS = auto()  # some elements, or all in another order
    CONTRACTS = auto()  # sums of products
    COMBINES = auto()  # elements are put together by the op in its body
    MIXES = auto()  # each element of the result is made of many, not by a sum along a dimension


class Linear(Enum):
    """Where an op is linear, other than at positions that are listed."""

    ANYWHERE = auto()  # in all operands jointly
    ONE_OF = auto()  # in each, the others being constants
    IF_ADDING = auto()  # anywhere, if its body adds
    IF_ADDING_UPDATES = auto()  # as a scatter is
    BY_TARGET = auto()  # as the custom call says by its name
    FROM_INEXACT = auto()  # anywhere, if it converts floats or complex numbers


@dataclass(frozen=True)
class Traits:
    """The row of an op; `linear` is None where it is linear in no operand."""

    kinds: Kind
    linear: Linear | Positions | None = None


ELEMENTWISE, EVALUATED, COPIES = Kind.ELEMENTWISE, Kind.EVALUATED, Kind.COPIES
MOVES, PASSES, PICKS = Kind.MOVES, Kind.PASSES, Kind.PICKS
CONTRACTS, COMBINES, MIXES = Kind.CONTRACTS, Kind.COMBINES, Kind.MIXES
ANYWHERE, ONE_OF, IF_ADDING = Linear.ANYWHERE, Linear.ONE_OF, Linear.IF_ADDING
IF_ADDING_UPDATES, BY_TARGET = Linear.IF_ADDING_UPDATES, Linear.BY_TARGET
FROM_INEXACT = Linear.FROM_INEXACT


def _only(*positions: int) -> Positions:
    return frozenset(positions)


TRAITS = {
    "sdy.sharding_constraint": Traits(PASSES, ANYWHERE),
    "stablehlo.abs": Traits(ELEMENTWISE),
    "stablehlo.add": Traits(ELEMENTWISE | EVALUATED, ANYWHERE),
    "stablehlo.and": Traits(ELEMENTWISE | EVALUATED),
    "stablehlo.atan2": Traits(ELEMENTWISE),
    "stablehlo.bitcast_convert": Traits(ELEMENTWISE),
    "stablehlo.broadcast_in_dim": Traits(EVALUATED | COPIES | MOVES, ANYWHERE),
    "stablehlo.cbrt": Traits(ELEMENTWISE),
    "stablehlo.ceil": Traits(ELEMENTWISE),
    "stablehlo.cholesky": Traits(MIXES),
    "stablehlo.clamp": Traits(ELEMENTWISE | EVALUATED),
    "stablehlo.compare": Traits(ELEMENTWISE | EVALUATED),
    "stablehlo.complex": Traits(ELEMENTWISE, ANYWHERE),
    "stablehlo.concatenate": Traits(EVALUATED, ANYWHERE),
    "stablehlo.constant": Traits(EVALUATED),
    "stablehlo.convert": Traits(ELEMENTWISE | EVALUATED | COPIES | PASSES, FROM_INEXACT),
    "stablehlo.convolution": Traits(CONTRACTS | MIXES, ONE_OF),
    "stablehlo.cosine": Traits(ELEMENTWISE),
    "stablehlo.count_leading_zeros": Traits(ELEMENTWISE),
    "stablehlo.custom_call": Traits(MIXES, BY_TARGET),
    "stablehlo.divide": Traits(ELEMENTWISE | EVALUATED, _only(0)),
    "stablehlo.dot_general": Traits(CONTRACTS, ONE_OF),
    "stablehlo.dynamic_slice": Traits(PICKS, _only(0)),
    "stablehlo.dynamic_update_slice": Traits(Kind(0), _only(0, 1)),
    "stablehlo.exponential": Traits(ELEMENTWISE),
    "stablehlo.exponential_minus_one": Traits(ELEMENTWISE),
    "stablehlo.fft": Traits(MIXES, ANYWHERE),
    "stablehlo.floor": Traits(ELEMENTWISE),
    "stablehlo.gather": Traits(PICKS, _only(0)),
    "stablehlo.imag": Traits(ELEMENTWISE, ANYWHERE),
    "stablehlo.iota": Traits(EVALUATED),
    "stablehlo.is_finite": Traits(ELEMENTWISE),
    "stablehlo.log": Traits(ELEMENTWISE),
    "stablehlo.log_plus_one": Traits(ELEMENTWISE),
    "stablehlo.logistic": Traits(ELEMENTWISE),
    "stablehlo.maximum": Traits(ELEMENTWISE | EVALUATED),
    "stablehlo.minimum": Traits(ELEMENTWISE | EVALUATED),
    "stablehlo.multiply": Traits(ELEMENTWISE | EVALUATED, ONE_OF),
    "stablehlo.negate": Traits(ELEMENTWISE | EVALUATED, ANYWHERE),
    "stablehlo.not": Traits(ELEMENTWISE | EVALUATED),
    "stablehlo.optimization_barrier": Traits(PASSES, ANYWHERE),
    "stablehlo.or": Traits(ELEMENTWISE | EVALUATED),
    "stablehlo.pad": Traits(EVALUATED, ANYWHERE),
    "stablehlo.popcnt": Traits(ELEMENTWISE),
    "stablehlo.power": Traits(ELEMENTWISE),
    "stablehlo.real": Traits(ELEMENTWISE, ANYWHERE),
    "stablehlo.reduce": Traits(COMBINES, IF_ADDING),
    "stablehlo.reduce_precision": Traits(ELEMENTWISE, ANYWHERE),
    "stablehlo.reduce_window": Traits(COMBINES | MIXES, IF_ADDING),
    "stablehlo.remainder": Traits(ELEMENTWISE | EVALUATED),
    "stablehlo.reshape": Traits(EVALUATED | COPIES | MOVES, ANYWHERE),
    "stablehlo.reverse": Traits(EVALUATED | MOVES | PICKS, ANYWHERE),
    "stablehlo.round_nearest_afz": Traits(ELEMENTWISE),
    "stablehlo.round_nearest_even": Traits(ELEMENTWISE),
    "stablehlo.rsqrt": Traits(ELEMENTWISE),
    "stablehlo.scatter": Traits(COMBINES, IF_ADDING_UPDATES),
    "stablehlo.select": Traits(ELEMENTWISE | EVALUATED, _only(1, 2)),
    "stablehlo.select_and_scatter": Traits(MIXES),
    "stablehlo.shift_left": Traits(ELEMENTWISE),
    "stablehlo.shift_right_arithmetic": Traits(ELEMENTWISE),
    "stablehlo.shift_right_logical": Traits(ELEMENTWISE),
    "stablehlo.sign": Traits(ELEMENTWISE),
    "stablehlo.sine": Traits(ELEMENTWISE),
    "stablehlo.slice": Traits(EVALUATED | MOVES | PICKS, ANYWHERE),
    "stablehlo.sqrt": Traits(ELEMENTWISE),
    "stablehlo.subtract": Traits(ELEMENTWISE | EVALUATED, ANYWHERE),
    "stablehlo.tan": Traits(ELEMENTWISE),
    "stablehlo.tanh": Traits(ELEMENTWISE),
    "stablehlo.transpose": Traits(EVALUATED | COPIES | MOVES, ANYWHERE),
    "stablehlo.triangular_solve": Traits(MIXES, _only(1)),
    "stablehlo.xor": Traits(ELEMENTWISE | EVALUATED),
}


def ops_of(kinds: Kind) -> frozenset[str]:
    """The ops that are of all these kinds.

    >>> "stablehlo.dot_general" in ops_of(CONTRACTS), "stablehlo.reduce" in ops_of(CONTRACTS)
    (True, False)
    """
    return frozenset(name for name, traits in TRAITS.items() if kinds in traits.kinds)
