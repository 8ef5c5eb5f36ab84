"""Raising rules for the ops without operands: constant and iota."""

import jax.numpy as jnp
from jax import lax

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import integer
from hlo_surgery.passes.ir.constants import elements
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.raising.table import Raised, raises


@raises("stablehlo.constant")
def constant(op: Operation) -> Raised:
    """The constant's elements."""
    found = elements(op)
    return lambda: (jnp.asarray(found),)


@raises("stablehlo.iota")
def iota(op: Operation) -> Raised:
    """0, 1, 2... along one dimension."""
    dtype, shape, dimension = (
        dtype_of(op.results[0]),
        mlir.shape(op.results[0]),
        integer(op, "iota_dimension"),
    )
    return lambda: (lax.broadcasted_iota(dtype, shape, dimension),)
