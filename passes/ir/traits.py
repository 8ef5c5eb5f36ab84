"""Traits: what kind of op each is, and where it is linear: one row an op, for all passes.

    transpose     COPIES | MOVES     its elements elsewhere, all of them, none changed
    divide        ELEMENTWISE        linear in operand 0 alone

A rule about an op that is not here: how it is raised (`passes/raising/`), and by which factors it
reads its operands (`passes/structure/rules.py`).
"""

from dataclasses import dataclass
from enum import Enum, Flag, auto

Positions = frozenset[int]


class Kind(Flag):
    """What an op does, in words that several passes ask for."""

    ELEMENTWISE = auto()  # each element of the result is made of those at its place
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
    IN_SOLVES = auto()  # in the right-hand sides of a custom call that is a triangular solve
    FROM_INEXACT = auto()  # anywhere, if it converts floats or complex numbers


@dataclass(frozen=True)
class Traits:
    """The row of an op; `linear` is None where it is linear in no operand."""

    kinds: Kind
    linear: Linear | Positions | None = None


ELEMENTWISE, COPIES = Kind.ELEMENTWISE, Kind.COPIES
MOVES, PASSES, PICKS = Kind.MOVES, Kind.PASSES, Kind.PICKS
CONTRACTS, COMBINES, MIXES = Kind.CONTRACTS, Kind.COMBINES, Kind.MIXES
ANYWHERE, ONE_OF, IF_ADDING = Linear.ANYWHERE, Linear.ONE_OF, Linear.IF_ADDING
IF_ADDING_UPDATES, IN_SOLVES = Linear.IF_ADDING_UPDATES, Linear.IN_SOLVES
FROM_INEXACT = Linear.FROM_INEXACT


def _only(*positions: int) -> Positions:
    return frozenset(positions)


TRAITS = {
    "sdy.sharding_constraint": Traits(PASSES, ANYWHERE),
    "stablehlo.abs": Traits(ELEMENTWISE),
    "stablehlo.add": Traits(ELEMENTWISE, ANYWHERE),
    "stablehlo.and": Traits(ELEMENTWISE),
    "stablehlo.atan2": Traits(ELEMENTWISE),
    "stablehlo.bitcast_convert": Traits(ELEMENTWISE),
    "stablehlo.broadcast_in_dim": Traits(COPIES | MOVES, ANYWHERE),
    "stablehlo.cbrt": Traits(ELEMENTWISE),
    "stablehlo.ceil": Traits(ELEMENTWISE),
    "stablehlo.cholesky": Traits(MIXES),
    "stablehlo.clamp": Traits(ELEMENTWISE),
    "stablehlo.compare": Traits(ELEMENTWISE),
    "stablehlo.complex": Traits(ELEMENTWISE, ANYWHERE),
    "stablehlo.concatenate": Traits(Kind(0), ANYWHERE),
    "stablehlo.convert": Traits(ELEMENTWISE | COPIES | PASSES, FROM_INEXACT),
    "stablehlo.convolution": Traits(CONTRACTS | MIXES, ONE_OF),
    "stablehlo.cosine": Traits(ELEMENTWISE),
    "stablehlo.count_leading_zeros": Traits(ELEMENTWISE),
    "stablehlo.custom_call": Traits(MIXES, IN_SOLVES),
    "stablehlo.divide": Traits(ELEMENTWISE, _only(0)),
    "stablehlo.dot_general": Traits(CONTRACTS, ONE_OF),
    "stablehlo.dynamic_slice": Traits(PICKS, _only(0)),
    "stablehlo.dynamic_update_slice": Traits(Kind(0), _only(0, 1)),
    "stablehlo.exponential": Traits(ELEMENTWISE),
    "stablehlo.exponential_minus_one": Traits(ELEMENTWISE),
    "stablehlo.fft": Traits(MIXES, ANYWHERE),
    "stablehlo.floor": Traits(ELEMENTWISE),
    "stablehlo.gather": Traits(PICKS, _only(0)),
    "stablehlo.imag": Traits(ELEMENTWISE, ANYWHERE),
    "stablehlo.is_finite": Traits(ELEMENTWISE),
    "stablehlo.log": Traits(ELEMENTWISE),
    "stablehlo.log_plus_one": Traits(ELEMENTWISE),
    "stablehlo.logistic": Traits(ELEMENTWISE),
    "stablehlo.maximum": Traits(ELEMENTWISE),
    "stablehlo.minimum": Traits(ELEMENTWISE),
    "stablehlo.multiply": Traits(ELEMENTWISE, ONE_OF),
    "stablehlo.negate": Traits(ELEMENTWISE, ANYWHERE),
    "stablehlo.not": Traits(ELEMENTWISE),
    "stablehlo.optimization_barrier": Traits(PASSES, ANYWHERE),
    "stablehlo.or": Traits(ELEMENTWISE),
    "stablehlo.pad": Traits(Kind(0), ANYWHERE),
    "stablehlo.popcnt": Traits(ELEMENTWISE),
    "stablehlo.power": Traits(ELEMENTWISE),
    "stablehlo.real": Traits(ELEMENTWISE, ANYWHERE),
    "stablehlo.reduce": Traits(COMBINES, IF_ADDING),
    "stablehlo.reduce_precision": Traits(ELEMENTWISE, ANYWHERE),
    "stablehlo.reduce_window": Traits(COMBINES | MIXES, IF_ADDING),
    "stablehlo.remainder": Traits(ELEMENTWISE),
    "stablehlo.reshape": Traits(COPIES | MOVES, ANYWHERE),
    "stablehlo.reverse": Traits(MOVES | PICKS, ANYWHERE),
    "stablehlo.round_nearest_afz": Traits(ELEMENTWISE),
    "stablehlo.round_nearest_even": Traits(ELEMENTWISE),
    "stablehlo.rsqrt": Traits(ELEMENTWISE),
    "stablehlo.scatter": Traits(COMBINES, IF_ADDING_UPDATES),
    "stablehlo.select": Traits(ELEMENTWISE, _only(1, 2)),
    "stablehlo.select_and_scatter": Traits(MIXES),
    "stablehlo.shift_left": Traits(ELEMENTWISE),
    "stablehlo.shift_right_arithmetic": Traits(ELEMENTWISE),
    "stablehlo.shift_right_logical": Traits(ELEMENTWISE),
    "stablehlo.sign": Traits(ELEMENTWISE),
    "stablehlo.sine": Traits(ELEMENTWISE),
    "stablehlo.slice": Traits(MOVES | PICKS, ANYWHERE),
    "stablehlo.sqrt": Traits(ELEMENTWISE),
    "stablehlo.subtract": Traits(ELEMENTWISE, ANYWHERE),
    "stablehlo.tan": Traits(ELEMENTWISE),
    "stablehlo.tanh": Traits(ELEMENTWISE),
    "stablehlo.transpose": Traits(COPIES | MOVES, ANYWHERE),
    "stablehlo.triangular_solve": Traits(MIXES, _only(1)),
    "stablehlo.xor": Traits(ELEMENTWISE),
}


def ops_of(kinds: Kind) -> frozenset[str]:
    """The ops that are of all these kinds.

    >>> "stablehlo.dot_general" in ops_of(CONTRACTS), "stablehlo.reduce" in ops_of(CONTRACTS)
    (True, False)
    """
    return frozenset(name for name, traits in TRAITS.items() if kinds in traits.kinds)
