"""Causal attention."""

import jax
import jax.numpy as jnp
from jax import Array

from examples.decoder.axes import Layout


def attend(layout: Layout, query: Array, key: Array, value: Array) -> Array:
    """Of arrays [B, heads, length, features]."""
    scores = jnp.einsum("bhqf,bhkf->bhqk", query, key).astype(jnp.float32)
    causal = jnp.tri(query.shape[2], dtype=bool)
    weights = jax.nn.softmax(jnp.where(causal, scores / query.shape[-1] ** 0.5, -1e9))
    return jnp.einsum("bhqk,bhkf->bhqf", weights.astype(value.dtype), value)
