"""Forms of a batch: where the examples lie, and terms of the loss that belong to none of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B, LENGTH, WIDTH = 5, 3, 4
RNG = np.random.default_rng(0)
STATISTICS = {"all": hs.per_example(), "squares": hs.second_moment(), "abs": hs.mean_abs()}


def draw(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


PARAMS = {"w": draw(WIDTH, WIDTH), "b": draw(WIDTH), "v": draw(WIDTH, WIDTH)}
TOKENS, FEATURES = draw(B, LENGTH, WIDTH), draw(B, WIDTH)
LABELS = jnp.asarray(RNG.integers(0, WIDTH, (B, LENGTH)))


def network(p, x):
    return jnp.tanh(x @ p["w"] + p["b"]) @ p["v"]


def squares(z):
    """[.., D] to [..]"""
    return jnp.sum(z**2, -1)


def row_losses(p, x):
    return squares(network(p, x))


# --- where the examples lie: the reference is the loss of a batch of one


def time_major(p, x):
    return jnp.mean(row_losses(p, x).mean(0))


def examples_in_the_middle(p, x):
    """[L, B, D], with a value for each position that all examples share."""
    return jnp.mean(row_losses(p, x + jnp.arange(LENGTH)[:, None, None]).sum(0))


def examples_last(p, x):
    """[L, D, B]"""
    return jnp.mean(squares(jnp.einsum("ldn,de->nle", jnp.tanh(x), p["w"]) @ p["v"]).sum(1))


def features_before_examples(p, x):
    """[D, B, L]: contracted on the left."""
    return jnp.mean(jnp.sum(jnp.tanh(jnp.tensordot(p["w"], x, ((0,), (0,)))) ** 2, (0, 2)))


def cross_entropy(z, labels):
    return -jax.nn.log_softmax(z)[jnp.arange(labels.size), labels.reshape(-1)]


def flattened_tokens(p, x, labels):
    return jnp.mean(cross_entropy(network(p, x.reshape(-1, WIDTH)), labels))


def flattened_time_major(p, x, labels):
    """[L, B, D] and [L, B]"""
    return flattened_tokens(p, x, labels)


def flattened_and_back(p, x):
    z = network(p, x.reshape(-1, WIDTH)).reshape(x.shape)
    return jnp.mean(squares(z.sum(1)))


# --- terms of no example


def weight_decay(p, x):
    return jnp.mean(row_losses(p, x)) + 0.1 * sum(jnp.sum(q**2) for q in p.values())


def sparse_and_low_rank(p, x):
    penalty = (
        jnp.sum(jnp.abs(p["w"])) + jnp.linalg.norm(p["v"]) + jnp.linalg.norm(p["w"] @ p["v"], "nuc")
    )
    return jnp.mean(row_losses(p, x)) + 0.1 * penalty


def activity(p, x):
    return jnp.mean(row_losses(p, x)) + 0.1 * jnp.mean(jnp.sum(jnp.abs(x @ p["w"]), -1))


ALONE = {
    time_major: ((TOKENS.swapaxes(0, 1),), (1,)),
    examples_in_the_middle: ((TOKENS.swapaxes(0, 1),), (1,)),
    examples_last: ((jnp.moveaxis(TOKENS, 0, 2),), (2,)),
    features_before_examples: ((TOKENS.transpose(2, 0, 1),), (1,)),
    flattened_tokens: ((TOKENS, LABELS), (0, 0)),
    flattened_time_major: ((TOKENS.swapaxes(0, 1), LABELS.T), (1, 1)),
    flattened_and_back: ((TOKENS,), (0,)),
    **dict.fromkeys((weight_decay, sparse_and_low_rank, activity), ((FEATURES,), (0,))),
}


def assert_exact(loss, batch, axes, examples, **options):
    """Every statistic, against the examples' gradients."""
    f = hs.grad(
        loss, batch_argnums=range(1, 1 + len(batch)), in_axes=axes, statistics=STATISTICS, **options
    )
    gradient, found = f(PARAMS, *batch)
    for name, g in jax.jit(jax.grad(loss))(PARAMS, *batch).items():
        scale = float(jnp.abs(examples[name]).max())
        close = {"rtol": 0, "atol": 1e-5 * scale, "err_msg": name}
        np.testing.assert_allclose(gradient[name], g, **close)
        np.testing.assert_allclose(found["all"][name], examples[name], **close)
        np.testing.assert_allclose(found["abs"][name], jnp.abs(examples[name]).mean(0), **close)
        close["atol"] = 2e-5 * scale**2
        np.testing.assert_allclose(found["squares"][name], (examples[name] ** 2).mean(0), **close)
    return found


@pytest.mark.first(2)
@pytest.mark.parametrize("loss", ALONE, ids=lambda loss: loss.__name__)
def test_a_batch_of_one_is_the_reference(loss):
    batch, axes = ALONE[loss]

    def example(b):
        return jax.grad(loss)(
            PARAMS,
            *(lax.dynamic_slice_in_dim(a, b, 1, i) for a, i in zip(batch, axes, strict=True)),
        )

    assert_exact(loss, batch, axes, jax.jit(jax.vmap(example))(jnp.arange(B)))
