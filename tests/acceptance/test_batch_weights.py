"""Weights, padding and masks of a batch: the reference says what of it is each example's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from tests.api.test_batches import (
    FEATURES,
    LENGTH,
    PARAMS,
    TOKENS,
    WIDTH,
    B,
    assert_exact,
    row_losses,
    squares,
)

RNG = np.random.default_rng(1)
WEIGHTS = jnp.asarray(RNG.uniform(0.5, 2, B), jnp.float32)
MASK = jnp.asarray(RNG.random((B, LENGTH)) < 0.6)
PADDING = jnp.arange(B) >= 3


def row_gradients(row_loss, *rows):
    """The gradient of row_loss(params, *row) for each row."""
    return jax.jit(jax.vmap(jax.grad(row_loss), (None, *[0] * len(rows))))(PARAMS, *rows)


def weighted_mean(p, x, weights):
    return jnp.sum(weights * row_losses(p, x)) / weights.sum()


def test_a_weighted_mean():
    examples = row_gradients(
        lambda p, x, w: B * w * row_losses(p, x) / WEIGHTS.sum(), FEATURES, WEIGHTS
    )
    assert_exact(weighted_mean, (FEATURES, WEIGHTS), 0, examples)


def test_the_normaliser_is_said_to_be_data():
    f = hs.grad(weighted_mean, batch_argnums=(1, 2), statistics=hs.second_moment())
    assert "taken as constant: stablehlo.reduce at" in str(hs.explain(f, PARAMS, FEATURES, WEIGHTS))


def test_weights_of_a_sum():
    def loss(p, x, weights):
        return jnp.sum(weights * row_losses(p, x)) + 0.1 * jnp.sum(p["b"] ** 2)

    def row_loss(p, x, w):
        return w * row_losses(p, x) + 0.1 * jnp.sum(p["b"] ** 2) / B

    examples = row_gradients(row_loss, FEATURES, WEIGHTS)
    assert_exact(loss, (FEATURES, WEIGHTS), 0, examples, loss_reduction="sum")


def test_a_mean_over_all_tokens_that_count():
    def loss(p, x, mask):
        return jnp.sum(mask * row_losses(p, x)) / jnp.maximum(mask.sum(), 1)

    def row_loss(p, x, mask):
        return B * jnp.sum(mask * row_losses(p, x)) / MASK.sum()

    assert_exact(loss, (TOKENS, MASK), 0, row_gradients(row_loss, TOKENS, MASK))


@pytest.mark.parametrize(
    "counted", [False, True], ids=["mean over all", "mean over those that count"]
)
def test_padding_examples_have_no_gradient(counted):
    def loss(p, x, is_padding):
        rows = jnp.where(is_padding, 0, row_losses(p, x))
        return rows.sum() / jnp.sum(~is_padding) if counted else rows.mean()

    def row_loss(p, x, is_padding):
        return jnp.where(is_padding, 0, row_losses(p, x)) * (
            B / jnp.sum(~PADDING) if counted else 1
        )

    found = assert_exact(loss, (FEATURES, PADDING), 0, row_gradients(row_loss, FEATURES, PADDING))
    assert not any(np.any(g[PADDING]) for g in found["all"].values())


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_dropout_drawn_for_the_whole_batch(implementation):
    key = jax.random.key(7, impl=implementation)

    def loss(p, x):
        keep = jax.random.bernoulli(key, 0.5, (B, WIDTH))
        return jnp.mean(squares(jnp.where(keep, jnp.tanh(x @ p["w"] + p["b"]) / 0.5, 0) @ p["v"]))

    def row_loss(p, x, keep):
        return squares(jnp.where(keep, jnp.tanh(x @ p["w"] + p["b"]) / 0.5, 0) @ p["v"])

    assert_exact(
        loss,
        (FEATURES,),
        0,
        row_gradients(row_loss, FEATURES, jax.random.bernoulli(key, 0.5, (B, WIDTH))),
    )


def test_noise_drawn_for_the_whole_batch_in_time_major_order():
    noise = jax.random.normal(jax.random.key(7), (LENGTH, B, WIDTH))

    def loss(p, x):
        return jnp.mean(row_losses(p, x + jax.random.normal(jax.random.key(7), x.shape)).mean(0))

    examples = row_gradients(
        lambda p, x, n: row_losses(p, x + n).mean(), TOKENS, noise.swapaxes(0, 1)
    )
    assert_exact(loss, (TOKENS.swapaxes(0, 1),), 1, examples)
