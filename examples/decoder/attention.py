"""Causal attention: JAX's flash attention on a TPU, and the same by XLA's own ops elsewhere.

The kernel takes blocks of positions. XLA cannot split it among devices, so that each has it to
itself.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

from examples.decoder.axes import Layout, spec

Attention = Callable[[Array, Array, Array], Array]
BLOCK = 128


def attend(layout: Layout, query: Array, key: Array, value: Array) -> Array:
    """Of arrays [B, heads, length, features]."""
    if query.shape[2] % BLOCK:
        return _by_xla(query, key, value)
    kernel = _on_each_device(layout, _by_kernel)
    return jax.lax.platform_dependent(query, key, value, tpu=kernel, default=_by_xla)


def _on_each_device(layout: Layout, kernel: Attention) -> Attention:
    """The kernel for the examples and heads of each device of the mesh in use."""
    if jax.sharding.get_abstract_mesh().empty:
        return kernel
    own = spec(layout, ("examples", "heads", "length", "features"))
    return jax.shard_map(kernel, in_specs=own, out_specs=own, check_vma=False)


def _by_kernel(query: Array, key: Array, value: Array) -> Array:
    return flash_attention(query, key, value, causal=True, sm_scale=_scale(query))


def _by_xla(query: Array, key: Array, value: Array) -> Array:
    scores = jnp.einsum("bhqf,bhkf->bhqk", query, key).astype(jnp.float32)
    causal = jnp.tri(query.shape[2], dtype=bool)
    weights = jax.nn.softmax(jnp.where(causal, scores * _scale(query), -1e9))
    return jnp.einsum("bhqk,bhkf->bhqf", weights.astype(value.dtype), value)


def _scale(query: Array) -> float:
    return query.shape[-1] ** -0.5
