"""Leaves of pytrees: which are traced, their stand-ins, and what modules hide: keys, weak types."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding

# No implementations' of generators names.
WEAK, NO_GRADIENT = "weak type", "float0"


def is_array(leaf: Any) -> bool:
    """Whether a leaf is traced: arrays and numbers are, flags and whatever else JAX cannot hold are
    static.
    """
    held = isinstance(
        leaf, jax.Array | jax.ShapeDtypeStruct | np.ndarray | np.number | int | float | complex
    )
    return held and not isinstance(leaf, bool)


def kind_of(leaf: Any) -> Any:
    """Shape, dtype and weak type of an array, a number, or what stands for one."""
    return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)


def explicit_sharding(kind: Any) -> Any:
    """The sharding that is part of an array's type, on meshes with explicit axes; else None."""
    sharding = kind.sharding
    typed = isinstance(sharding, NamedSharding) and AxisType.Explicit in sharding.mesh.axis_types
    return sharding if typed else None


def typed(output: Any, sharding: Any) -> Any:
    """An output of a module with the sharding that is to be part of its type, if one is."""
    fits = sharding is not None and len(sharding.spec) == output.ndim
    return jax.sharding.reshard(output, sharding) if fits else output


def signature(leaf: Any) -> Any:
    """What a rewriting depends on: kinds of arrays, and whatever is static itself."""
    if not is_array(leaf):
        return leaf
    kind = kind_of(leaf)
    return kind.shape, kind.dtype, kind.weak_type, explicit_sharding(kind)


def numbered(shape: Any) -> Any:
    """The tree with its leaves' numbers for leaves."""
    return jax.tree.unflatten(jax.tree.structure(shape), range(len(jax.tree.leaves(shape))))


def flat_array(leaf: Any) -> Any:
    """PRNG keys travel as the integers that hold them."""
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def returned_kind(output: Any) -> str:
    """What a module hides of an output: a PRNG key's implementation, a weak type, that it is the
    gradient of an integer; else "".
    """
    if jnp.result_type(output) == jax.dtypes.float0:
        return NO_GRADIENT
    if isinstance(output, jax.Array) and jnp.issubdtype(output.dtype, jax.dtypes.prng_key):
        return str(jax.random.key_impl(output))
    return WEAK if jax.typeof(output).weak_type else ""


def as_returned(kind: str, output: jax.Array) -> Any:
    """An output of a module as the function returned it."""
    if kind == NO_GRADIENT:
        return np.zeros(output.shape, jax.dtypes.float0)
    if kind == WEAK:
        primitive, params = _weak_conversion()
        return primitive.bind(output, **{**params, "new_dtype": output.dtype})
    return jax.random.wrap_key_data(output, impl=kind) if kind else output


@cache
def _weak_conversion() -> tuple[Any, dict[str, Any]]:
    """The op that makes arrays weakly typed, as JAX writes it; no public function does."""
    with jax.numpy_dtype_promotion("standard"):
        equations = jax.make_jaxpr(lambda n: n * 1.5)(3).eqns
    return next((e.primitive, e.params) for e in equations if e.params.get("weak_type"))
