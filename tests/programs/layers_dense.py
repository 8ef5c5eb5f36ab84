"""Normalisation, attention, gates, residuals, dropout; linear layers and convolutions."""

from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.programs.layer_table import features_last, layer, layers, per_feature, times, width

# --- gains, biases, normalisation; the large epsilon keeps tiny groups well conditioned


@layer()
def scale_by_parameter(s, x, axes):
    return x * s.param(), axes


@layer()
def gain(s, x, axes):
    return x * per_feature(s.param(width(x, axes)), axes), axes


@layer("LC")
def position_embedding(s, x, axes):
    table = s.param(*(x.shape[axes.index(a)] for a in axes if a != "N"))
    return x + jnp.expand_dims(table, axes.index("N")), axes


def standardised(x, over):
    return (x - x.mean(over, keepdims=True)) * lax.rsqrt(x.var(over, keepdims=True) + 0.1)


@layer()
def layer_norm(s, x, axes):
    g, b = (per_feature(s.param(width(x, axes)), axes) for _ in range(2))
    return standardised(x, axes.index("C")) * g + b, axes


@layer()
def rms_norm(s, x, axes):
    square = jnp.mean(x * x, axis=axes.index("C"), keepdims=True)
    return x * lax.rsqrt(square + 0.1) * per_feature(s.param(width(x, axes)), axes), axes


@layer()
def group_norm(s, x, axes):
    there, back = features_last(axes)
    y = x.transpose(there)
    groups = 2 if y.shape[-1] % 2 == 0 else 1
    split = y.reshape(*y.shape[:-1], groups, -1)
    example = axes.replace("C", "").index("N")
    over = tuple(i for i in range(split.ndim) if i not in (example, split.ndim - 2))
    return standardised(split, over).reshape(y.shape).transpose(back) * per_feature(
        s.param(y.shape[-1]), axes
    ), axes


# --- attention, gates, residuals, shared weights


@layer("LC")
def attention(s, x, axes):
    keys, c = axes.replace("L", "M"), width(x, axes)
    q, k, v = (times(x, s.param(c, c), axes) for _ in range(3))
    scores = jnp.einsum(f"{axes},{keys}->NLM", q, k) / np.sqrt(c).astype(s.compute)
    causal = np.tri(scores.shape[-1], dtype=bool)
    p = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    return jnp.einsum(f"NLM,{keys}->{axes}", p, v), axes


@layer()
def gated(s, x, axes):
    c = width(x, axes)
    return times(x, s.weight(c, s.knob), axes) * jax.nn.sigmoid(
        times(x, s.param(c, s.knob), axes)
    ), axes


@layer()
def residual(s, x, axes):
    c = width(x, axes)
    return x + jnp.tanh(times(x, s.weight(c, c), axes)), axes


@layer()
def repeated(s, x, axes):
    c = width(x, axes)
    w = s.weight(c, c)
    for _ in range(s.knob % 3 + 1):
        x = jnp.tanh(times(x, w, axes))
    return x, axes


@layer()
def rematerialised(s, x, axes):
    w = s.weight(width(x, axes), s.knob)
    return jax.checkpoint(lambda x, w: jnp.tanh(times(x, w, axes)))(x, w), axes


@layer()
def frozen(s, x, axes):
    return jnp.sin(x) + lax.stop_gradient(jnp.sin(times(x, s.param(width(x, axes), 1), axes))), axes


@layer()
def dropout(s, x, axes):
    """One mask for the whole batch: a value without examples whose rows belong to them."""
    whole = [s.batch if a == "N" else n for a, n in zip(axes, x.shape, strict=True)]
    keep = jax.random.bernoulli(jax.random.key(s.knob), 0.7, whole)
    return jnp.where(s.rows(keep, axes.index("N")), x / 0.7, 0).astype(s.compute), axes


@layer()
def constant_rows(s, x, axes):
    """Importance weights as a constant of the program, one for each place in the batch."""
    whole = np.linspace(0.5, 1.5, s.batch).reshape([-1 if a == "N" else 1 for a in axes])
    return x * s.rows(jnp.asarray(whole, x.dtype), axes.index("N")), axes


# --- linear layers


@layer()
def dense(s, x, axes):
    return times(x, s.weight(width(x, axes), s.knob), axes), axes


@layer()
def dense_bias(s, x, axes):
    y = times(x, s.weight(width(x, axes), s.knob), axes)
    return y + per_feature(s.param(s.knob), axes), axes


@layer("LC HWC")
def dense_on_flattened_positions(s, x, axes):
    there, back = features_last(axes)
    y = x.transpose(there)
    flat = y.reshape(-1, y.shape[-1]) @ s.weight(y.shape[-1], s.knob) + s.param(s.knob)
    return flat.reshape(*y.shape[:-1], s.knob).transpose(back), axes


@layer("LC", gives="C")
def dense_on_positions_and_features(s, x, axes):
    w = s.param(x.shape[axes.index("L")], width(x, axes), s.knob)
    return jnp.einsum(f"{axes},LCD->ND", x, w), "NC"


@layer("LC HWC", gives="C")
def flatten_to_features(s, x, axes):
    there = [axes.index("N"), *(i for i, a in enumerate(axes) if a != "N")]
    y = x.transpose(there)
    return y.reshape(y.shape[0], -1) @ s.weight(prod(y.shape[1:]), s.knob), "NC"


@layer()
def block_diagonal(s, x, axes):
    there, back = features_last(axes)
    y = x.transpose(there)
    heads = 2 if y.shape[-1] % 2 == 0 else 1
    split = y.reshape(*y.shape[:-1], heads, -1)
    w = s.param(heads, split.shape[-1], s.knob)
    return jnp.einsum("...hd,hde->...he", split, w).reshape(*y.shape[:-1], -1).transpose(back), axes


@layer()
def bilinear(s, x, axes):
    w = s.param(width(x, axes), width(x, axes), s.knob)
    return jnp.einsum(
        f"{axes},{axes.replace('C', 'D')},CDE->{axes.replace('C', 'E')}", x, x, w
    ), axes


@layer("LC")
def mix_positions(s, x, axes):
    length = x.shape[axes.index("L")]
    return jnp.einsum(f"{axes},LM->{axes.replace('L', 'M')}", x, s.weight(length, s.knob)), axes


@layer()
def triangular_solve(s, x, axes):
    there, back = features_last(axes)
    y = x.transpose(there).astype(s.stored)
    w = s.param(y.shape[-1], y.shape[-1]).astype(s.stored)
    lower = 2 * jnp.eye(y.shape[-1], dtype=w.dtype) + 0.3 * jnp.tril(w)
    solved = lax.linalg.triangular_solve(
        lower, y.reshape(-1, y.shape[-1]), left_side=False, lower=True
    )
    return solved.reshape(y.shape).astype(s.compute).transpose(back), axes


@layer()
def spectral_filter(s, x, axes):
    axis = axes.index("C")
    n = width(x, axes)
    kernel = per_feature(jnp.fft.rfft(s.param(n).astype(s.stored)), axes)
    return jnp.fft.irfft(
        jnp.fft.rfft(x.astype(s.stored), axis=axis) * kernel, n=n, axis=axis
    ).astype(s.compute), axes


# --- convolutions


def convolution(kernel=2, groups=lambda features: 1, padding="SAME", **by_dimension):
    """Of kernels of one size in each dimension; `padding` and the others: of each dimension."""

    def layer(s, x, axes):
        spatial = "".join(sorted(set(axes) - set("NC")))
        count = groups(width(x, axes))
        out = -(-s.knob // count) * count
        w = s.param(*[kernel] * len(spatial), width(x, axes) // count, out)
        each = {name: (value,) * len(spatial) for name, value in by_dimension.items()}
        how = {"window_strides": (1,) * len(spatial), **each, "feature_group_count": count}
        around = padding if padding == "SAME" else (padding,) * len(spatial)
        numbers = (axes, spatial + "IO", axes)
        return lax.conv_general_dilated(x, w, padding=around, dimension_numbers=numbers, **how)

    return layer


layers(
    {
        "conv": convolution(3),
        "conv_strided": convolution(window_strides=2),
        "conv_dilated": convolution(rhs_dilation=2),
        # Padding stays below the kernel's size: the input gradient of more has a negative one,
        # which XLA gets wrong on CPU (openxla/xla#48713).
        "conv_causal": convolution(padding=(1, 0)),
        "conv_transposed": convolution(3, padding=(1, 2), lhs_dilation=2),
        "conv_grouped": convolution(groups=lambda features: 2 - features % 2),
        "conv_depthwise": convolution(groups=lambda features: features),
    },
    "LC HWC",
)
