"""Models whose batch is laid out in unusual ways."""

# pyright: reportUnknownMemberType=false
# JAX's own signatures are partly untyped.

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fixture_models.model import EXAMPLES, Input, Model, Weight


def time_major_loss(params: Any, frames: Array, targets: Array) -> Array:
    """A recurrent network over [T, B, D], its three steps written out."""
    projected = jnp.einsum("tbd,dh->tbh", frames, params["kernel"]) + params["bias"]
    state = jnp.zeros(projected.shape[1:], projected.dtype)
    outputs: list[Array] = []
    for step in range(frames.shape[0]):
        state = jnp.tanh(projected[step] + state @ params["recurrent"])
        outputs.append(state @ params["readout"])
    return jnp.mean((jnp.stack(outputs) - targets) ** 2)


def embedding_bag(table: Array, ids: Array) -> Array:
    """Sum of the rows that each example names: ids [B, N] give [B, D]."""
    return jnp.sum(table[ids], axis=1)


def pairwise_products(features: Array) -> Array:
    """Inner products of all pairs: [B, F, D] gives [B, F * (F - 1) / 2]."""
    products = jnp.einsum("bfd,bgd->bfg", features, features)
    rows, columns = jnp.tril_indices(features.shape[1], -1)
    return products[:, rows, columns]


def dlrm_loss(params: Any, batch: Any) -> Array:
    dense = jax.nn.relu(batch["dense"] @ params["bottom"] + params["bottom_bias"])
    users = params["users"][batch["user"]]
    items = embedding_bag(params["items"], batch["items"])
    top = jnp.concatenate(
        [dense, pairwise_products(jnp.stack([dense, users, items], axis=1))], axis=-1
    )
    logits = top @ params["top"] + params["top_bias"]
    clicked = batch["clicked"].astype(logits.dtype)
    return jnp.mean(jax.nn.softplus(logits) - clicked * logits)


def several_arguments_loss(
    params: Any, features: Array, scale: Array, ids: Array, targets: Array
) -> Array:
    """features [T, D, B], ids [B, N], targets [K, B], and a scale that all examples share."""
    pooled = jnp.einsum("tdb,dh->bh", jnp.tanh(features * scale[:, None]), params["kernel"])
    context = jnp.mean(params["embedding"][ids], axis=1)
    return jnp.mean((params["readout"].T @ jax.nn.silu(pooled + context).T - targets) ** 2)


def standardise(x: Array, reference: Array) -> Array:
    return (x - jnp.mean(reference, axis=0)) / jnp.std(reference, axis=0)


def regression_loss(params: Any, x: Array, targets: Array) -> Array:
    hidden = jax.nn.relu(x @ params["kernel"] + params["bias"])
    return jnp.mean((hidden @ params["readout"] - targets) ** 2)


def standardised_loss(params: Any, x: Array, targets: Array) -> Array:
    return regression_loss(params, standardise(x, x), targets)


def standardised_loss_of_example(
    params: Any, x: Array, targets: Array, whole_x: Array, _targets: Array
) -> Array:
    return regression_loss(params, standardise(x, whole_x), targets)


MODELS = {
    "time_major": Model(
        structure="time-major batch",
        why="the examples lie along axis 1, and one weight is used at every step",
        loss=time_major_loss,
        parameters={
            "kernel": Weight((6, 11)),
            "bias": Weight((11,)),
            "recurrent": Weight((11, 11)),
            "readout": Weight((11, 7)),
        },
        inputs={
            "frames": Input((3, EXAMPLES, 6), axis=1),
            "targets": Input((3, EXAMPLES, 7), axis=1),
        },
    ),
    "dlrm": Model(
        structure="DLRM-like embeddings",
        why="scatter-adds into tables, one row and several rows an example, and pairwise products "
        "within an example",
        loss=dlrm_loss,
        parameters={
            "bottom": Weight((6, 8)),
            "bottom_bias": Weight((8,)),
            "users": Weight((11, 8)),
            "items": Weight((13, 8)),
            "top": Weight((11,)),
            "top_bias": Weight(()),
        },
        inputs={
            "batch": {
                "dense": Input((EXAMPLES, 6)),
                "user": Input((EXAMPLES,), below=11),
                "items": Input((EXAMPLES, 4), below=13),
                "clicked": Input((EXAMPLES,), below=2),
            }
        },
    ),
    "several_batch_arguments": Model(
        structure="several batch arguments",
        why="three arguments carry the examples along three different axes, and one carries none",
        loss=several_arguments_loss,
        parameters={
            "embedding": Weight((13, 12)),
            "kernel": Weight((6, 12)),
            "readout": Weight((12, 7)),
        },
        inputs={
            "features": Input((4, 6, EXAMPLES), axis=2),
            "scale": Input((6,), axis=None),
            "ids": Input((EXAMPLES, 3), below=13),
            "targets": Input((7, EXAMPLES), axis=1),
        },
    ),
    "standardised_inputs": Model(
        structure="standardised inputs",
        why="inputs are standardised by the batch's own mean and deviation: examples meet, but in "
        "data alone",
        loss=standardised_loss,
        parameters={"kernel": Weight((6, 12)), "bias": Weight((12,)), "readout": Weight((12, 7))},
        inputs={"x": Input((EXAMPLES, 6)), "targets": Input((EXAMPLES, 7))},
        verdict="separable given data",
        example_loss=standardised_loss_of_example,
    ),
}
