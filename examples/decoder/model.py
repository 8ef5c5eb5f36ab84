"""The model: causal attention and gated layers under RMS norms, scanned over its layers.

Parameters are of float32 and computation is of bfloat16. Each layer is computed again in the
backward pass. The embedding is the head as well.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from examples.decoder.attention import attend
from examples.decoder.axes import Layout, place

COMPUTED = jnp.bfloat16


@dataclass(frozen=True)
class Sizes:
    """The shape of a model; `hidden` is the width within a gated layer."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    hidden: int = 128
    vocabulary: int = 256
    length: int = 32


AXES: dict[str, Any] = {
    "embedding": ("vocabulary", "width"),
    "positions": ("length", "width"),
    "layers": {
        "attention_scale": ("layers", "width"),
        "query_key_value": ("layers", "three", "width", "heads", "features"),
        "out": ("layers", "heads", "features", "width"),
        "gated_scale": ("layers", "width"),
        "gate_up": ("layers", "two", "width", "hidden"),
        "down": ("layers", "hidden", "width"),
    },
    "final_scale": ("width",),
}
# Which parameters count together in the norms that are logged.
GROUPS: dict[str, Any] = {
    "embedding": "embedding",
    "positions": "embedding",
    "layers": {
        "attention_scale": "attention",
        "query_key_value": "attention",
        "out": "attention",
        "gated_scale": "gated",
        "gate_up": "gated",
        "down": "gated",
    },
    "final_scale": "final_scale",
}


def init(key: Array, sizes: Sizes) -> dict[str, Any]:
    """Parameters of normal numbers, each array of the scale that keeps its outputs near one."""
    n, width, heads = sizes.layers, sizes.width, sizes.heads
    features, hidden = width // heads, sizes.hidden
    keys = iter(jax.random.split(key, 6))

    def normal(inputs: int, *shape: int) -> Array:
        return jax.random.normal(next(keys), shape) / inputs**0.5

    layers = {
        "attention_scale": jnp.ones((n, width)),
        "query_key_value": normal(width, n, 3, width, heads, features),
        "out": normal(width, n, heads, features, width),
        "gated_scale": jnp.ones((n, width)),
        "gate_up": normal(width, n, 2, width, hidden),
        "down": normal(hidden, n, hidden, width),
    }
    return {
        "embedding": normal(width, sizes.vocabulary, width),
        "positions": normal(width, sizes.length, width),
        "layers": layers,
        "final_scale": jnp.ones(width),
    }


def mean_loss(layout: Layout, params: Any, tokens: Array) -> Array:
    """The mean cross-entropy of the next token, of `tokens` [B, length + 1]."""
    ids, labels = tokens[:, :-1], tokens[:, 1:]
    h = params["embedding"][ids] + params["positions"]
    h = place(layout, h.astype(COMPUTED), "examples", "length", "features")
    layer = jax.checkpoint(partial(_layer, layout), prevent_cse=False)
    h, _ = lax.scan(layer, h, params["layers"])
    h = _normalised(h, params["final_scale"])
    logits = jnp.einsum("blw,vw->blv", h, params["embedding"].astype(COMPUTED))
    logits = place(layout, logits.astype(jnp.float32), "examples", "length", "vocabulary")
    own = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - own)


def _layer(layout: Layout, h: Array, layer: Any) -> tuple[Array, None]:
    weights = jax.tree.map(lambda w: w.astype(COMPUTED), layer)
    for part in (_attention, _gated):
        h = place(layout, h + part(layout, h, weights), "examples", "length", "features")
    return h, None


def _attention(layout: Layout, h: Array, layer: Any) -> Array:
    x = _normalised(h, layer["attention_scale"])
    projected = jnp.einsum("blw,swhf->sbhlf", x, layer["query_key_value"])
    names = ("three", "examples", "heads", "length", "features")
    query, key, value = place(layout, projected, *names)
    mixed = place(layout, attend(layout, query, key, value), *names[1:])
    return jnp.einsum("bhlf,hfw->blw", mixed, layer["out"])


def _gated(layout: Layout, h: Array, layer: Any) -> Array:
    x = _normalised(h, layer["gated_scale"])
    projected = jnp.einsum("blw,swh->sblh", x, layer["gate_up"])
    gate, up = place(layout, projected, "two", "examples", "length", "hidden")
    return jnp.einsum("blh,hw->blw", jax.nn.silu(gate) * up, layer["down"])


def _normalised(h: Array, scale: Array) -> Array:
    wide = h.astype(jnp.float32)
    root = lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)
    return (wide * root).astype(h.dtype) * scale.astype(h.dtype)
