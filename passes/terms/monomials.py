"""Monomials: given a value behind functions that factor, it as functions of one outer product.

    %o = dot_general %h[b, d], %l[b, f] batching b
    %t = transpose %o, dims = [0, 2, 1]
    %a = abs %t ; %s = multiply %a, %t
    %m = multiply %s, broadcast 3.0         =>    abs(h[b, d] l[b, f]) (h[b, d] l[b, f]) 3

Indices are digits, and split where a reshape splits them. Only where rounding is all that can
differ: in f32 and f64. A product in bf16 or f16 is rounded, and may vanish, before what is done to
it; it stays as it is.

Paired dimensions: those along which a contraction's two factors scale against each other.

sum_t x[h, t, d] y[h, t, f]  =  sum_t (x[h, t, d] / s[h, t]) (y[h, t, f] s[h, t])
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hlo_surgery.passes.dataflow.ancestors import is_splat
from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import dtype_of, is_static_array, is_table
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.ir.modules import is_annotation
from hlo_surgery.passes.ir.traits import SUMMING, integers
from hlo_surgery.passes.structure.digits import Digit, Digits, leaves, unify
from hlo_surgery.passes.terms.steps import Axis, Dims, contracted, holds_all

# Beyond these a value is taken as it is: nothing that vmap makes comes near them.
MOST_FACTORS, DEEPEST, LARGEST_POWER = 16, 64, 8
PRECISE = frozenset(map(np.dtype, ["f4", "f8"]))


# Each with f(ab) = f(a) f(b), to be applied in order.
Functions = tuple[str, ...]


@dataclass(frozen=True)
class Monomial:
    """A product of functions of one outer product, and of numbers.

    `dot`: what makes the outer product, None of numbers alone; `sides`: the digits of its operands,
    in row-major order; `terms`: the functions of each time that it is multiplied; `numbers`:
    uniform values, and functions of them; `dims`: each dimension's digits, of numbers none.
    """

    dot: Operation | None
    sides: list[Digits]
    terms: tuple[Functions, ...]
    numbers: tuple[tuple[Value, Functions], ...]
    dims: list[Digits]


Expand = Callable[[Value], Monomial | None]
Rule = Callable[[Operation, Expand], Monomial | None]


def is_precise(value: Value) -> bool:
    """Whether the value is an array of floats of at least 32 bits."""
    return is_static_array(value) and dtype_of(value) in PRECISE


def factored(value: Value) -> Monomial | None:
    """The value as a monomial; None where it is none of an outer product."""
    known: dict[Value, Monomial | None] = {}

    def expand(value: Value, depth: int) -> Monomial | None:
        if value not in known:
            op = mlir.defining_operation(value) if depth < DEEPEST else None
            found = op and _by_rule(op, lambda v: expand(v, depth + 1))
            few = found is not None and len(found.terms) + len(found.numbers) <= MOST_FACTORS
            known[value] = found if few else None
        return known[value]

    found = expand(value, 0)
    return found if found is not None and found.dot is not None else None


def _by_rule(op: Operation, expand: Expand) -> Monomial | None:
    if len(op.results) != 1 or not is_precise(op.result):
        return None
    if any(0 in mlir.shape(value) for value in (*op.operands, *op.results)):
        return None
    if is_annotation(op):
        return expand(op.operands[0])
    rule = RULES.get(op.name)
    return rule and rule(op, expand)


def _outer_product(op: Operation, _: Expand) -> Monomial | None:
    """A dot_general as the product of its two operands, example by example; None where it sums,
    accumulates in fewer bits, or by an algorithm of its own, or is no larger than an operand.
    """
    kind = dtype_of(op.result)
    widens = all(np.can_cast(dtype_of(v), kind) and mlir.is_inexact(v) for v in op.operands)
    one, other = contracted(op).values()
    if "algorithm" in op.attributes or not widens or one.positions != 1:
        return None
    batch = _fresh(one.shape[d] for d in one.batch)
    free = [_fresh(own.shape[d] for d in own.free) for own in (one, other)]
    sides: list[Digits] = []
    for own, alone in zip((one, other), free, strict=True):
        by_dim = dict(zip((*own.batch, *own.free), (*batch, *alone), strict=True))
        sides.append([digit for d in sorted(by_dim) for digit in by_dim[d]])
    is_larger = all(map(any, free))
    return Monomial(op, sides, ((),), (), [*batch, *free[0], *free[1]]) if is_larger else None


def _fresh(sizes: Iterable[int]) -> list[Digits]:
    return [[Digit(size)] if size != 1 else [] for size in sizes]


def _number(value: Value) -> Monomial:
    return Monomial(None, [], (), ((value, ()),), [])


def _constant(op: Operation, _: Expand) -> Monomial | None:
    return None if is_table(op) else _number(op.result)


def _broadcast_in_dim(op: Operation, expand: Expand) -> Monomial | None:
    """Of a number, or one that puts dimensions of size 1 beside others."""
    (source,) = op.operands
    shape, own = mlir.shape(op.result), mlir.shape(source)
    if math.prod(own) == 1:
        return _number(source)
    dims = integers(op, "broadcast_dimensions")
    is_reshape = list(dims) == sorted(dims) and math.prod(own) == math.prod(shape)
    return _reshape(op, expand) if is_reshape else None


def _transpose(op: Operation, expand: Expand) -> Monomial | None:
    operand, order = expand(op.operands[0]), integers(op, "permutation")
    if operand is None or operand.dot is None:
        return operand
    return replace(operand, dims=[operand.dims[d] for d in order])


def _reshape(op: Operation, expand: Expand) -> Monomial | None:
    """The same elements in row-major order; None where no digits suit both shapes."""
    operand = expand(op.operands[0])
    if operand is None or operand.dot is None:
        return operand
    dims = _fresh(mlir.shape(op.result))
    suits = unify(list(itertools.chain(*operand.dims)), list(itertools.chain(*dims)))
    return replace(operand, dims=dims) if suits else None


def _function(name: str) -> Rule:
    def rule(op: Operation, expand: Expand) -> Monomial | None:
        operand = expand(op.operands[0])
        return operand and _applied(name, operand)

    return rule


def _multiply(op: Operation, expand: Expand) -> Monomial | None:
    one, other = map(expand, op.operands)
    if one is None or other is None:
        return None
    return _applied("square", one) if op.operands[0] == op.operands[1] else _product(one, other)


def _power(op: Operation, expand: Expand) -> Monomial | None:
    """A small whole power, by repeated multiplying."""
    exponent = next((n for n in range(1, LARGEST_POWER + 1) if is_splat(op.operands[1], n)), None)
    base = expand(op.operands[0])
    if exponent is None or base is None:
        return None
    return replace(base, terms=base.terms * exponent, numbers=base.numbers * exponent)


def _applied(function: str, to: Monomial) -> Monomial:
    numbers = tuple((value, (*own, function)) for value, own in to.numbers)
    return replace(to, terms=tuple((*own, function) for own in to.terms), numbers=numbers)


def _product(one: Monomial, other: Monomial) -> Monomial | None:
    """Of an outer product with itself, moved alike, or with numbers."""
    alike = [leaves(own) for own in one.dims] == [leaves(own) for own in other.dims]
    if one.dot is not None and other.dot is not None and not alike:
        return None
    held = one if one.dot is not None else other
    return replace(held, terms=one.terms + other.terms, numbers=one.numbers + other.numbers)


RULES: dict[str, Rule] = {
    "stablehlo.dot_general": _outer_product,
    "stablehlo.constant": _constant,
    "stablehlo.transpose": _transpose,
    "stablehlo.reshape": _reshape,
    "stablehlo.broadcast_in_dim": _broadcast_in_dim,
    "stablehlo.abs": _function("abs"),
    "stablehlo.sign": _function("sign"),
    "chlo.square": _function("square"),
    "stablehlo.multiply": _multiply,
    "stablehlo.power": _power,
}


def paired_dims(op: Operation, axes: Sequence[Axis]) -> tuple[Dims, Dims] | None:
    """The dimensions of both factors, pair by pair, if examples lie along both; else None.

    A dot_general multiplies only what agrees in all of them; of a convolution nothing is known but
    the examples.
    """
    if op.name not in SUMMING or len(axes) != 2 or not all(map(holds_all, axes)):
        return None
    if op.name == "stablehlo.dot_general":
        left, right = contracted(op).values()
        return (*left.batch, *left.summed), (*right.batch, *right.summed)
    first, second = axes
    if not (isinstance(first, PerExample) and isinstance(second, PerExample)):
        return None
    return ((first.dim,), (second.dim,)) if first.is_whole and second.is_whole else None


def magnitudes(x: Array, dims: Dims) -> Array:
    """The largest magnitude along all other dimensions, these dimensions in their order."""
    zero = jnp.zeros((), jnp.abs(x).dtype)
    return _in_order(lax.reduce(jnp.abs(x), zero, lax.max, _others(x, dims)), dims)


def _others(x: Array, dims: Dims) -> list[int]:
    return [d for d in range(x.ndim) if d not in dims]


def _in_order(x: Array, dims: Dims) -> Array:
    kept = sorted(dims)
    return x.transpose([kept.index(d) for d in dims])


def laid_along(values: Array, x: Array, dims: Dims) -> Array:
    """Values by these dimensions, of size 1 along the others of x."""
    ordered = values.transpose([dims.index(d) for d in sorted(dims)])
    return jnp.expand_dims(ordered, _others(x, dims))
