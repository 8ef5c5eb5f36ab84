"""The demo's models in plain JAX: a decoder LM and an MLP, with random parameters and batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

LAYERS, WIDTH, HEADS, VOCABULARY, LENGTH, TEXTS = 2, 64, 4, 256, 32, 16
MLP_LAYERS, MLP_WIDTH, ROWS = 3, 256, 64


@dataclass(frozen=True)
class DemoModel:
    """A mean loss of (parameters, *batch), and arguments; examples lie along batch axes 0."""

    name: str
    loss: Callable[..., Array]
    parameters: Any
    batch: tuple[Array, ...]


def mlp() -> DemoModel:
    """Dense layers with biases, mean squared error."""
    keys = jax.random.split(jax.random.key(0), MLP_LAYERS + 2)
    weights = [_normal(key, MLP_WIDTH, MLP_WIDTH) for key in keys[2:]]
    parameters = [{"kernel": w, "bias": jnp.zeros(MLP_WIDTH)} for w in weights]
    x, y = (jax.random.normal(key, (ROWS, MLP_WIDTH)) for key in keys[:2])
    return DemoModel("MLP", mlp_loss, parameters, (x, y))


def mlp_loss(parameters: Any, x: Array, y: Array) -> Array:
    """The mean over the examples of the squared error."""
    for layer in parameters:
        x = jax.nn.relu(x @ layer["kernel"] + layer["bias"])
    return jnp.mean(jnp.sum((x - y) ** 2, -1))


def decoder_lm() -> DemoModel:
    """Causal attention and gated layers under RMS norms; the embedding is the head as well."""
    keys = jax.random.split(jax.random.key(1), LAYERS + 3)
    parameters = {
        "embedding": _normal(keys[0], VOCABULARY, WIDTH),
        "positions": _normal(keys[1], LENGTH, WIDTH),
        "blocks": [_block_parameters(key) for key in keys[3:]],
        "final_norm": jnp.ones(WIDTH),
    }
    tokens = jax.random.randint(keys[2], (TEXTS, LENGTH + 1), 0, VOCABULARY)
    return DemoModel("decoder LM", lm_loss, parameters, (tokens,))


def lm_loss(parameters: Any, tokens: Array) -> Array:
    """The mean cross-entropy of the next token, over examples and positions."""
    x = parameters["embedding"][tokens[:, :-1]] + parameters["positions"]
    for block in parameters["blocks"]:
        x = x + _attention(_rms_norm(x, block["attention_norm"]), block)
        y = _rms_norm(x, block["mlp_norm"])
        x = x + (jax.nn.silu(y @ block["gate"]) * (y @ block["up"])) @ block["down"]
    logits = _rms_norm(x, parameters["final_norm"]) @ parameters["embedding"].T
    taken = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1)
    return -jnp.mean(taken)


def _attention(x: Array, block: Any) -> Array:
    heads = (*x.shape[:2], HEADS, WIDTH // HEADS)
    query, key, value = (jnp.reshape(x @ block[name], heads) for name in ("query", "key", "value"))
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / (WIDTH // HEADS) ** 0.5
    causal = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
    return jnp.reshape(jnp.einsum("bhqk,bkhd->bqhd", weights, value), x.shape) @ block["out"]


def _rms_norm(x: Array, scale: Array) -> Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def _block_parameters(key: Array) -> dict[str, Array]:
    shapes = dict.fromkeys(("query", "key", "value", "out"), (WIDTH, WIDTH))
    shapes |= {"gate": (WIDTH, 2 * WIDTH), "up": (WIDTH, 2 * WIDTH), "down": (2 * WIDTH, WIDTH)}
    keys = jax.random.split(key, len(shapes))
    kernels = {
        name: _normal(k, *shape) for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    return {**kernels, "attention_norm": jnp.ones(WIDTH), "mlp_norm": jnp.ones(WIDTH)}


def _normal(key: Array, rows: int, columns: int) -> Array:
    return jax.random.normal(key, (rows, columns)) / rows**0.5
