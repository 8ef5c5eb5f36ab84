"""Elementwise: given a JAX function of an array, proof that it works on each element alone, and the
same function of tiles.

lambda g: jnp.where(g > 1, 0, g**2)      of [D, F]  =>  of [Dt, Ft]
lambda g: g / jnp.sum(g)                            =>  None
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import Jaxpr, Literal

# What makes an element of the elements at the same place, and what kernels have: none of it has
# parameters that tell the shape.
ARITHMETIC = ("add", "sub", "mul", "div", "neg", "abs", "sign", "max", "min", "floor", "ceil")
POWERS = ("square", "sqrt", "rsqrt", "integer_pow", "pow", "exp", "exp2", "log", "log1p")
CURVES = ("sin", "cos", "tanh", "logistic")
LOGIC = ("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "xor", "select_n")
PRIMITIVES = frozenset([*ARITHMETIC, *POWERS, *CURVES, *LOGIC, "convert_element_type"])
CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "custom_jvp_call": "call_jaxpr"}
WORDS = frozenset(map(np.dtype, ["float32", "int32", "bool"]))

Function = Callable[[jax.Array], jax.Array]


def of_tiles(function: Function, shape: Sequence[int]) -> Function | None:
    """What a function makes of float32 arrays of this shape, as a function of tiles of them; None
    where it is not seen to be elementwise, or uses what kernels have not.

    It is traced for the whole shape, so that what it reads off that holds for tiles too.
    """
    if not shape:
        return None
    traced = jax.make_jaxpr(function)(jax.ShapeDtypeStruct(tuple(shape), jnp.float32))
    jaxpr, numbers = traced.jaxpr, traced.consts
    if any(isinstance(each, Tracer) or np.ndim(each) for each in numbers):
        return None
    if not _is_elementwise(jaxpr, tuple(shape)) or jaxpr.outvars[0].aval.shape != tuple(shape):
        return None
    consts = [np.asarray(each)[()] for each in numbers]
    # What rests on no element, as of a constant function, is a number still.
    return lambda tile: jnp.broadcast_to(_run(jaxpr, consts, [tile])[0], tile.shape)


def _is_elementwise(jaxpr: Jaxpr, shape: tuple[int, ...]) -> bool:
    """Whether all values are numbers or of this shape, and no op puts elements elsewhere."""
    values: list[Any] = [*jaxpr.invars, *jaxpr.constvars, *jaxpr.outvars]
    for eqn in jaxpr.eqns:
        values += [*eqn.invars, *eqn.outvars]
    are_of_shape = all(v.aval.shape in ((), shape) for v in values)
    are_words = all(v.aval.dtype in WORDS for v in values)
    return are_of_shape and are_words and all(_is_one_by_one(eqn, shape) for eqn in jaxpr.eqns)


def _is_one_by_one(eqn: Any, shape: tuple[int, ...]) -> bool:
    name = eqn.primitive.name
    if name in CALLS:
        inner = eqn.params[CALLS[name]]
        return not inner.consts and _is_elementwise(inner.jaxpr, shape)
    if name == "broadcast_in_dim":
        return not eqn.invars[0].aval.shape
    return name in PRIMITIVES or name in REPLACED


def _run(jaxpr: Jaxpr, consts: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
    """The same ops on tiles; what was of the whole shape has a tile's."""
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    known |= zip(jaxpr.invars, operands, strict=True)

    for eqn in jaxpr.eqns:
        known |= zip(eqn.outvars, _results(eqn, [_read(known, v) for v in eqn.invars]), strict=True)
    return [_read(known, v) for v in jaxpr.outvars]


def _read(known: Mapping[Any, Any], value: Any) -> Any:
    return value.val if isinstance(value, Literal) else known[value]


def _results(eqn: Any, operands: list[Any]) -> list[Any]:
    name = eqn.primitive.name
    if name in CALLS:
        return _run(eqn.params[CALLS[name]].jaxpr, [], operands)
    if name == "broadcast_in_dim":
        # A number stands for as many of it, where an op takes it beside a tile.
        return operands
    typed = _alike(operands, eqn.invars)
    if name in REPLACED:
        return [REPLACED[name](*typed)]
    return [eqn.primitive.bind(*typed, **eqn.params)]


def _sign(x: jax.Array) -> jax.Array:
    """Mosaic asks for the device that is here to lower a sign."""
    one = jnp.ones_like(x)
    return jnp.where(x > 0, one, jnp.where(x < 0, -one, x))


def _itself(x: jax.Array) -> jax.Array:
    return x


# What not all kernels have, and what is the same.
REPLACED: dict[str, Callable[[jax.Array], jax.Array]] = {"sign": _sign, "copy": _itself}


def _alike(operands: Sequence[Any], values: Sequence[Any]) -> list[jax.Array]:
    """Operands of one shape and of the types that were traced, as primitives take them."""
    typed = [jnp.asarray(x, v.aval.dtype) for x, v in zip(operands, values, strict=True)]
    shape = jnp.broadcast_shapes(*(x.shape for x in typed))
    return [jnp.broadcast_to(x, shape) for x in typed]
