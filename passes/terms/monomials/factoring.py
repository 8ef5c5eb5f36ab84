"""Factoring rules: how an op that multiplies, moves, or applies what factors makes a monomial.

Only where rounding is all that can differ: in f32 and f64. A product in bf16 or f16 is rounded, and
may vanish, before what is done to it; it stays as it is.

    dot_general %h[b, d], %l[b, f] batching b           =>   h[b, d] l[b, f]
    dot_general %w[b], %o[b, d, f] contracting b        =>   w[b] o[b, d, f] over b
"""

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import integers
from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.element_types import dtype_of, is_static_array
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.ir.placement import is_annotation
from hlo_surgery.passes.terms.contracted_dims import contracted
from hlo_surgery.passes.terms.monomials.monomials import (
    Atoms,
    Monomial,
    applied,
    inverse,
    placed,
    product,
    reshaped,
    single_factor,
)

# Beyond these a value is taken as it is: nothing that vmap makes comes near them.
MOST_FACTORS, DEEPEST, LARGEST_POWER = 16, 64, 8
PRECISE = frozenset(map(np.dtype, ["f4", "f8"]))

Expand = Callable[[Value], Monomial]
Rule = Callable[[Operation, Expand], Monomial | None]


def is_precise(value: Value) -> bool:
    """Whether the value is an array of floats of at least 32 bits."""
    return is_static_array(value) and dtype_of(value) in PRECISE


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


def _outer_product(op: Operation, _: Expand) -> Monomial | None:
    """A dot_general as the product of its two operands, example by example; None where it sums."""
    found = dot_product(op, *map(single_factor, op.operands))
    if found is None or found[1]:
        return None
    return replace(found[0], dims=found[0].dims[: len(mlir.shape(op.results[0]))])


def dot_product(op: Operation, lhs: Monomial, rhs: Monomial) -> tuple[Monomial, Atoms] | None:
    """The monomial that a dot_general sums, from its operands', and over which atoms.

    Its dimensions are those of the result, then those that are contracted.
    None where it accumulates in fewer bits, or by an algorithm of its own.
    """
    kind = dtype_of(op.results[0])
    widens = all(np.can_cast(dtype_of(v), kind) and mlir.is_inexact(v) for v in op.operands)
    if "algorithm" in op.attributes or not widens:
        return None
    one, other = contracted(op).values()
    shape = (*mlir.shape(op.results[0]), *(one.shape[d] for d in one.summed))
    left = placed(lhs, [*one.batch, *one.free, *[None] * len(other.free), *one.summed], shape)
    right = placed(rhs, [*other.batch, *[None] * len(one.free), *other.free, *other.summed], shape)
    found, rank = product(left, right), len(shape) - len(one.summed)
    if found is None:
        return None
    atoms = tuple(itertools.chain(*found.dims[rank:]))
    return replace(found, dots=(*found.dots, op)), atoms


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


RULES: dict[str, Rule] = {
    "stablehlo.dot_general": _outer_product,
    "stablehlo.transpose": _transpose,
    "stablehlo.reshape": _reshape,
    "stablehlo.broadcast_in_dim": _broadcast_in_dim,
    "stablehlo.abs": _function("abs"),
    "stablehlo.sign": _function("sign"),
    "chlo.square": _function("square"),
    "stablehlo.multiply": _multiply,
    "stablehlo.divide": _divide,
    "stablehlo.power": _power,
}
