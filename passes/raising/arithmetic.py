"""Raising rules for elementwise ops."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from hlo_surgery.passes.ir.attributes import integer
from hlo_surgery.passes.ir.element_types import dtype_of, has_numbers
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.raising.table import Raised, raises, single

# `divide` rounds towards zero on integers.
ON_NUMBERS = {
    "stablehlo.add": lax.add,
    "stablehlo.subtract": lax.sub,
    "stablehlo.multiply": lax.mul,
    "stablehlo.divide": lax.div,
    "stablehlo.negate": lax.neg,
}
ON_ALL = {"stablehlo.select": lax.select, "stablehlo.complex": lax.complex}
# On complex numbers, and on real ones, on which StableHLO allows them too.
PARTS = {
    "stablehlo.real": (lax.real, jnp.array),
    "stablehlo.imag": (lax.imag, jnp.zeros_like),
}


@raises(*ON_NUMBERS)
def on_numbers(op: Operation) -> Raised | None:
    """Arithmetic, but not that of truth values."""
    return single(ON_NUMBERS[op.name]) if has_numbers(op) else None


@raises(*ON_ALL)
def on_all(op: Operation) -> Raised:
    """What is one JAX function on all element types."""
    return single(ON_ALL[op.name])


@raises(*PARTS)
def part(op: Operation) -> Raised:
    """The real or the imaginary part."""
    of_complex, of_real = PARTS[op.name]
    chosen: Callable[..., jax.Array] = of_complex if _is_complex(op) else of_real
    return single(chosen)


@raises("stablehlo.convert")
def convert(op: Operation) -> Raised:
    """Convert to the result's element type; complex to real drops the imaginary part."""
    target = dtype_of(op.results[0])
    drops = _is_complex(op) and target.kind != "c"
    return single(lambda x: lax.convert_element_type(lax.real(x) if drops else x, target))


@raises("stablehlo.reduce_precision")
def reduce_precision(op: Operation) -> Raised:
    """Round to fewer exponent and mantissa bits, in the same element type."""
    bits = {name: integer(op, name) for name in ("exponent_bits", "mantissa_bits")}
    return single(partial(lax.reduce_precision, **bits))


def _is_complex(op: Operation) -> bool:
    return dtype_of(op.operands[0]).kind == "c"
