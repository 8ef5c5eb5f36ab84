"""Causal attention: JAX's flash attention on a TPU, and the same by XLA's own ops elsewhere.

The kernel takes blocks of positions, and XLA cannot split it among devices, so that a mesh of
several has XLA's ops too.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

BLOCK = 128


def attend(query: Array, key: Array, value: Array) -> Array:
    """Of arrays [B, heads, length, features]."""
    if jax.sharding.get_abstract_mesh().size > 1 or query.shape[2] % BLOCK:
        return _by_xla(query, key, value)
    return jax.lax.platform_dependent(query, key, value, tpu=_by_kernel, default=_by_xla)


def _by_kernel(query: Array, key: Array, value: Array) -> Array:
    return flash_attention(query, key, value, causal=True, sm_scale=_scale(query))


def _by_xla(query: Array, key: Array, value: Array) -> Array:
    scores = jnp.einsum("bhqf,bhkf->bhqk", query, key).astype(jnp.float32)
    causal = jnp.tri(query.shape[2], dtype=bool)
    weights = jax.nn.softmax(jnp.where(causal, scores * _scale(query), -1e9))
    return jnp.einsum("bhqk,bhkf->bhqf", weights.astype(value.dtype), value)


def _scale(query: Array) -> float:
    return query.shape[-1] ** -0.5
