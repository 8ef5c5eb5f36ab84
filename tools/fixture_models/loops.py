"""Models with loops and branches."""

# JAX's own signatures are partly untyped, lax.scan's among them.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from fixture_models.layers import cross_entropy, rms_norm
from fixture_models.model import EXAMPLES, Input, Model, Weight

LAYERS, STEPS, WIDTH, VOCABULARY = 3, 4, 6, 11


def causal_block(x: Array, layer: Any) -> Array:
    y = rms_norm(x, layer["scale"])
    scores = (y @ layer["query"]) @ y.swapaxes(1, 2)
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[1:], bool)), scores, -1e9)
    return x + jnp.tanh(jax.nn.softmax(scores) @ y @ layer["value"])


def language_loss(params: Any, batch: Any, block: Any) -> Array:
    x = params["embedding"][batch["tokens"]]
    x, _ = lax.scan(lambda x, layer: (block(x, layer), None), x, params["layers"])
    return jnp.mean(cross_entropy(x @ params["embedding"].T, batch["targets"]))


def scanned_layers_loss(params: Any, batch: Any) -> Array:
    return language_loss(params, batch, causal_block)


def rematerialised_layers_loss(params: Any, batch: Any) -> Array:
    return language_loss(params, batch, jax.checkpoint(causal_block))


def lstm_loss(params: Any, frames: Array, targets: Array) -> Array:
    def step(carry: tuple[Array, Array], frame: Array) -> Any:
        hidden, cell = carry
        gates = hidden @ params["recurrent"] + frame @ params["kernel"] + params["bias"]
        i, f, o, g = jnp.split(gates, 4, -1)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
        return (hidden, cell), hidden

    zeros = jnp.zeros((frames.shape[0], WIDTH))
    _, outputs = lax.scan(step, (zeros, zeros), frames.swapaxes(0, 1))
    return jnp.mean((outputs.swapaxes(0, 1) @ params["readout"] - targets) ** 2)


def branching_loss(params: Any, x: Array, targets: Array) -> Array:
    def wide(h: Array) -> Array:
        return jnp.tanh(h @ params["first"]) @ params["second"]

    def narrow(h: Array) -> Array:
        return params["switch"] * jnp.sin(h @ params["first"] @ params["second"])

    h = lax.cond(params["switch"] > 0, wide, narrow, x @ params["kernel"])
    return jnp.mean((h - targets) ** 2) + 1e-2 * params["switch"] ** 2


def centred_block(x: Array, kernel: Array) -> Array:
    """The batch's mean is taken from each layer's output."""
    h = jnp.tanh(x @ kernel)
    return h - jnp.mean(h, axis=0)


def centred_loss(params: Any, x: Array, targets: Array) -> Array:
    h, _ = lax.scan(lambda h, kernel: (centred_block(h, kernel), None), x, params["kernels"])
    return jnp.mean((h - targets) ** 2)


TOKENS = Input((EXAMPLES, STEPS), below=VOCABULARY)
LANGUAGE = {
    "embedding": Weight((VOCABULARY, WIDTH)),
    "layers": {
        "scale": Weight((LAYERS, WIDTH)),
        "query": Weight((LAYERS, WIDTH, WIDTH)),
        "value": Weight((LAYERS, WIDTH, WIDTH)),
    },
}
FEATURES = {"x": Input((EXAMPLES, WIDTH)), "targets": Input((EXAMPLES, WIDTH))}

MODELS = {
    "lm_scanned_layers": Model(
        structure="decoder LM that scans over its layers",
        why="a loop stacks the gradients of the layers; the tied embedding is used before and "
        "behind it",
        loss=scanned_layers_loss,
        parameters=LANGUAGE,
        inputs={"batch": {"tokens": TOKENS, "targets": TOKENS}},
    ),
    "lm_rematerialised_layers": Model(
        structure="decoder LM that scans over checkpointed layers",
        why="each layer is computed again in the backward loop, behind an optimization barrier",
        loss=rematerialised_layers_loss,
        parameters=LANGUAGE,
        inputs={"batch": {"tokens": TOKENS, "targets": TOKENS}},
    ),
    "lstm_over_time": Model(
        structure="LSTM over time",
        why="one weight at each step: the backward loop adds its gradients up in its carry",
        loss=lstm_loss,
        parameters={
            "kernel": Weight((7, 4 * WIDTH)),
            "recurrent": Weight((WIDTH, 4 * WIDTH)),
            "bias": Weight((4 * WIDTH,)),
            "readout": Weight((WIDTH, 3)),
        },
        inputs={"frames": Input((EXAMPLES, STEPS, 7)), "targets": Input((EXAMPLES, STEPS, 3))},
    ),
    "branch_on_parameter": Model(
        structure="branch on a parameter",
        why="which branch is taken is the same for all examples, but known at run time only",
        loss=branching_loss,
        parameters={
            "switch": Weight(()),
            "kernel": Weight((WIDTH, WIDTH)),
            "first": Weight((WIDTH, 8)),
            "second": Weight((8, WIDTH)),
        },
        inputs=FEATURES,
    ),
    "mixing_in_scan": Model(
        structure="batch mean in a scan over layers",
        why="each layer of the loop subtracts the mean over the batch",
        loss=centred_loss,
        parameters={"kernels": Weight((LAYERS, WIDTH, WIDTH))},
        inputs=FEATURES,
        verdict="not separable",
        mixing=centred_block,
    ),
}
