"""Traits: what kind of op each is, and where it is linear: a row for all ops that are alike.

    transpose     Kind.COPIES | Kind.MOVES     its elements elsewhere, all of them, none changed
    divide        Kind.ELEMENTWISE             linear in operand 0 alone

A rule about an op that is not here: how it is raised (`passes/raising/`), and by which factors it
reads its operands (`passes/structure/structure.py`).

StableHLO attributes as Python values, with StableHLO's defaults for what is left out.

Linearity, per operand position: which operands of an op may be sums over the examples at once.

`f(r + sum c_b) = f(r) + sum of f's linear part at c_b` holds for these positions jointly, the
others being Shared. Never an index, a predicate or a divisor; never two factors of one product.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, Flag, auto
from typing import Any, cast

import numpy as np
from jax import lax

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, ir, stablehlo

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
    """A row of ops; `linear` is None where it is linear in no operand."""

    kinds: Kind
    linear: Linear | Positions | None = None


_ROWS = {
    Traits(Kind.ELEMENTWISE): (
        "stablehlo.abs",
        "stablehlo.and",
        "stablehlo.atan2",
        "stablehlo.bitcast_convert",
        "stablehlo.cbrt",
        "stablehlo.ceil",
        "stablehlo.clamp",
        "stablehlo.compare",
        "stablehlo.cosine",
        "stablehlo.count_leading_zeros",
        "stablehlo.exponential",
        "stablehlo.exponential_minus_one",
        "stablehlo.floor",
        "stablehlo.is_finite",
        "stablehlo.log",
        "stablehlo.log_plus_one",
        "stablehlo.logistic",
        "stablehlo.maximum",
        "stablehlo.minimum",
        "stablehlo.not",
        "stablehlo.or",
        "stablehlo.popcnt",
        "stablehlo.power",
        "stablehlo.remainder",
        "stablehlo.round_nearest_afz",
        "stablehlo.round_nearest_even",
        "stablehlo.rsqrt",
        "stablehlo.shift_left",
        "stablehlo.shift_right_arithmetic",
        "stablehlo.shift_right_logical",
        "stablehlo.sign",
        "stablehlo.sine",
        "stablehlo.sqrt",
        "stablehlo.tan",
        "stablehlo.tanh",
        "stablehlo.xor",
    ),
    Traits(Kind.ELEMENTWISE, Linear.ANYWHERE): (
        "stablehlo.add",
        "stablehlo.complex",
        "stablehlo.imag",
        "stablehlo.negate",
        "stablehlo.real",
        "stablehlo.reduce_precision",
        "stablehlo.subtract",
    ),
    Traits(Kind.COPIES | Kind.MOVES, Linear.ANYWHERE): (
        "stablehlo.broadcast_in_dim",
        "stablehlo.reshape",
        "stablehlo.transpose",
    ),
    Traits(Kind.PASSES, Linear.ANYWHERE): ("stablehlo.optimization_barrier",),
    Traits(Kind.MIXES): (
        "stablehlo.cholesky",
        "stablehlo.select_and_scatter",
    ),
    Traits(Kind(0), Linear.ANYWHERE): (
        "stablehlo.concatenate",
        "stablehlo.pad",
    ),
    Traits(Kind.PICKS, frozenset([0])): (
        "stablehlo.dynamic_slice",
        "stablehlo.gather",
    ),
    Traits(Kind.MOVES | Kind.PICKS, Linear.ANYWHERE): (
        "stablehlo.reverse",
        "stablehlo.slice",
    ),
    Traits(Kind.ELEMENTWISE | Kind.COPIES | Kind.PASSES, Linear.FROM_INEXACT): (
        "stablehlo.convert",
    ),
    Traits(Kind.CONTRACTS | Kind.MIXES, Linear.ONE_OF): ("stablehlo.convolution",),
    Traits(Kind.MIXES, Linear.IN_SOLVES): ("stablehlo.custom_call",),
    Traits(Kind.ELEMENTWISE, frozenset([0])): ("stablehlo.divide",),
    Traits(Kind.CONTRACTS, Linear.ONE_OF): ("stablehlo.dot_general",),
    Traits(Kind(0), frozenset([0, 1])): ("stablehlo.dynamic_update_slice",),
    Traits(Kind.MIXES, Linear.ANYWHERE): ("stablehlo.fft",),
    Traits(Kind.ELEMENTWISE, Linear.ONE_OF): ("stablehlo.multiply",),
    Traits(Kind.COMBINES, Linear.IF_ADDING): ("stablehlo.reduce",),
    Traits(Kind.COMBINES | Kind.MIXES, Linear.IF_ADDING): ("stablehlo.reduce_window",),
    Traits(Kind.COMBINES, Linear.IF_ADDING_UPDATES): ("stablehlo.scatter",),
    Traits(Kind.ELEMENTWISE, frozenset([1, 2])): ("stablehlo.select",),
    Traits(Kind.MIXES, frozenset([1])): ("stablehlo.triangular_solve",),
}
TRAITS = {name: traits for traits, names in _ROWS.items() for name in names}


def ops_of(kinds: Kind) -> frozenset[str]:
    """The ops that are of all these kinds.

    >>> "stablehlo.dot_general" in ops_of(Kind.CONTRACTS)
    True
    """
    return frozenset(name for name, traits in TRAITS.items() if kinds in traits.kinds)


def integer(op: Operation, name: str) -> int:
    """An integer attribute: `dimension = 1 : i64` -> 1."""
    return ir.IntegerAttr(op.attributes[name]).value


def integers(op: Operation, name: str) -> tuple[int, ...]:
    """An array of integers that the op must have: `array<i64: 1, 2>` -> (1, 2)."""
    return tuple(ir.DenseI64ArrayAttr(op.attributes[name]))


def ones_unless_given(op: Operation, name: str, length: int) -> tuple[int, ...]:
    """An optional array of integers that is all ones when left out: strides and dilations."""
    return integers(op, name) if name in op.attributes else (1,) * length


def padding(op: Operation, length: int) -> list[tuple[int, int]]:
    """A windowed op's optional `padding`, `dense<[[1, 0]]>` -> [(1, 0)]; zero if left out."""
    if "padding" not in op.attributes:
        return [(0, 0)] * length
    rows = np.array(ir.DenseIntElementsAttr(op.attributes["padding"])).reshape(length, 2)
    return [(int(low), int(high)) for low, high in rows]


# How much a pad adds in front, behind and between: cut off, where negative.
PADDINGS = ("edge_padding_low", "edge_padding_high", "interior_padding")


def pads(op: Operation) -> list[tuple[int, int, int]]:
    """What a pad adds along each dimension: [(low, high, interior)]."""
    low, high, between = (integers(op, name) for name in PADDINGS)
    return list(zip(low, high, between, strict=True))


def flag(op: Operation, name: str) -> bool:
    """An optional boolean attribute; false when left out."""
    return name in op.attributes and ir.BoolAttr(op.attributes[name]).value


def precision(op: Operation) -> tuple[lax.Precision, lax.Precision] | None:
    """The optional `precision_config`: one precision for each of the two operands. In place of an
    `algorithm`, each of which JAX lowers for some platforms only, it is the highest.
    """
    if "algorithm" in op.attributes:
        return lax.Precision.HIGHEST, lax.Precision.HIGHEST
    if "precision_config" not in op.attributes:
        return None
    lhs, rhs = (
        stablehlo.PrecisionAttr(entry).value
        for entry in ir.ArrayAttr(op.attributes["precision_config"])
    )
    return lax.Precision[lhs], lax.Precision[rhs]


def dot_numbers(op: Operation) -> Any:
    """What a dot_general does with each operand's dimensions."""
    return stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])


def convolution_numbers(op: Operation) -> Any:
    """What a convolution does with the dimensions of image, window and result."""
    return stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])


def reversed_dimensions(op: Operation) -> list[int]:
    """The dimensions of its window that a convolution reverses: by default none."""
    if "window_reversal" not in op.attributes:
        return []
    spatial = convolution_numbers(op).kernel_spatial_dimensions
    flags = ir.DenseBoolArrayAttr(op.attributes["window_reversal"])
    return [d for d, is_reversed in zip(spatial, flags, strict=True) if is_reversed]


def gather_numbers(op: Operation) -> Any:
    """The dimension numbers of a gather."""
    return stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])


def scatter_numbers(op: Operation) -> Any:
    """What a scatter does with the dimensions of updates and operand."""
    return stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])


TARGET = "call_target_name"
# Solves with the matrix as operand 0 and the right-hand sides as operand 1, linear in the latter.
SOLVE_CALLS = frozenset(
    f"{prefix}_{t}trsm{end}"
    for prefix in ("blas", "lapack")
    for t in "sdcz"
    for end in ("", "_ffi")
)

LETTERS = ("side", "uplo", "trans_x", "diag")

# Factorisations, and products with factors, that LAPACK does matrix by matrix, over leading batch
# dimensions; what JAX calls in its place for GPUs (`jax.lax.linalg`), and XLA has for TPUs.
_LAPACK = (
    "potrf",
    "geqrf",
    "geqp3",
    "orgqr",
    "ungqr",
    "ormqr",
    "unmqr",
    "getrf",
    "gesdd",
    "gesvd",
    "syevd",
    "heevd",
    "geev",
    "gehrd",
    "sytrd",
    "hetrd",
    "gtsv",
)
_SOLVER = (*_LAPACK, "gesvdj", "gesvdp")
_OF_GPUS = (
    *(f"solver_{name}_ffi" for name in _SOLVER),
    "hybrid_geqp3",
    "hybrid_eig_real",
    "hybrid_eig_comp",
    "sparse_gtsv2_ffi",
)
BATCHED_CALLS = frozenset(
    [
        *(f"lapack_{t}{name}{end}" for t in "sdcz" for name in _LAPACK for end in ("", "_ffi")),
        *(f"{maker}{name}" for maker in ("cu", "hip") for name in _OF_GPUS),
        *("LuDecomposition", "Qr", "Eigh", "ProductOfElementaryHouseholderReflectors"),
    ]
)
# As these do vector by vector.
VECTOR_CALLS = frozenset(f"{maker}_lu_pivots_to_permutation" for maker in ("cu", "hip"))

SUMMING, SUMMING_BODIES = ops_of(Kind.CONTRACTS), ops_of(Kind.COMBINES)


def is_batched_call(op: Operation) -> bool:
    """Whether the op is a custom call known to work matrix by matrix, or vector by vector, each on
    its own.
    """
    return mlir.text_attribute(op, TARGET) in BATCHED_CALLS | SOLVE_CALLS | VECTOR_CALLS


def own_dimensions(op: Operation) -> int:
    """How many dimensions a batched call's matrices or vectors have, behind those of the batch."""
    return 1 if mlir.text_attribute(op, TARGET) in VECTOR_CALLS else 2


def solve_letters(op: Operation) -> dict[str, str] | None:
    """What LAPACK is told of a triangular solve, as `side`: "L" of A X = B, "R" of X A = B; None
    where it does not say all of it.
    """
    config = cast(Any, mlir.attributes(op).get("mhlo.backend_config", {}))
    if mlir.text_attribute(op, TARGET) not in SOLVE_CALLS or any(n not in config for n in LETTERS):
        return None
    return {name: chr(ir.IntegerAttr(config[name]).value) for name in LETTERS}


def is_linear(op: Operation, positions: Collection[int]) -> bool:
    """Whether the op is linear (affine) in these operands jointly. Sums live in floats and complex
    numbers only.
    """
    row = TRAITS.get(op.name)
    if row is None or row.linear is None or not _allows(op, row.linear, frozenset(positions)):
        return False
    return all(map(mlir.is_inexact, [*op.results, *(op.operands[p] for p in positions)]))


def _allows(op: Operation, linear: Linear | Positions, positions: Positions) -> bool:
    match linear:
        case Linear.ANYWHERE:
            return True
        case Linear.ONE_OF:
            return len(positions) == 1
        case Linear.IF_ADDING:
            return all(added_results(op))
        case Linear.IF_ADDING_UPDATES:
            writes = overwrites(op) and flag(op, "unique_indices")
            return len(op.results) not in positions and (writes or all(added_results(op)))
        case Linear.IN_SOLVES:
            return solve_letters(op) is not None and [*positions] == [1]
        case Linear.FROM_INEXACT:
            return mlir.is_inexact(op.operands[0])
        case _:
            return positions <= linear


def sums(op: Operation, index: int) -> bool:
    """Whether a result sums floats or complex numbers over the dimensions the op reduces."""
    adds = added_results(op)[index] if op.name in SUMMING_BODIES else op.name in SUMMING
    return adds and mlir.is_inexact(op.results[index])


def added_results(op: Operation) -> list[bool]:
    """For a reduce, reduce_window or scatter: whether its body just adds, result by result."""
    return combined_by(op, "stablehlo.add")


def combined_by(op: Operation, name: str) -> list[bool]:
    """Whether the body of a reduce, reduce_window or scatter is just this op of the two values to
    combine, result by result.

    A body that combines one value with itself, or crosses its results, is none.
    """
    block = mlir.blocks(op)[0]
    returned, count = mlir.returned(block), len(op.results)
    pairs = [{block.arguments[i], block.arguments[count + i]} for i in range(count)]
    made = (mlir.made_by(value, name) for value in returned)
    return [op is not None and {*op.operands} == pair for op, pair in zip(made, pairs, strict=True)]


def initial_operands(op: Operation) -> range:
    """Positions of what an op sums on top of: a scatter's operand, a reduce's initial value."""
    count = len(op.results)
    if op.name == "stablehlo.scatter":
        return range(count)
    if op.name in ("stablehlo.reduce", "stablehlo.reduce_window"):
        return range(count, 2 * count)
    return range(0)


def overwrites(op: Operation) -> bool:
    """Whether a scatter's body returns the update."""
    block = mlir.blocks(op)[0]
    count = len(op.results)
    return mlir.returned(block) == list(block.arguments)[count:]
