"""Models whose gradients are no sum over examples: no number is right, so they must be refused."""

# pyright: reportUnknownMemberType=false
# JAX's own signatures are partly untyped.

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fixture_models.layers import cross_entropy
from fixture_models.model import EXAMPLES, Input, Model, Weight


def batch_norm(x: Array, scale: Array, bias: Array) -> Array:
    """Normalise [B, D] by the statistics of this very batch, as in training."""
    centred = x - jnp.mean(x, axis=0)
    return centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=0) + 1e-5) * scale + bias


def batch_norm_loss(params: Any, x: Array, labels: Array) -> Array:
    hidden = jax.nn.relu(batch_norm(x @ params["kernel"], params["scale"], params["bias"]))
    return jnp.mean(cross_entropy(hidden @ params["readout"], labels))


def contrastive_loss(params: Any, images: Array, texts: Array) -> Array:
    """Every example's text is a negative for every other example's image."""
    left, right = jnp.tanh(images @ params["image"]), jnp.tanh(texts @ params["text"])
    log_probabilities = jax.nn.log_softmax(left @ right.T)
    matching = jnp.eye(images.shape[0])
    return -jnp.mean(jnp.sum(log_probabilities * matching, axis=1))


def clipping_loss(params: Any, x: Array, targets: Array) -> Array:
    hidden = jnp.tanh(x @ params["kernel"] + params["bias"])
    return jnp.mean((hidden @ params["readout"] - targets) ** 2)


def clip_by_global_norm(gradients: Any, limit: float) -> Any:
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradients)))
    return jax.tree.map(partial(jnp.multiply, limit / jnp.maximum(norm, limit)), gradients)


def clipped_gradient(params: Any, x: Array, targets: Array) -> Any:
    return clip_by_global_norm(jax.grad(clipping_loss)(params, x, targets), 0.1)


MODELS = {
    "batch_norm_training": Model(
        structure="BatchNorm in training mode",
        why="each example is normalised by statistics of the whole batch, which depend on the "
        "parameters",
        loss=batch_norm_loss,
        parameters={
            "kernel": Weight((6, 12)),
            "scale": Weight((12,)),
            "bias": Weight((12,)),
            "readout": Weight((12, 7)),
        },
        inputs={"x": Input((EXAMPLES, 6)), "labels": Input((EXAMPLES,), below=7)},
        verdict="not separable",
        mixing=batch_norm,
    ),
    "contrastive": Model(
        structure="in-batch contrastive loss",
        why="the other examples of the batch are the negatives",
        loss=contrastive_loss,
        parameters={"image": Weight((11, 8)), "text": Weight((6, 8))},
        inputs={"images": Input((EXAMPLES, 11)), "texts": Input((EXAMPLES, 6))},
        verdict="not separable",
        mixing=contrastive_loss,
    ),
    "global_norm_clip": Model(
        structure="global-norm gradient clipping",
        why="the gradient function scales the gradient by its own norm",
        loss=clipping_loss,
        parameters={"kernel": Weight((6, 12)), "bias": Weight((12,)), "readout": Weight((12, 7))},
        inputs={"x": Input((EXAMPLES, 6)), "targets": Input((EXAMPLES, 7))},
        verdict="not separable",
        gradient=clipped_gradient,
        mixing=clip_by_global_norm,
    ),
}
