"""Raise one StableHLO op to a JAX function, so that `vmap` lifts it and `scan` loops over it.

    stablehlo.transpose %x, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    -> lambda x: (lax.transpose(x, (1, 0)),)

The function is applied to one example: an operand may be smaller along its example axis than the
op's types say. So what contracts examples (dot_general, reduce, convolution, scatter) takes every
shape from its operands.

The table of raising rules: op name -> rule. A rule reads the attributes once and returns a pure
JAX function.

Raising rules for elementwise ops.

Raising rules for the ops that only move elements, or leave each where it is.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax.numpy as jnp
from jax import Array, lax

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import Arrays, dtype_of, has_numbers, is_static_array
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.ir.traits import integer, integers, pads

Raised = Callable[..., Arrays]
Rule = Callable[[Operation], Raised | None]
AnyRule = TypeVar("AnyRule", bound=Rule)

RULES: dict[str, Rule] = {}


def raises(*names: str) -> Callable[[AnyRule], AnyRule]:
    """Enter a rule in the table by the names of its ops; two rules for one op are an error."""

    def enter(rule: AnyRule) -> AnyRule:
        for name in names:
            if name in RULES:
                raise ValueError(f"{name} has a raising rule already: {RULES[name].__name__}")
            RULES[name] = rule
        return rule

    return enter


def raise_op(op: Operation) -> Raised | None:
    """The op as a JAX function from operands to a tuple of results; None if no rule covers it."""
    rule = RULES.get(op.name)
    if rule is None or not all(is_static_array(value) for value in (*op.operands, *op.results)):
        return None
    return rule(op)


def single(function: Callable[..., Array]) -> Raised:
    """A function of one result as one that returns a tuple of results."""
    return lambda *operands: (function(*operands),)


# `divide` rounds towards zero on integers.
ON_NUMBERS = {
    "stablehlo.add": lax.add,
    "stablehlo.subtract": lax.sub,
    "stablehlo.multiply": lax.mul,
    "stablehlo.divide": lax.div,
    "stablehlo.negate": lax.neg,
}


@raises(*ON_NUMBERS)
def on_numbers(op: Operation) -> Raised | None:
    """Arithmetic, but not that of truth values."""
    return single(ON_NUMBERS[op.name]) if has_numbers(op) else None


raises("stablehlo.select")(lambda _: single(lax.select))
raises("stablehlo.complex")(lambda _: single(lax.complex))
# These take real numbers too, as StableHLO's do.
raises("stablehlo.real")(lambda _: single(jnp.real))
raises("stablehlo.imag")(lambda _: single(jnp.imag))


@raises("stablehlo.convert")
def convert(op: Operation) -> Raised:
    """Convert to the result's element type; complex to real drops the imaginary part."""
    target = dtype_of(op.result)
    drops = mlir.is_complex(op.operands[0]) and target.kind != "c"
    return single(lambda x: lax.convert_element_type(lax.real(x) if drops else x, target))


# Of these, JAX's functions name their parameters as the ops do their attributes.
ALIKE: dict[str, tuple[Callable[..., Array], Callable[[Operation, str], Any], list[str]]] = {
    "stablehlo.reduce_precision": (
        lax.reduce_precision,
        integer,
        ["exponent_bits", "mantissa_bits"],
    ),
    "stablehlo.transpose": (lax.transpose, integers, ["permutation"]),
    "stablehlo.reverse": (lax.rev, integers, ["dimensions"]),
    "stablehlo.slice": (lax.slice, integers, ["start_indices", "limit_indices", "strides"]),
}


@raises(*ALIKE)
def by_attributes(op: Operation) -> Raised:
    """The JAX function of the same attributes."""
    function, read, names = ALIKE[op.name]
    return single(partial(function, **{name: read(op, name) for name in names}))


@raises("stablehlo.reshape")
def reshape(op: Operation) -> Raised:
    """The same elements in row-major order, in the result's shape."""
    return single(partial(lax.reshape, new_sizes=mlir.shape(op.result)))


@raises("stablehlo.broadcast_in_dim")
def broadcast_in_dim(op: Operation) -> Raised:
    """Repeat along the dimensions that the operand lacks, or has with size 1."""
    shape, dimensions = mlir.shape(op.result), integers(op, "broadcast_dimensions")
    return single(partial(lax.broadcast_in_dim, shape=shape, broadcast_dimensions=dimensions))


@raises("stablehlo.pad")
def pad(op: Operation) -> Raised:
    """Pad at the edges and between elements; a negative edge padding cuts off."""
    return single(partial(lax.pad, padding_config=pads(op)))


@raises("stablehlo.concatenate")
def concatenate(op: Operation) -> Raised:
    """Join along one dimension."""
    dimension = integer(op, "dimension")
    return single(lambda *operands: lax.concatenate(operands, dimension))


@raises("stablehlo.optimization_barrier")
def identity(_: Operation) -> Raised:
    """The operands, as they are."""
    return lambda *operands: operands
