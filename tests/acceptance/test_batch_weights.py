"""Weights, padding and masks of a batch: the reference says what of it is each example's."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from tests.api.test_batches import FEATURES, PARAMS, B, assert_exact, row_losses

RNG = np.random.default_rng(1)
WEIGHTS = jnp.asarray(RNG.uniform(0.5, 2, B), jnp.float32)
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


def normalised_by(number):
    """The weighted mean, and what else is a constant of the batch, over what the weights make."""

    def loss(p, x, weights):
        return jnp.sum(weights * row_losses(p, x)) / number(weights)

    return loss


def largest_is_one(p, x, weights):
    return jnp.mean(weights * row_losses(p, x / jnp.max(jnp.abs(x))))


UNSAID = {"a sum": normalised_by(jnp.sum), "a maximum": largest_is_one}
SAID = {
    "marked": normalised_by(lambda w: hs.constant(w.sum())),
    "marked, and guarded": normalised_by(lambda w: jnp.maximum(hs.constant(w.sum()), 1e-3)),
    "guarded, and marked": normalised_by(lambda w: hs.constant(jnp.maximum(w.sum(), 1e-3))),
    "a number": normalised_by(lambda w: float(B)),
    "the number of rows": normalised_by(lambda w: w.shape[0]),
}


def as_function(loss):
    return hs.grad(loss, batch_argnums=(1, 2), statistics=hs.norms())


def with_value(loss):
    return hs.value_and_grad(loss, batch_argnums=(1, 2), statistics=hs.norms())


def of_gradient(loss):
    return hs.rewrite(jax.grad(loss), batch_argnums=(1, 2), statistics=hs.norms())


def of_module(loss):
    def called(*args):
        text = jax.jit(jax.grad(loss)).lower(*args).as_text(debug_info=True)
        batch = [name for name in ("x", "weights") if f'"{name}"' in text]
        return hs.modules.rewrite_module(text, batch=batch, statistics=hs.norms()).call(
            *jax.tree.leaves(args)
        )

    return called


def warned(called):
    """The warnings of constants made of the batch."""
    with warnings.catch_warnings(record=True, action="always") as caught:
        called()
    return [w for w in caught if w.category is hs.BatchConstantWarning]


@pytest.mark.first(2)
@pytest.mark.parametrize("made", [as_function, with_value, of_gradient, of_module])
@pytest.mark.parametrize("name", UNSAID)
def test_what_the_batch_makes_is_warned_of_at_the_call(name, made):
    """Issued at the line that calls, it names the line of the constant, and both ways out."""
    (warning,) = warned(lambda: made(UNSAID[name])(PARAMS, FEATURES, WEIGHTS))
    line = UNSAID[name].__code__.co_firstlineno + 1
    assert warning.filename == __file__
    assert issubclass(warning.category, UserWarning)
    assert str(warning.message).startswith(f"{__file__}:{line}: ")
    for way_out in ("hs.constant(...)", "a fixed number"):
        assert way_out in str(warning.message)


@pytest.mark.parametrize("name", SAID)
def test_what_is_marked_or_no_examples_is_not_warned_of(name):
    assert not warned(lambda: as_function(SAID[name])(PARAMS, FEATURES, WEIGHTS))


def test_a_batch_that_reaches_no_gradient_is_warned_of():
    def loss(w, x, key):
        return jnp.mean(jnp.tanh(jax.random.normal(key, x.shape) @ w))

    f = hs.grad(loss, batch_argnums=1, statistics=hs.norms())
    (warning,) = warned(lambda: f(jnp.ones(3), jnp.ones((B, 3)), jax.random.key(0)))
    assert "no example reaches any gradient" in str(warning.message)


def test_it_is_warned_of_once_for_each_rewriting():
    f = as_function(weighted_mean)

    def steps(count, rows):
        step = jax.jit(lambda p, x, w: f(p, x, w)[0])
        for _ in range(count):
            step(PARAMS, FEATURES[:rows], WEIGHTS[:rows])

    assert [len(warned(lambda rows=rows: steps(3, rows))) for rows in (B, B, B - 1)] == [1, 0, 1]


def test_the_number_of_real_examples_is_said_by_is_real():
    """As an argument, of what a function makes of one, and by an array; a maximum is not."""

    def real_mean(p, x, real):
        return jnp.mean(row_losses(p, x), where=real)

    def of_ids(p, x, ids):
        return real_mean(p, x, ids >= 0)

    def scaled(p, x, real):
        return real_mean(p, x / jnp.max(jnp.abs(x)), real)

    ids = jnp.where(PADDING, -1, 1)
    cases = [
        (real_mean, ~PADDING, 2, 0),
        (real_mean, ~PADDING, lambda p, x, real: real, 0),
        (of_ids, ids, lambda p, x, ids: ids >= 0, 0),
        (scaled, ~PADDING, 2, 1),
        (real_mean, ~PADDING, None, 1),
    ]
    for loss, rows, is_real, count in cases:
        f = hs.grad(loss, batch_argnums=(1, 2), statistics=hs.norms(), is_real=is_real)
        assert len(warned(lambda f=f, rows=rows: f(PARAMS, FEATURES, rows))) == count
