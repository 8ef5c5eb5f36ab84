"""Raise one StableHLO op to a JAX function, so that `vmap` lifts it and `scan` loops over it.

    stablehlo.transpose %x, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    -> lambda x: (lax.transpose(x, (1, 0)),)

The function is applied to one example: an operand may be smaller along its example axis than the
op's types say. So what contracts examples (dot_general, reduce, convolution, scatter) takes every
shape from its operands.
"""

from hlo_surgery.passes.ir.element_types import is_static_array
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.raising import (
    arithmetic,
    contractions,
    indexing,
    moves,
    sources,
    transforms,
)
from hlo_surgery.passes.raising.table import RULES, Raised, raises

# Importing these has entered their rules in the table.
FAMILIES = (
    arithmetic,
    contractions,
    indexing,
    moves,
    sources,
    transforms,
)

__all__ = ["Raised", "raise_op", "raises"]


def raise_op(op: Operation) -> Raised | None:
    """The op as a JAX function from operands to a tuple of results; None if no rule covers it."""
    rule = RULES.get(op.name)
    if rule is None or not all(is_static_array(value) for value in (*op.operands, *op.results)):
        return None
    return rule(op)
