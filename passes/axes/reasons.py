"""Reasons: in which words a program is refused, and the way out that fits."""

from hlo_surgery.passes.dataflow.kernels import CUSTOM_CALL, call_names, declared_axes
from hlo_surgery.passes.dataflow.mosaic_kernels import is_kernel
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import (
    CALL_HELP,
    DECLARED_HELP,
    GIVEN_HELP,
    KERNEL_HELP,
    MIXING_HELP,
    NAN_HELP,
    ROWS_HELP,
    SUMS_HELP,
    Reason,
    reason_at,
    source_line,
)
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.ir.traits import Kind, is_linear, ops_of

PICKING, ELEMENTWISE = ops_of(Kind.PICKS), ops_of(Kind.ELEMENTWISE)
# What puts examples elsewhere, as a roll or a permutation of the batch does: whose copy of a
# parameter such rows met is not known.
MOVES = PICKING | {"stablehlo.concatenate", "stablehlo.pad"}
APART = (
    "each example meets others: the operands hold the examples along different or divided "
    "dimensions"
)
MOVED = "values are moved or combined along the example axis"
PICKED = "examples are taken out of the batch, or in another order, and meet others"
REDUCED = "the examples are reduced to one value{by}, and not by a sum of floats"
DECLARED = (
    "it was declared to take examples one by one along axes along which they do not lie, or which "
    "this result has not"
)
MEETS = "a sum over the examples ({line}) meets each example's own values"
EARLIER = "a sum over the examples of earlier steps ({line}) meets each example's own values"
NOBODYS = "places to which no row of an example may have been added are summed with the examples"
NOW_ONE = "a value of this loop or branch holds the examples now in one way, now in another"
RUNS_TOGETHER = "the examples decide together how often this loop runs"
TAKEN_TOGETHER = "the examples decide together which branch is taken"
REARRANGED = (
    "data of the whole batch, rearranged over the examples, meets each example's own values"
)
DISAGREE = "devices return different values for an output that is said to be the same on all"
TERM = (
    "a constant made of the whole batch is a term of the gradient, of which no example's share "
    "is known"
)
BESIDE_ONE = (
    "a constant is added to a single example's part of this gradient: whether it is that "
    "example's or all examples' is not shown"
)
ROW_OF_EACH = "this value has a row for each example, and rests on no example otherwise"

PICKING_HELP = (
    "permute, choose or mix examples before the call; of examples of several rows, which lie one "
    "behind the other, pass rows_per_example=..., and keep an index within its example's rows by "
    f"jnp.clip(i, 0, rows - 1); {ROWS_HELP}; else {GIVEN_HELP}"
)
# Of a loop over parts of the batch whose steps are fewer, or not counted.
PARTS_HELP = (
    "let a loop over parts of the batch take each of them once, and say by is_real=... which "
    f"examples count; {PICKING_HELP}"
)
# Of what a loop reads or writes block by block, as the kernels that JAX interprets do.
BLOCKS_HELP = (
    "if this is a kernel, which JAX interprets here, say that it takes the examples one by one, by "
    f"hs.per_example_call(fn, in_axes, out_axes) around it; {PARTS_HELP}"
)
# Of rows that ids tell apart.
PACKED_HELP = (
    "rows meet others of their axis only by indices: for attention have one example in each row, "
    "[B, L], with a mask of its own, and take the rows by jax.vmap"
)
RANKING_HELP = (
    "rank examples before the call, and pass what comes of it, such as a weight for each, as a "
    f"batch argument; {ROWS_HELP}; else {GIVEN_HELP}"
)
DISAGREE_HELP = "add jax.lax.pmean over all the axes that the batch is split over"
TERM_HELP = (
    "compute the constant before, and pass it as an argument of its own, as what is known to all "
    "examples; "
    "or ask for the statistics of other parameters"
)


def meeting(op: Operation, why: str, help: str = "") -> Reason:
    """Why examples meet in an op, with the way out that fits it, unless one is given."""
    if is_first_devices(op):
        return Reason(DISAGREE, "sdy.manual_computation", source_line(op), DISAGREE_HELP)
    if declared_axes(op) is not None:
        return reason_at(op, DECLARED, DECLARED_HELP)
    return reason_at(op, why, help or _help(op, why))


def _help(op: Operation, why: str) -> str:
    if op.name == "stablehlo.sort":
        return RANKING_HELP
    if op.name == "stablehlo.scatter":
        return f"{ROWS_HELP}; else {GIVEN_HELP}"
    if op.name in PICKING and mlir.enclosing_loops(op):
        return PARTS_HELP if op.name == "stablehlo.gather" else BLOCKS_HELP
    is_moved = op.name in PICKING or why == MOVED or (why == APART and op.name in ELEMENTWISE)
    return PICKING_HELP if is_moved else MIXING_HELP


def unknown(op: Operation) -> Reason:
    """That nothing shows how an op treats the examples."""
    name = " ".join(dict.fromkeys(call_names(op))) or "this op"
    of_call = KERNEL_HELP if is_kernel(op) else CALL_HELP
    help = of_call if op.name == CUSTOM_CALL else MIXING_HELP
    return reason_at(op, f"nothing is known of how {name} treats the examples", help)


def reduced(op: Operation) -> Reason:
    """That examples are reduced, and by what, where the op has a body that says so."""
    body = mlir.operations(op.regions[0].blocks[0]) if len(op.regions) else []
    by = f" by {body[0].name}" if len(body) > 1 else ""
    return meeting(op, REDUCED.format(by=by))


def is_reduced(reason: Reason) -> bool:
    """Whether examples were reduced, rather than moved."""
    return reason.why.startswith(REDUCED.split("{")[0])


def is_first_devices(op: Operation) -> bool:
    """Whether this marks the first device's value where all should agree: `max(x, x)`."""
    return op.name == "stablehlo.maximum" and op.operands[0] == op.operands[1]


def of_sums(op: Operation, line: str, count: int) -> Reason:
    """Why sums over the examples, the first made at `line`, are none of what an op may take."""
    same = op.name == "stablehlo.compare" and op.operands[0] == op.operands[1]
    if same or op.name == "stablehlo.is_finite":
        return reason_at(op, f"a sum over the examples ({line}) is tested for NaN", NAN_HELP)
    if count == 1:
        why = f"a sum over the examples ({line}) is used in a way that is not linear"
        return reason_at(op, why, SUMS_HELP)
    met = "are multiplied" if is_linear(op, {0}) else "meet, and are not added"
    why = f"two sums over the examples (the first by {line}) {met}"
    return reason_at(op, why, SUMS_HELP)
