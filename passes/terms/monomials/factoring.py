"""Factoring rules: how an op that multiplies, moves, or applies what factors makes a monomial.

Only where rounding is all that can differ: in f32, f64 and complex numbers of them, and never
through a conversion to fewer bits. A product in bf16 or f16 is rounded, and may vanish, before what
is done to it; it stays as it is.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import integers
from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.ir.placement import is_annotation
from hlo_surgery.passes.terms.monomials.monomials import (
    Monomial,
    applied,
    inverse,
    placed,
    product,
    reshaped,
    single_factor,
)
from hlo_surgery.passes.terms.monomials.outer_products import PRECISE, is_precise, outer_product

# Beyond these a value is taken as it is: nothing that vmap makes comes near them.
MOST_FACTORS, DEEPEST, LARGEST_POWER = 16, 64, 8

Expand = Callable[[Value], Monomial]
Rule = Callable[[Operation, Expand], Monomial | None]


def factored(value: Value) -> Monomial:
    """The value as a monomial in the values that it is made of."""
    known: dict[Value, Monomial] = {}

    def expand(value: Value, depth: int) -> Monomial:
        if value not in known:
            op = mlir.defining_operation(value)
            rule = _rule(op) if op is not None and depth < DEEPEST else None
            found = rule(op, lambda v: expand(v, depth + 1)) if op is not None and rule else None
            known[value] = (
                found if found and len(found.factors) <= MOST_FACTORS else single_factor(value)
            )
        return known[value]

    return expand(value, 0)


def _rule(op: Operation) -> Rule | None:
    if len(op.results) != 1 or not is_precise(op.results[0]):
        return None
    if any(0 in mlir.shape(value) for value in (*op.operands, *op.results)):
        return None
    return _annotation if is_annotation(op) else RULES.get(op.name)


def _transpose(op: Operation, expand: Expand) -> Monomial:
    operand = expand(op.operands[0])
    return replace(operand, dims=tuple(operand.dims[d] for d in integers(op, "permutation")))


def _reshape(op: Operation, expand: Expand) -> Monomial | None:
    return reshaped(expand(op.operands[0]), mlir.shape(op.results[0]))


def _broadcast_in_dim(op: Operation, expand: Expand) -> Monomial:
    shape, dimensions = mlir.shape(op.results[0]), integers(op, "broadcast_dimensions")
    sources = [dimensions.index(d) if d in dimensions else None for d in range(len(shape))]
    return placed(expand(op.operands[0]), sources, shape)


def _annotation(op: Operation, expand: Expand) -> Monomial:
    return expand(op.operands[0])


def _convert(op: Operation, expand: Expand) -> Monomial | None:
    """The operand as it is, in more bits."""
    source, target = dtype_of(op.operands[0]), dtype_of(op.results[0])
    if source not in PRECISE or not np.can_cast(source, target):
        return None
    operand = expand(op.operands[0])
    return None if operand.real and target.kind == "c" else operand


def _function(name: str) -> Rule:
    return lambda op, expand: applied(name, expand(op.operands[0]))


def _multiply(op: Operation, expand: Expand) -> Monomial | None:
    one, other = op.operands
    return applied("square", expand(one)) if one == other else product(expand(one), expand(other))


def _divide(op: Operation, expand: Expand) -> Monomial | None:
    divisor = inverse(expand(op.operands[1]))
    return divisor and product(expand(op.operands[0]), divisor)


def _power(op: Operation, expand: Expand) -> Monomial | None:
    """A small whole power."""
    exponent = next((n for n in range(1, LARGEST_POWER + 1) if is_splat(op.operands[1], n)), None)
    return None if exponent is None else _raised(expand(op.operands[0]), exponent)


def _raised(base: Monomial | None, exponent: int) -> Monomial | None:
    """A power by repeated squaring."""
    if base is None or exponent == 1:
        return base
    half = _raised(base, exponent // 2)
    even = half and applied("square", half)
    return product(even, base) if even and exponent % 2 else even


def _real(op: Operation, expand: Expand) -> Monomial:
    operand = expand(op.operands[0])
    return replace(operand, real=True) if mlir.is_complex(op.operands[0]) else operand


def _complex(op: Operation, expand: Expand) -> Monomial | None:
    """A conjugate, which JAX writes as complex(real x, -imag x)."""
    real, negated = map(mlir.defining_operation, op.operands)
    if (
        real is None
        or negated is None
        or (real.name, negated.name) != ("stablehlo.real", "stablehlo.negate")
    ):
        return None
    imag = mlir.defining_operation(negated.operands[0])
    if imag is None or imag.name != "stablehlo.imag" or imag.operands[0] != real.operands[0]:
        return None
    return applied("conj", expand(real.operands[0])) if mlir.is_complex(real.operands[0]) else None


RULES: dict[str, Rule] = {
    "stablehlo.dot_general": lambda op, _: outer_product(op),
    "stablehlo.transpose": _transpose,
    "stablehlo.reshape": _reshape,
    "stablehlo.broadcast_in_dim": _broadcast_in_dim,
    "stablehlo.convert": _convert,
    "stablehlo.abs": _function("abs"),
    "stablehlo.sign": _function("sign"),
    "chlo.square": _function("square"),
    "stablehlo.multiply": _multiply,
    "stablehlo.divide": _divide,
    "stablehlo.power": _power,
    "stablehlo.real": _real,
    "stablehlo.complex": _complex,
}
