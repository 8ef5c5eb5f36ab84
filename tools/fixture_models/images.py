"""Convolutional networks and a vision transformer."""

# pyright: reportUnknownMemberType=false
# JAX's own signatures are partly untyped.

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fixture_models.layers import (
    attention,
    attention_weights,
    convolution,
    cross_entropy,
    group_norm,
    layer_norm,
)
from fixture_models.model import EXAMPLES, Input, Model, Weight


def group_norm_loss(params: Any, images: Array, labels: Array) -> Array:
    x = images
    for layer in params["layers"]:
        x = jax.nn.relu(
            group_norm(convolution(x, layer["kernel"]), layer["scale"], layer["bias"], groups=3)
        )
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    logits = x.reshape(x.shape[0], -1) @ params["kernel"] + params["bias"]
    return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(labels.shape[0]), labels])


def residual_block(x: Array, params: Any) -> Array:
    """A strided block: depthwise, then pointwise; the shortcut is a strided 1x1 convolution."""
    y = jax.nn.silu(
        convolution(x, params["depthwise"], stride=2, groups=x.shape[-1]) + params["depthwise_bias"]
    )
    y = convolution(y, params["pointwise"])
    return y + convolution(x, params["shortcut"], stride=2)


def residual_loss(params: Any, images: Array, targets: Array) -> Array:
    x = jax.nn.silu(convolution(images, params["stem"], stride=2))
    x = residual_block(x, params["block"])
    x = x + convolution(jax.nn.silu(x), params["grouped"], groups=2, dilation=2)
    pooled = jnp.mean(x, axis=(1, 2))
    return jnp.mean(jnp.sum((pooled @ params["kernel"] - targets) ** 2, axis=-1))


def upsample(x: Array, kernel: Array) -> Array:
    return jax.lax.conv_transpose(
        x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def unet_loss(params: Any, images: Array, targets: Array) -> Array:
    fine = jax.nn.gelu(convolution(images, params["fine"]))
    coarse = jax.nn.gelu(convolution(fine, params["down"], stride=2))
    bottom = jax.nn.gelu(convolution(coarse, params["bottom"], stride=2))
    coarse = jnp.concatenate([coarse, jax.nn.gelu(upsample(bottom, params["up_bottom"]))], axis=-1)
    fine = jnp.concatenate([fine, jax.nn.gelu(upsample(coarse, params["up_coarse"]))], axis=-1)
    return jnp.mean((convolution(fine, params["output"]) + params["output_bias"] - targets) ** 2)


def vit_tokens(params: Any, images: Array) -> Array:
    """Patches by a convolution as wide as its stride, a class token, positions added."""
    patches = convolution(images, params["patches"], stride=4, padding="VALID")
    tokens = patches.reshape(patches.shape[0], -1, patches.shape[-1])
    first = jnp.broadcast_to(params["class_token"], (tokens.shape[0], 1, tokens.shape[-1]))
    return jnp.concatenate([first, tokens], axis=1) + params["positions"]


def vit_loss(params: Any, images: Array, labels: Array) -> Array:
    x = vit_tokens(params, images)
    x = x + attention(layer_norm(x, **params["attention_norm"]), params["attention"], causal=False)
    y = jax.nn.gelu(
        layer_norm(x, **params["mlp_norm"]) @ params["inner"] + params["inner_bias"],
        approximate=False,
    )
    x = x + y @ params["outer"]
    return jnp.mean(cross_entropy(x[:, 0] @ params["head"] + params["head_bias"], labels))


def normalised_layer(size: int, inputs: int, outputs: int) -> Any:
    return {
        "kernel": Weight((size, size, inputs, outputs)),
        "scale": Weight((outputs,)),
        "bias": Weight((outputs,)),
    }


def norm_weights(width: int) -> Any:
    return {"scale": Weight((width,)), "bias": Weight((width,))}


MODELS = {
    "cnn_group_norm": Model(
        structure="CNN with GroupNorm",
        why="convolutions, normalisation within each example, max pooling, labels picked by "
        "example number",
        loss=group_norm_loss,
        parameters={
            "layers": [normalised_layer(3, 3, 6), normalised_layer(3, 6, 9)],
            "kernel": Weight((2 * 3 * 9, 7)),
            "bias": Weight((7,)),
        },
        inputs={"images": Input((EXAMPLES, 8, 12, 3)), "labels": Input((EXAMPLES,), below=7)},
    ),
    "residual_depthwise": Model(
        structure="residual net with strided and depthwise convolutions",
        why="filter gradients of strided, depthwise, pointwise, and grouped dilated convolutions",
        loss=residual_loss,
        parameters={
            "stem": Weight((3, 3, 3, 6)),
            "block": {
                "depthwise": Weight((3, 3, 1, 6)),
                "depthwise_bias": Weight((6,)),
                "pointwise": Weight((1, 1, 6, 8)),
                "shortcut": Weight((1, 1, 6, 8)),
            },
            "grouped": Weight((3, 3, 4, 8)),
            "kernel": Weight((8, 7)),
        },
        inputs={"images": Input((EXAMPLES, 12, 16, 3)), "targets": Input((EXAMPLES, 7))},
    ),
    "unet_transposed": Model(
        structure="U-Net with transposed convolutions",
        why="filter gradients of transposed convolutions, and skip connections that join channels",
        loss=unet_loss,
        parameters={
            "fine": Weight((3, 3, 2, 3)),
            "down": Weight((3, 3, 3, 4)),
            "bottom": Weight((3, 3, 4, 6)),
            "up_bottom": Weight((2, 2, 6, 4)),
            "up_coarse": Weight((2, 2, 8, 3)),
            "output": Weight((1, 1, 6, 2)),
            "output_bias": Weight((2,)),
        },
        inputs={"images": Input((EXAMPLES, 8, 12, 2)), "targets": Input((EXAMPLES, 8, 12, 2))},
    ),
    "vit": Model(
        structure="ViT",
        why="patches by a convolution; a class token broadcast over the examples; attention",
        loss=vit_loss,
        parameters={
            "patches": Weight((4, 4, 3, 12)),
            "class_token": Weight((12,)),
            "positions": Weight((7, 12)),
            "attention_norm": norm_weights(12),
            "attention": attention_weights(12, 3, 4),
            "mlp_norm": norm_weights(12),
            "inner": Weight((12, 13)),
            "inner_bias": Weight((13,)),
            "outer": Weight((13, 12)),
            "head": Weight((12, 9)),
            "head_bias": Weight((9,)),
        },
        inputs={"images": Input((EXAMPLES, 8, 12, 3)), "labels": Input((EXAMPLES,), below=9)},
    ),
}
