"""What lets examples meet, so that a gradient is no example's: layers, losses, transformations.

Layers are as in layer_table.py; a mixing loss takes the rows [N], one of gradients their tree.
"""

import jax
import jax.numpy as jnp
from jax import lax

# Of an array and the dimension of its examples.
ALONG_BATCH = {
    "batch_norm": lambda x, n: (
        (x - x.mean(n, keepdims=True)) / jnp.sqrt(x.var(n, keepdims=True) + 0.1)
    ),
    "batch_centering": lambda x, n: jnp.sin(x - x.mean(n, keepdims=True)),
    "softmax_over_batch": lambda x, n: jax.nn.softmax(x, axis=n),
    "sort_over_batch": lambda x, n: jnp.sort(x, axis=n) + 0.5 * x,
    "cumsum_over_batch": lambda x, n: jnp.cumsum(x, axis=n),
    "minus_batch_maximum": lambda x, n: x - x.max(n, keepdims=True),
    "roll_batch": lambda x, n: x + jnp.roll(x, 1, n),
    "flip_batch": lambda x, n: x * jnp.flip(x, n),
    "first_example_everywhere": lambda x, n: x * lax.slice_in_dim(x, 0, 1, axis=n),
    "associative_scan_over_batch": lambda x, n: lax.associative_scan(jnp.add, jnp.sin(x), axis=n),
}


def keeping_axes(function):
    return lambda s, x, axes: (function(x, axes.index("N")), axes)


MIXING_LAYERS = {name: keeping_axes(function) for name, function in ALONG_BATCH.items()}
MIXING_GRADIENTS = {}


def named(table):
    def register(function):
        table[function.__name__] = function
        return function

    return register


def examples_first(x, axes):
    there = [axes.index("N"), *(i for i, a in enumerate(axes) if a != "N")]
    back = [there.index(i) for i in range(len(axes))]
    return x.transpose(there), back


@named(MIXING_LAYERS)
def batch_norm_over_positions(s, x, axes):
    over = tuple(i for i, a in enumerate(axes) if a != "C")
    return x * lax.rsqrt(jnp.mean(x * x, over, keepdims=True) + 0.1), axes


@named(MIXING_LAYERS)
def contrastive(s, x, axes):
    y, back = examples_first(x, axes)
    flat = y.reshape(y.shape[0], -1)
    return (y + jnp.tanh(flat @ flat.T @ flat).reshape(y.shape)).transpose(back), axes


@named(MIXING_LAYERS)
def attention_over_batch(s, x, axes):
    y, back = examples_first(x, axes)
    flat = y.reshape(y.shape[0], -1)
    return (jax.nn.softmax(flat @ flat.T) @ flat).reshape(y.shape).transpose(back), axes


@named(MIXING_LAYERS)
def regrouped(s, x, axes):
    """Rows and features read in another order: slices hold parts of several examples."""
    y, back = examples_first(x, axes)
    flat = y.reshape(y.shape[0], -1)
    return (y * flat.T.reshape(y.shape)).transpose(back), axes


@named(MIXING_LAYERS)
def convolution_over_batch(s, x, axes):
    y, back = examples_first(x, axes)
    flat = y.reshape(1, y.shape[0], -1)
    kernel = jnp.full((2, 1, flat.shape[-1]), 0.5, x.dtype)
    out = lax.conv_general_dilated(
        flat,
        kernel,
        (1,),
        "SAME",
        dimension_numbers=("NLC", "LIO", "NLC"),
        feature_group_count=flat.shape[-1],
    )
    return jnp.sin(out).reshape(y.shape).transpose(back), axes


@named(MIXING_LAYERS)
def batch_mean_in_scan(s, x, axes):
    return lax.fori_loop(
        0, 2, lambda _, h: jnp.sin(h - 0.5 * h.mean(axes.index("N"), keepdims=True)), x
    ), axes


@named(MIXING_LAYERS)
def batch_mean_carried_to_the_next_step(s, x, axes):
    def step(carry, _):
        h, mean = carry
        return (jnp.sin(h + mean), h.mean(axes.index("N"), keepdims=True)), None

    start = jnp.zeros([1 if a == "N" else n for a, n in zip(axes, x.shape, strict=True)], x.dtype)
    return lax.scan(step, (x, start), None, length=2)[0][0], axes


@named(MIXING_LAYERS)
def batch_mean_at_the_last_step(s, x, axes):
    def step(h, i):
        centred = lax.cond(
            i == 1, lambda h: h - h.mean(axes.index("N"), keepdims=True), lambda h: h, h
        )
        return jnp.sin(centred), None

    return lax.scan(step, x, jnp.arange(2))[0], axes


@named(MIXING_LAYERS)
def attention_over_batch_in_scan(s, x, axes):
    return lax.fori_loop(0, 2, lambda _, h: attention_over_batch(s, h, axes)[0], x), axes


@named(MIXING_LAYERS)
def cumsum_over_batch_in_scan(s, x, axes):
    return lax.fori_loop(0, 2, lambda _, h: jnp.sin(jnp.cumsum(h, axis=axes.index("N"))), x), axes


@named(MIXING_LAYERS)
def state_from_example_to_example(s, x, axes):
    """A recurrence along the batch, as if the examples were its steps."""

    def step(state, row):
        state = jnp.tanh(state + row)
        return state, state

    y, back = examples_first(x, axes)
    return lax.scan(step, jnp.zeros_like(y[0]), y)[1].transpose(back), axes


@named(MIXING_LAYERS)
def predecessor_of_each_example(s, x, axes):
    """A loop over the examples, with the one before."""
    y, back = examples_first(x, axes)
    return lax.scan(lambda before, row: (row, row * jnp.cos(before)), y[-1], y)[1].transpose(
        back
    ), axes


MIXING_LOSSES = {
    "squared_batch_mean": lambda rows: rows.mean() ** 2,
    "product_of_batch_sums": lambda rows: rows.sum() * jnp.sin(rows).sum(),
    "worst_row": lambda rows: rows.max(),
    "soft_worst_row": jax.nn.logsumexp,
    "batch_variance": lambda rows: rows.var(),
    "product_of_rows": lambda rows: rows.prod(),
}


def global_norm(grads):
    return jnp.sqrt(sum(jnp.sum(g.astype(jnp.float32) ** 2) for g in jax.tree.leaves(grads)))


@named(MIXING_GRADIENTS)
def clip_by_global_norm(grads):
    factor = jnp.minimum(1, 0.01 / global_norm(grads))
    return jax.tree.map(lambda g: g * factor.astype(g.dtype), grads)


@named(MIXING_GRADIENTS)
def sign_of_gradient(grads):
    return jax.tree.map(lambda g: g / (jnp.abs(g) + 0.01), grads)
