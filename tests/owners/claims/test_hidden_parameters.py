"""Parameters that are no argument of floats are parameters all the same, and no data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs

X = jnp.sin(1 + jnp.arange(12.0)).reshape(3, 4)
W = jnp.cos(jnp.arange(8.0)).reshape(4, 2)
KEY = jax.random.PRNGKey(0)
MEETS = "meets each example's own values"


def normalised(w, x):
    """BatchNorm: each example's activations meet the mean of all."""
    h = x @ w
    h = (h - h.mean(0)) / jnp.sqrt(h.var(0) + 0.1)
    return jnp.mean(jnp.sum(jnp.sin(h) ** 2, -1))


def own(w, x):
    return jnp.mean(jnp.sum(jnp.sin(x @ w) ** 2, -1))


def counted():
    return jnp.cos(jnp.arange(8.0)).reshape(4, 2)


# By where they come from: what makes them of the first argument, and that.
SOURCES = {
    "a table": (lambda _: W, jnp.zeros((), int)),
    "counted": (lambda _: counted(), jnp.zeros((), int)),
    "one number": (lambda _: jnp.full((4, 2), 0.3), jnp.zeros((), int)),
    "drawn": (lambda key: jax.random.normal(key, (4, 2)), KEY),
    "integers": (lambda q: q / 64, jnp.round(W * 64).astype(jnp.int8)),
    "bits": (lambda b: jax.lax.bitcast_convert_type(b, W.dtype), W.view(jnp.uint32)),
    "another shape": (lambda flat: flat.reshape(4, 2), W.reshape(8)),
}


def asked(loss, made):
    def gradient(source, x):
        return jax.grad(loss)(made(source), x)

    return hs.rewrite(gradient, batch_argnums=1, statistics=hs.per_example())


@pytest.mark.parametrize(("made", "source"), SOURCES.values(), ids=SOURCES)
def test_examples_that_meet_through_them_are_refused(made, source):
    with pytest.raises(hs.Refusal, match=MEETS):
        asked(normalised, made)(source, X)


def test_an_argument_of_the_same_shape_does_not_hide_them():
    def preconditioned(scales, x):
        return jax.grad(normalised)(W, x) / jnp.sqrt(scales)

    with pytest.raises(hs.Refusal, match=MEETS):
        hs.rewrite(preconditioned, batch_argnums=1, statistics=hs.norms())(jnp.ones((4, 2)), X)


@pytest.mark.parametrize(("made", "source"), SOURCES.values(), ids=SOURCES)
def test_examples_of_their_own_are_not(made, source):
    _, found = asked(own, made)(source, X)
    expected = jax.vmap(lambda x: jax.grad(own)(made(source), x[None]))(X)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_data_of_the_batch_may_be_normalised_beside_arguments_of_floats():
    def of_data(w, x):
        scaled = (x - x.mean(0)) / jnp.sqrt(x.var(0) + 0.1)
        return own(w, scaled)

    found = hs.grad(of_data, statistics=hs.per_example())(W, X)[1]
    scaled = (X - X.mean(0)) / jnp.sqrt(X.var(0) + 0.1)
    expected = jax.vmap(lambda x: jax.grad(own)(W, x[None]))(scaled)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(), (3,), (4, 2)])
def test_a_parameter_that_is_not_used_and_left_out_hides_nowhere(shape):
    """The constants of the module are none, and masks of the data stay data."""

    def masked(p, x, mask):
        each = jnp.sum(jnp.sin(x @ p["w"]) ** 2, -1)
        return jnp.sum(mask * each) / jnp.sum(mask)

    params, mask = {"not used": jnp.ones(shape), "w": W}, jnp.array([1.0, 0.0, 1.0])
    text = jax.jit(jax.grad(masked)).lower(params, X, mask).as_text(debug_info=True)
    module = hs.rewrite_module(text, batch=["x", "mask"], statistics=hs.per_example())
    found = module.call(W, X, mask)[-1]
    each = jax.vmap(lambda x: jax.grad(own)(W, x[None]))(X)
    expected = 3 / 2 * mask[:, None, None] * each
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("made", "source"), SOURCES.values(), ids=SOURCES)
def test_beside_a_gradient_of_zeros_they_are_found_too(made, source):
    def gradients(source, x):
        return jnp.zeros((4, 2)), jax.grad(normalised)(made(source), x)

    with pytest.raises(hs.Refusal, match=MEETS):
        hs.rewrite(gradients, batch_argnums=1, statistics=hs.norms())(source, X)
