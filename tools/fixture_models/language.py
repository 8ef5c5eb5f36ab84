"""Decoder language models and losses over tokens."""

# pyright: reportUnknownMemberType=false
# JAX's own signatures are partly untyped.

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fixture_models.layers import attention, attention_weights, cross_entropy, rms_norm
from fixture_models.model import EXAMPLES, Input, Model, Weight

VOCABULARY, LENGTH, WIDTH = 13, 7, 12


def decoder_block(x: Array, params: Any) -> Array:
    x = x + attention(rms_norm(x, params["attention_norm"]), params["attention"], causal=True)
    y = rms_norm(x, params["mlp_norm"])
    return x + (jax.nn.silu(y @ params["gate"]) * (y @ params["up"])) @ params["down"]


def decoder(params: Any, embedding: Array, tokens: Array) -> Array:
    x = embedding[tokens] + params["positions"]
    for block in params["blocks"]:
        x = decoder_block(x, block)
    return rms_norm(x, params["final_norm"])


def untied_loss(params: Any, tokens: Array, targets: Array) -> Array:
    hidden = decoder(params, params["embedding"], tokens)
    return jnp.mean(cross_entropy(hidden @ params["head"], targets))


def tied_loss(params: Any, batch: Any) -> Array:
    hidden = decoder(params, params["embedding"], batch["tokens"])
    logits = jnp.einsum("bld,vd->blv", hidden, params["embedding"])
    return jnp.mean(cross_entropy(logits, batch["targets"]))


def flattened_loss(params: Any, tokens: Array, targets: Array) -> Array:
    embedded = jnp.take(params["embedding"], tokens, axis=0)
    flat = embedded.reshape(-1, embedded.shape[-1])
    hidden = jnp.tanh(flat @ params["kernel"] + params["bias"])
    return jnp.mean(cross_entropy(hidden @ params["head"], targets.reshape(-1)))


def masked_sum(params: Any, tokens: Array, targets: Array, mask: Array) -> Array:
    hidden = jnp.tanh(params["embedding"][tokens] @ params["kernel"] + params["bias"])
    return jnp.sum(cross_entropy(hidden @ params["head"], targets) * mask)


def masked_mean(params: Any, tokens: Array, targets: Array, mask: Array) -> Array:
    return masked_sum(params, tokens, targets, mask) / jnp.sum(mask)


def masked_mean_of_example(
    params: Any,
    tokens: Array,
    targets: Array,
    mask: Array,
    _tokens: Array,
    _targets: Array,
    whole_mask: Array,
) -> Array:
    """What one example adds to `masked_mean` of the whole batch, times the batch size."""
    return EXAMPLES * masked_sum(params, tokens, targets, mask) / jnp.sum(whole_mask)


def block_weights(width: int) -> Any:
    return {
        "attention_norm": Weight((width,)),
        "attention": attention_weights(width, 2, 6),
        "mlp_norm": Weight((width,)),
        "gate": Weight((width, 11)),
        "up": Weight((width, 11)),
        "down": Weight((11, width)),
    }


def decoder_weights(blocks: int) -> Any:
    return {
        "embedding": Weight((VOCABULARY, WIDTH)),
        "positions": Weight((LENGTH, WIDTH)),
        "blocks": [block_weights(WIDTH) for _ in range(blocks)],
        "final_norm": Weight((WIDTH,)),
    }


TOKENS = Input((EXAMPLES, LENGTH), below=VOCABULARY)
HEAD = Weight((WIDTH, VOCABULARY))
ONE_LAYER = {
    "embedding": Weight((VOCABULARY, 6)),
    "kernel": Weight((6, WIDTH)),
    "bias": Weight((WIDTH,)),
    "head": HEAD,
}

MODELS = {
    "lm_untied": Model(
        structure="decoder LM untied",
        why="contractions over examples and positions, an embedding's scatter-add, two blocks",
        loss=untied_loss,
        parameters={**decoder_weights(2), "head": HEAD},
        inputs={"tokens": TOKENS, "targets": TOKENS},
    ),
    "lm_tied": Model(
        structure="decoder LM tied",
        why="a gradient of two sites, the embedding's scatter-add and the head's contraction: "
        "squares have cross terms",
        loss=tied_loss,
        parameters=decoder_weights(1),
        inputs={"batch": {"tokens": TOKENS, "targets": TOKENS}},
    ),
    "flattened_tokens": Model(
        structure="flattened tokens",
        why="[B, L, D] becomes [B * L, D], so the example axis is merged with the positions",
        loss=flattened_loss,
        parameters=ONE_LAYER,
        inputs={"tokens": TOKENS, "targets": TOKENS},
    ),
    "masked_mean": Model(
        structure="masked mean",
        why="the normaliser is the whole batch's sum of the mask: it mixes examples, but depends "
        "on data alone",
        loss=masked_mean,
        parameters=ONE_LAYER,
        inputs={"tokens": TOKENS, "targets": TOKENS, "mask": Input((EXAMPLES, LENGTH), below=2)},
        verdict="separable given data",
        example_loss=masked_mean_of_example,
    ),
}
