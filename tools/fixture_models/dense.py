"""Multilayer perceptrons."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fixture_models.layers import cross_entropy
from fixture_models.model import EXAMPLES, Input, Model, Weight


def mlp_logits(params: Any, x: Array) -> Array:
    hidden = jnp.tanh(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    return hidden @ params["output"]["kernel"] + params["output"]["bias"]


def mlp_loss(params: Any, x: Array, labels: Array) -> Array:
    return jnp.mean(cross_entropy(mlp_logits(params, x), labels))


def mlp_sum_loss(params: Any, x: Array, targets: Array) -> Array:
    return 0.5 * jnp.sum((mlp_logits(params, x) - targets) ** 2)


def mlp_weights(inputs: int, hidden: int, outputs: int) -> Any:
    return {
        "hidden": {"kernel": Weight((inputs, hidden)), "bias": Weight((hidden,))},
        "output": {"kernel": Weight((hidden, outputs)), "bias": Weight((outputs,))},
    }


def unit_columns(directions: Array) -> Array:
    return directions / jnp.sqrt(jnp.sum(directions**2, axis=0))


def weight_normalised_loss(params: Any, x: Array, targets: Array) -> Array:
    for layer in params["layers"]:
        x = jax.nn.gelu(
            x @ (unit_columns(layer["direction"]) * layer["gain"]) + layer["bias"],
            approximate=False,
        )
    decay = sum(jnp.sum(layer["gain"] ** 2) for layer in params["layers"])
    return jnp.mean((x @ params["readout"] - targets) ** 2) + 1e-2 * decay


def mixed_precision_loss(params: Any, ids: Array, x: Array, targets: Array) -> Array:
    """The embedding is stored in bfloat16; kernels are float32, and used in bfloat16."""
    kernel, readout = params["kernel"].astype(jnp.bfloat16), params["readout"].astype(jnp.bfloat16)
    hidden = x.astype(jnp.bfloat16) @ kernel + params["embedding"][ids]
    activations = jax.nn.silu(hidden + params["bias"].astype(jnp.bfloat16))
    return jnp.mean(((activations @ readout).astype(jnp.float32) - targets) ** 2)


def weight_normalised_layer(inputs: int, outputs: int) -> Any:
    return {
        "direction": Weight((inputs, outputs)),
        "gain": Weight((outputs,)),
        "bias": Weight((outputs,)),
    }


MODELS = {
    "mlp_biases": Model(
        structure="MLP with biases",
        why="contractions over the examples alone, and plain sums over them for the biases",
        loss=mlp_loss,
        parameters=mlp_weights(6, 13, 7),
        inputs={"x": Input((EXAMPLES, 6)), "labels": Input((EXAMPLES,), below=7)},
    ),
    "mlp_width_equals_batch": Model(
        structure="parameter dimension equal to the batch size",
        why="every dimension of every array is the batch size, so sizes tell nothing about the "
        "example axis",
        loss=mlp_loss,
        parameters=mlp_weights(EXAMPLES, EXAMPLES, EXAMPLES),
        inputs={"x": Input((EXAMPLES, EXAMPLES)), "labels": Input((EXAMPLES,), below=EXAMPLES)},
    ),
    "mlp_sum_loss": Model(
        structure="loss that sums",
        why="the loss is a sum over the examples, not a mean",
        loss=mlp_sum_loss,
        parameters=mlp_weights(11, 12, 6),
        inputs={"x": Input((EXAMPLES, 11)), "targets": Input((EXAMPLES, 6))},
        loss_reduction="sum",
    ),
    "mlp_weight_normalised": Model(
        structure="weight-normalised MLP",
        why="the tail from the contraction to the gradient goes through the weight's "
        "preprocessing and weight decay",
        loss=weight_normalised_loss,
        parameters={
            "layers": [weight_normalised_layer(6, 12), weight_normalised_layer(12, 11)],
            "readout": Weight((11, 7)),
        },
        inputs={"x": Input((EXAMPLES, 6)), "targets": Input((EXAMPLES, 7))},
    ),
    "mlp_mixed_precision": Model(
        structure="mixed precision",
        why="contractions in bfloat16, gradients in bfloat16 and float32",
        loss=mixed_precision_loss,
        parameters={
            "embedding": Weight((11, 12), "bfloat16"),
            "kernel": Weight((6, 12)),
            "bias": Weight((12,)),
            "readout": Weight((12, 7)),
        },
        inputs={
            "ids": Input((EXAMPLES,), below=11),
            "x": Input((EXAMPLES, 6)),
            "targets": Input((EXAMPLES, 7)),
        },
        low_precision=True,
    ),
}
