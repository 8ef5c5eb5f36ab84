"""Raising rules for elementwise ops."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hlo_surgery.passes.ir.attributes import integer
from hlo_surgery.passes.ir.element_types import dtype_of, has_numbers
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.raising.table import Raised, raises, single


def _on_numbers(op: Operation, function: Any) -> Raised | None:
    return single(function) if has_numbers(op) else None


@raises("stablehlo.add")
def add(op: Operation) -> Raised | None:
    """`x + y`."""
    return _on_numbers(op, lax.add)


@raises("stablehlo.subtract")
def subtract(op: Operation) -> Raised | None:
    """`x - y`."""
    return _on_numbers(op, lax.sub)


@raises("stablehlo.multiply")
def multiply(op: Operation) -> Raised | None:
    """`x * y`."""
    return _on_numbers(op, lax.mul)


@raises("stablehlo.divide")
def divide(op: Operation) -> Raised | None:
    """`x / y`, rounded towards zero on integers."""
    return _on_numbers(op, lax.div)


@raises("stablehlo.negate")
def negate(op: Operation) -> Raised | None:
    """`-x`."""
    return _on_numbers(op, lax.neg)


@raises("stablehlo.select")
def select(_: Operation) -> Raised:
    """`predicate ? x : y`, the predicate a scalar or one for each element."""
    return single(lax.select)


@raises("stablehlo.convert")
def convert(op: Operation) -> Raised:
    """Convert to the result's element type; complex to real drops the imaginary part."""
    source, target = dtype_of(op.operands[0]), dtype_of(op.results[0])

    def converted(x: jax.Array) -> jax.Array:
        real_part = lax.real(x) if source.kind == "c" and target.kind != "c" else x
        return lax.convert_element_type(real_part, target)

    return single(converted)


@raises("stablehlo.reduce_precision")
def reduce_precision(op: Operation) -> Raised:
    """Round to fewer exponent and mantissa bits, in the same element type."""
    exponent_bits, mantissa_bits = integer(op, "exponent_bits"), integer(op, "mantissa_bits")
    return single(
        partial(lax.reduce_precision, exponent_bits=exponent_bits, mantissa_bits=mantissa_bits)
    )


@raises("stablehlo.real")
def real(op: Operation) -> Raised:
    """The real part; StableHLO allows it on real numbers too, where it is the identity."""
    return single(lax.real if dtype_of(op.operands[0]).kind == "c" else jnp.array)


@raises("stablehlo.imag")
def imag(op: Operation) -> Raised:
    """The imaginary part; StableHLO allows it on real numbers too, where it is zero."""
    return single(lax.imag if dtype_of(op.operands[0]).kind == "c" else jnp.zeros_like)


@raises("stablehlo.complex")
def complex_(_: Operation) -> Raised:
    """`re + i*im`."""
    return single(lax.complex)
