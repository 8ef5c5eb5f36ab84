"""Reasons: the class of a value that an op mixes, with the op's source line."""

from hlo_surgery.passes.example_axes.lattice import Mixed
from hlo_surgery.passes.ir.errors import MIXING_HELP, Reason
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.ir.source_lines import source_line

# What a program has where it takes examples out of the batch one by one, or in another order.
PICKING = frozenset(f"stablehlo.{name}" for name in ("slice", "dynamic_slice", "gather", "reverse"))
PICKING_HELP = (
    "go over examples or groups of them with jax.vmap or jax.lax.map, not with a Python loop that "
    f"takes x[b] at step b, and permute or choose examples before the call; else {MIXING_HELP}"
)


def mixed(op: Operation, why: str, unknown: bool = False, help: str = MIXING_HELP) -> Mixed:
    """The class of a value that this op mixes, or of which nothing is known."""
    fitting = PICKING_HELP if op.name in PICKING and help == MIXING_HELP else help
    return Mixed(Reason(why, op.name, source_line(op), fitting), unknown)
