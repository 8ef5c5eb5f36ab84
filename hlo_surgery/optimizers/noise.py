"""Noise for parameters: drawn from a secret seed, for every array on its own."""

import hashlib
import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

# Of the key that JAX's default generator takes, and so of a seed.
BYTES = 8
Seed = int | bytes | jax.Array


def key_of(seed: Seed) -> tuple[Any, Any]:
    """The words of the key that a seed stands for, all its bits, and its generator, x64 or not.

    A number from 0 to 2**64 - 1, the 8 bytes of one, or a key of `jax.random`. Raises TypeError and
    ValueError for another seed.
    """
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        return _one_key(seed)
    if isinstance(seed, jax.Array | np.ndarray) and seed.ndim == 1 and seed.dtype == jnp.uint32:
        return _one_key(jax.random.wrap_key_data(seed))
    return _words(_number(seed)), "threefry2x32"


def normal_like(key: jax.Array, tree: Any) -> Any:
    """Normal noise for each array of a pytree, of deviation 1 in each real number.

    It depends on where in the pytree an array is, and not on what others there are: parts of a
    pytree that are treated apart, as by `optax.multi_transform`, have noise of their own, though of
    one key.
    """

    def noise(path: Any, x: jax.Array) -> jax.Array:
        own = key
        for word in np.frombuffer(hashlib.sha256(repr(path).encode()).digest()[:BYTES], ">u4"):
            own = jax.random.fold_in(own, np.uint32(word))
        # `jax.random.normal` has deviation 1 / sqrt(2) in both parts of a complex number.
        return jax.random.normal(own, x.shape, x.dtype) * (
            math.sqrt(2) if jnp.iscomplexobj(x) else 1
        )

    return jax.tree_util.tree_map_with_path(noise, tree)


def _one_key(key: jax.Array) -> tuple[Any, Any]:
    if key.shape:
        raise ValueError(f"seed is an array of keys of shape {key.shape}; pass one of them")
    return jax.random.key_data(key), jax.random.key_impl(key)


def _number(seed: Any) -> int:
    if isinstance(seed, bytes | bytearray):
        if len(seed) != BYTES:
            raise ValueError(
                f"seed is of {len(seed)} bytes; pass {BYTES}, such as secrets.token_bytes({BYTES})"
            )
        return int.from_bytes(seed, "big")
    if isinstance(seed, Tracer):
        raise TypeError(
            "seed is traced; with optax.inject_hyperparams name it among static_args, or pass a key"
        )
    try:
        return operator.index(seed)
    except TypeError:
        raise TypeError(
            f"seed is {seed!r}; pass an integer, {BYTES} bytes or a key of jax.random"
        ) from None


def _words(number: int) -> np.ndarray[Any, Any]:
    """As `jax.random.key` makes them with x64 enabled; without, it drops the upper half."""
    if not 0 <= number < 2 ** (8 * BYTES):
        raise ValueError(
            f"seed is {number}, which does not fit a key: pass one from 0 to 2**{8 * BYTES} - 1"
        )
    return np.array([number >> 32, number & 0xFFFFFFFF], np.uint32)
