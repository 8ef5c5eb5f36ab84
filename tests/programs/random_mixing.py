"""What lets examples meet, so that a gradient is no example's: layers, losses, transformations.

Layers are as in random_layers.py. A mixing loss takes the rows [N] of the loss, a mixing of
gradients takes their tree.
"""

import jax
import jax.numpy as jnp
from jax import lax

MIXING_LAYERS = {}
MIXING_LOSSES = {}
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
def batch_norm(s, x, axes):
    n = axes.index("N")
    return (x - x.mean(n, keepdims=True)) / jnp.sqrt(x.var(n, keepdims=True) + 0.1), axes


@named(MIXING_LAYERS)
def batch_centering(s, x, axes):
    return jnp.sin(x - x.mean(axes.index("N"), keepdims=True)), axes


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
def softmax_over_batch(s, x, axes):
    return jax.nn.softmax(x, axis=axes.index("N")), axes


@named(MIXING_LAYERS)
def sort_over_batch(s, x, axes):
    return jnp.sort(x, axis=axes.index("N")) + 0.5 * x, axes


@named(MIXING_LAYERS)
def cumsum_over_batch(s, x, axes):
    return jnp.cumsum(x, axis=axes.index("N")), axes


@named(MIXING_LAYERS)
def minus_batch_maximum(s, x, axes):
    return x - x.max(axes.index("N"), keepdims=True), axes


@named(MIXING_LAYERS)
def roll_batch(s, x, axes):
    return x + jnp.roll(x, 1, axes.index("N")), axes


@named(MIXING_LAYERS)
def flip_batch(s, x, axes):
    return x * jnp.flip(x, axes.index("N")), axes


@named(MIXING_LAYERS)
def first_example_everywhere(s, x, axes):
    return x * lax.slice_in_dim(x, 0, 1, axis=axes.index("N")), axes


@named(MIXING_LAYERS)
def regrouped(s, x, axes):
    """Rows of the batch and features read in another order: slices of the result hold parts of
    several examples.
    """
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
def associative_scan_over_batch(s, x, axes):
    return lax.associative_scan(jnp.add, jnp.sin(x), axis=axes.index("N")), axes


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


@named(MIXING_LOSSES)
def squared_batch_mean(rows):
    return rows.mean() ** 2


@named(MIXING_LOSSES)
def product_of_batch_sums(rows):
    return rows.sum() * jnp.sin(rows).sum()


@named(MIXING_LOSSES)
def worst_row(rows):
    return rows.max()


@named(MIXING_LOSSES)
def soft_worst_row(rows):
    return jax.nn.logsumexp(rows)


@named(MIXING_LOSSES)
def batch_variance(rows):
    return rows.var()


@named(MIXING_LOSSES)
def product_of_rows(rows):
    return rows.prod()


def global_norm(grads):
    return jnp.sqrt(sum(jnp.sum(g.astype(jnp.float32) ** 2) for g in jax.tree.leaves(grads)))


@named(MIXING_GRADIENTS)
def clip_by_global_norm(grads):
    factor = jnp.minimum(1, 0.01 / global_norm(grads))
    return jax.tree.map(lambda g: g * factor.astype(g.dtype), grads)


@named(MIXING_GRADIENTS)
def sign_of_gradient(grads):
    return jax.tree.map(lambda g: g / (jnp.abs(g) + 0.01), grads)
