"""Linearity, per operand position: which operands of an op may be sums over the examples at once.

`f(r + sum c_b) = f(r) + sum of f's linear part at c_b` holds for these positions jointly, the
others being Shared. Never an index, a predicate or a divisor; never two factors of one product.
"""

from typing import Any, cast

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import flag
from hlo_surgery.passes.ir.mlir import Operation, ir
from hlo_surgery.passes.ir.traits import COMBINES, CONTRACTS, TRAITS, Linear, Positions, ops_of

TARGET = "call_target_name"
# Solves with the matrix as operand 0 and the right-hand sides as operand 1, linear in the latter.
SOLVE_CALLS = frozenset(
    f"{prefix}_{t}trsm{end}"
    for prefix in ("blas", "lapack")
    for t in "sdcz"
    for end in ("", "_ffi")
)

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

SUMMING, SUMMING_BODIES = ops_of(CONTRACTS), ops_of(COMBINES)


def is_batched_call(op: Operation) -> bool:
    """Whether the op is a custom call known to work matrix by matrix, or vector by vector, each on
    its own.
    """
    known = BATCHED_CALLS | SOLVE_CALLS | VECTOR_CALLS
    return op.name == "stablehlo.custom_call" and mlir.text_attribute(op, TARGET) in known


def own_dimensions(op: Operation) -> int:
    """How many dimensions a batched call's matrices or vectors have, behind those of the batch."""
    return 1 if mlir.text_attribute(op, TARGET) in VECTOR_CALLS else 2


def solves_from_left(op: Operation) -> bool | None:
    """Whether a triangular solve is of A X = B, not X A = B; None where it does not say."""
    if (
        "mhlo.backend_config" not in op.attributes
        or mlir.text_attribute(op, TARGET) not in SOLVE_CALLS
    ):
        return None
    config = cast(Any, op.attributes["mhlo.backend_config"])
    return int(ir.IntegerAttr(config["side"]).value) == ord("L") if "side" in config else None


def is_linear(op: Operation, positions: Positions) -> bool:
    """Whether the op is linear (affine) in these operands jointly. Sums live in floats and complex
    numbers only.
    """
    row = TRAITS.get(op.name)
    if row is None or row.linear is None or not _allows(op, row.linear, positions):
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
            return mlir.text_attribute(op, TARGET) in SOLVE_CALLS and [*positions] == [1]
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
    block = cast(Any, op.regions[0].blocks[0])
    returned, count = mlir.operands(mlir.return_operation(block)), len(op.results)
    pairs = [{block.arguments[i], block.arguments[count + i]} for i in range(count)]
    return [_is_of_both(name, value, pair) for value, pair in zip(returned, pairs, strict=True)]


def _is_of_both(name: str, value: mlir.Value, pair: set[Any]) -> bool:
    op = mlir.defining_operation(value)
    return op is not None and op.name == name and set(op.operands) == pair


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
    block = cast(Any, op.regions[0].blocks[0])
    count = len(op.results)
    return mlir.operands(mlir.return_operation(block)) == list(block.arguments)[count:]
