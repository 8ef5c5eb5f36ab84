"""Layers without weights: elementwise, pooling, and those that move features about."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.programs.layer_table import features_last, layer, layers, per_feature, width

# --- elementwise

layers({"tanh": lambda s, x, axes: jnp.tanh(x), "gelu": lambda s, x, axes: jax.nn.gelu(x)})
layers(
    {
        "relu": lambda s, x, axes: jax.nn.relu(x),
        "clip": lambda s, x, axes: jnp.clip(x, -0.5, 0.8),
        "threshold": lambda s, x, axes: jnp.maximum(x, per_feature(s.param(width(x, axes)), axes)),
    },
    kinked=True,
)

# --- pooling


def pool(x, axes, init, op, stride):
    window = [2 if a in "LHW" else 1 for a in axes]
    strides = [stride if a in "LHW" else 1 for a in axes]
    return lax.reduce_window(x, x.dtype.type(init), op, window, strides, "SAME"), axes


@layer("LC HWC")
def average_pool(s, x, axes):
    return pool(x, axes, 0, lax.add, s.knob % 2 + 1)


@layer("LC HWC", kinked=True)
def max_pool(s, x, axes):
    return pool(x, axes, -np.inf, lax.max, s.knob % 2 + 1)


@layer("LC HWC", gives="C")
def mean_of_positions(s, x, axes):
    return x.mean([i for i, a in enumerate(axes) if a not in "NC"]), axes.translate(
        str.maketrans("", "", "LHW")
    )


@layer("LC", gives="C", kinked=True)
def pick_position(s, x, axes):
    """Each example picks one of its positions by its own data."""
    best = jnp.argmax(x, axis=axes.index("L"), keepdims=True)
    return jnp.take_along_axis(x, best, axis=axes.index("L")).squeeze(
        axes.index("L")
    ), axes.replace("L", "")


# --- moving features about


@layer()
def rotate_axes(s, x, axes):
    turn = [(i + 1) % len(axes) for i in range(len(axes))]
    return x.transpose(turn), "".join(axes[i] for i in turn)


def sliced(s, x, axes):
    return lax.slice_in_dim(x, int(width(x, axes) > 1), None, axis=axes.index("C"))


def gated_halves(s, x, axes):
    doubled = jnp.concatenate([x, jnp.sin(x)], axis=axes.index("C"))
    a, b = jnp.split(doubled, 2, axis=axes.index("C"))
    return a * jax.nn.sigmoid(b)


layers(
    {
        "pad_features": lambda s, x, axes: jnp.pad(
            x, [(1, 1) if a == "C" else (0, 0) for a in axes], constant_values=0.5
        ),
        "slice_features": sliced,
        "concat_features": lambda s, x, axes: jnp.concatenate([x, jnp.sin(x)], axes.index("C")),
        "reverse_features": lambda s, x, axes: jnp.flip(x, axes.index("C")),
        "roll_features": lambda s, x, axes: jnp.roll(x, 1, axes.index("C")),
        "split_features": gated_halves,
        "cumsum_features": lambda s, x, axes: jnp.cumsum(x, axis=axes.index("C")),
        "softmax_features": lambda s, x, axes: jax.nn.softmax(x, axis=axes.index("C")),
    }
)
layers({"sort_features": lambda s, x, axes: jnp.sort(x, axis=axes.index("C"))}, kinked=True)


@layer(kinked=True)
def top_features(s, x, axes):
    there, back = features_last(axes)
    y, _ = lax.top_k(x.transpose(there), (width(x, axes) + 1) // 2)
    return y.transpose(back), axes


@layer()
def permute_features(s, x, axes):
    order = np.random.default_rng(s.knob).permutation(width(x, axes))
    return jnp.take(x, order, axis=axes.index("C")), axes
