"""Elementwise: given a JAX function of an array, proof that it works on each element alone.

lambda g: jnp.where(g > 1, 0, g**2)      the same ops for a tile as for the whole, one by one
lambda g: g / jnp.sum(g)                 not so
"""

import re
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr

# What makes an element of the elements at the same place, and what kernels have.
ARITHMETIC = ("add", "sub", "mul", "div", "neg", "abs", "sign", "max", "min", "floor", "ceil")
POWERS = ("square", "sqrt", "rsqrt", "integer_pow", "pow", "exp", "exp2", "log", "log1p")
CURVES = ("sin", "cos", "tanh", "logistic")
LOGIC = ("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "xor", "select_n")
PRIMITIVES = frozenset([*ARITHMETIC, *POWERS, *CURVES, *LOGIC, "convert_element_type"])
CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "custom_jvp_call": "call_jaxpr"}
WORDS = frozenset(map(np.dtype, ["float32", "int32", "bool"]))
TILE = (8, 128)

Function = Callable[[jax.Array], jax.Array]


def is_elementwise(function: Function, shape: Sequence[int], but: Sequence[str] = ()) -> bool:
    """Whether a function of float32 arrays of this shape is seen to make of a tile what it makes of
    the whole there, by what kernels have, `but` for some ops.

    It is traced for both: what reads the shape has other numbers in it for a tile.
    """
    known = PRIMITIVES - {*but}
    whole = _traced(function, tuple(shape), known) if shape else None
    try:
        return whole is not None and whole == _traced(function, TILE, known)
    except Exception:  # a function of its user's may refuse any other shape
        return False


def _traced(function: Function, shape: tuple[int, ...], known: AbstractSet[str]) -> str | None:
    """The ops, in words that are the same for any shape; None where some are not elementwise."""
    kind = jax.ShapeDtypeStruct(shape, jnp.float32)
    traced = jax.make_jaxpr(function)(kind)
    made = traced.out_avals[0].shape == shape
    if traced.consts or not made or not _is_one_by_one(traced.jaxpr, shape, known):
        return None
    text = str(traced).replace(str(shape), "()").replace(str(list(shape)).replace(" ", ""), "[]")
    return " ".join(re.sub("0x[0-9a-f]+", "", text).split())


def _is_one_by_one(jaxpr: Jaxpr, shape: tuple[int, ...], known: AbstractSet[str]) -> bool:
    """Whether all values are numbers or of this shape, and no op puts elements elsewhere."""
    values: list[Any] = [*jaxpr.invars, *jaxpr.constvars, *jaxpr.outvars]
    for eqn in jaxpr.eqns:
        values += [*eqn.invars, *eqn.outvars]
    are_of_shape = all(v.aval.shape in ((), shape) for v in values)
    are_words = all(v.aval.dtype in WORDS for v in values)
    return are_of_shape and are_words and all(_is_plain(eqn, shape, known) for eqn in jaxpr.eqns)


def _is_plain(eqn: Any, shape: tuple[int, ...], known: AbstractSet[str]) -> bool:
    name = eqn.primitive.name
    if name in CALLS:
        inner = eqn.params[CALLS[name]]
        return not inner.consts and _is_one_by_one(inner.jaxpr, shape, known)
    return name in known or (name == "broadcast_in_dim" and not eqn.invars[0].aval.shape)
