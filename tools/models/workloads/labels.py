"""Cross-entropy as in AlgoPerf's images and translation: against distributions over labels."""

import jax
import jax.numpy as jnp
from jax import Array


def cross_entropy_with_one_hot(logits: Array, labels: Array, smoothing: float = 0.0) -> Array:
    """Logits [..., K] and labels [...] give [...]. `smoothing`: what is spread evenly over all
    labels.
    """
    count = logits.shape[-1]
    wanted = jax.nn.one_hot(labels, count) * (1 - smoothing) + smoothing / count
    return -jnp.sum(wanted * jax.nn.log_softmax(logits), -1)
