"""Leaves of pytrees: which are traced, what stands for them, and PRNG keys as the integers that hold them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def is_array(leaf: Any) -> bool:
    """Whether a leaf is traced: arrays and numbers are, flags and whatever else JAX cannot hold are static."""
    held = isinstance(leaf, jax.Array | jax.ShapeDtypeStruct | np.ndarray | np.number | int | float | complex)
    return held and not isinstance(leaf, bool)


def kind_of(leaf: Any) -> Any:
    """Shape, dtype and weak type of an array, a number, or what stands for one."""
    return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)


def signature(leaf: Any) -> Any:
    """What a rewriting depends on: kinds of arrays, and whatever is static itself."""
    if not is_array(leaf):
        return leaf
    kind = kind_of(leaf)
    return kind.shape, kind.dtype, kind.weak_type


def numbered(shape: Any) -> Any:
    """The tree with its leaves' numbers for leaves."""
    return jax.tree.unflatten(jax.tree.structure(shape), range(len(jax.tree.leaves(shape))))


def flat_array(leaf: Any) -> Any:
    """PRNG keys travel as the integers that hold them."""
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def key_kind(output: Any) -> str:
    """The implementation of a PRNG key's generator; "" for any other output."""
    is_key = isinstance(output, jax.Array) and jnp.issubdtype(output.dtype, jax.dtypes.prng_key)
    return str(jax.random.key_impl(output)) if is_key else ""


def as_key(kind: str, output: jax.Array) -> jax.Array:
    """An output as the PRNG key that it was, if it was one."""
    return jax.random.wrap_key_data(output, impl=kind) if kind else output
