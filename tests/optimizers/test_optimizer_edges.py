"""Optimizers at edges: narrow and complex parameters, no leaves, the loss asked for."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

import hlo_surgery as hs
import hlo_surgery.optimizers as ho

OF_NARROW = {
    "adam": optax.adam(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "micro_adam": ho.micro_adam(0.1),
}
OF_COMPLEX = {
    "adam": ho.micro_adam(0.1),
    "var": ho.micro_adam_var(0.1),
    "sign": ho.micro_sign_sgd(0.1),
}
X = jnp.linspace(-1, 1, 12).reshape(4, 3)


def loss(p, x):
    return jnp.mean(jnp.sum(jnp.abs(x @ p["w"] + p["b"]) ** 2, -1))


def parameters(dtype=jnp.float32):
    return {"w": jnp.ones((3, 2), dtype), "b": jnp.ones(2, dtype)}


def trained(optimizer, params, batches):
    step, state = hs.train_step(loss, optimizer), optimizer.init(params)
    for batch in batches:
        params, state, _ = step(params, state, batch)
    return params


def close(a, b, tolerance):
    return all(
        jax.tree.leaves(jax.tree.map(lambda x, y: np.allclose(x, y, tolerance, tolerance), a, b))
    )


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", OF_NARROW)
def test_microbatches_of_narrow_parameters(name, dtype):
    """The step of the whole batch, up to the roundings of the parameters and of the gradients."""
    optimizer = OF_NARROW[name]
    whole = trained(optimizer, parameters(dtype), [X])
    halves = trained(ho.multi_steps(optimizer, 2), parameters(dtype), [X[:2], X[2:]])
    assert jax.tree.leaves(halves)[0].dtype == dtype
    assert close(
        jax.tree.map(jnp.float32, halves),
        jax.tree.map(jnp.float32, whole),
        4 * float(jnp.finfo(dtype).eps),
    )


@pytest.mark.parametrize("name", OF_COMPLEX)
def test_microbatches_of_complex_parameters(name):
    optimizer = OF_COMPLEX[name]
    whole = trained(optimizer, parameters(jnp.complex64), [X])
    halves = trained(ho.multi_steps(optimizer, 2), parameters(jnp.complex64), [X[:2], X[2:]])
    assert close(halves, whole, 1e-5)


def test_noise_of_complex_parameters():
    """Each part has the deviation that the clipping norm, of both, asks for; within 5 standard
    errors.
    """
    zeros = jnp.zeros(40_000, jnp.complex64)
    optimizer = ho.dp_sgd(1.0, max_norm=2.0, noise_multiplier=1.5, seed=7)
    noise, _ = optimizer.update(zeros, optimizer.init(zeros), clipped_mean=zeros, batch_size=5)
    for part in (noise.real, noise.imag):
        assert abs(float(part.std()) / 0.6 - 1) < 5 / (2 * 40_000) ** 0.5


def test_clipping_nothing():
    labels = {"w": "plain", "b": "plain"}
    kinds = {"clipped": ho.micro_adam(0.1, clip_norm=1.0), "plain": optax.sgd(0.1)}
    found = trained(optax.multi_transform(kinds, labels), parameters(), [X])
    assert close(found, trained(optax.sgd(0.1), parameters(), [X]), 1e-6)


def test_the_loss_is_handed_on_to_what_asks_for_it():
    optimizer = optax.chain(ho.micro_adam(0.1), optax.contrib.reduce_on_plateau())
    assert close(
        trained(optimizer, parameters(), [X]), trained(ho.micro_adam(0.1), parameters(), [X]), 1e-6
    )
