"""Functions that are said to take examples one by one: where the word holds, and where it does not.

The kernel is LAPACK's, with all of its backward pass; the oracle is `jax.vmap` without it.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs

B, D = 4, 3
W = jnp.cos(jnp.arange(float(D * D))).reshape(D, D)
X = jnp.sin(jnp.arange(float(B * D * D))).reshape(B, D, D)
EYE = jnp.eye(D)
STATISTICS = {"norms": hs.norms(), "squares": hs.second_moment(), "each": hs.per_example()}

plain = jnp.linalg.cholesky
declared = hs.per_example_call(plain)


def matrices(w, x):
    h = jnp.tanh(x @ w)
    return h @ h.swapaxes(-1, -2) + 4 * EYE


def total(factors):
    return jnp.mean(jnp.sum(factors**3, (1, 2)))


def at_once(kernel, w, x):
    return total(kernel(matrices(w, x)))


def in_steps(kernel, w, x):
    """Over microbatches of two; as a batch of one, at once."""
    if len(x) == 1:
        return at_once(kernel, w, x)

    def step(loss, part):
        return loss + at_once(kernel, w, part) / 2, None

    return jax.lax.scan(step, 0.0, x.reshape(2, 2, D, D))[0]


def in_layers(kernel, w, x, remat=lambda f: f):
    def layer(h, _):
        return remat(lambda h: kernel(0.1 * h @ h.swapaxes(1, 2) + matrices(w, x)))(h), None

    return total(jax.lax.scan(layer, matrices(w, x), None, length=3)[0])


def along_others(kernel, w, x):
    """Mapped over an axis that is not the examples', which lies in front of theirs."""
    pairs = jnp.stack([matrices(w, x), 2 * matrices(w, x)])
    return total(jax.vmap(kernel)(pairs)[0])


def mapped(kernel, w, x):
    """Mapped over the examples, of which the function itself knows nothing."""
    return total(jax.vmap(lambda one: kernel(matrices(w, one)[None])[0])(x))


PROGRAMS = {
    "at once": at_once,
    "in steps": in_steps,
    "in layers": in_layers,
    "in layers that are computed again": partial(in_layers, remat=jax.checkpoint),
    "mapped over others": along_others,
    "mapped over the examples": mapped,
}


def held(loss, oracle, **options):
    """The plan, where result and statistics are those of single examples by the oracle."""
    f = hs.grad(loss, statistics=STATISTICS, **options)
    gradient, found = f(W, X)
    one = jax.vmap(lambda x: jax.grad(oracle)(W, x[None]))(X)
    assert jnp.abs(one).min() > 0
    np.testing.assert_allclose(gradient, one.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["each"], one, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["squares"], (one**2).mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["norms"], jnp.linalg.norm(one, axis=(1, 2)), rtol=1e-4)
    return hs.explain(f, W, X)


@pytest.mark.first(1)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_word_holds_under_transformations(name):
    program = PROGRAMS[name]
    plan = held(partial(program, declared), partial(program, plain))
    assert [each.call for each in plan.trusted[:2]] == ["cholesky", "the backward pass of cholesky"]


@jax.custom_vjp
def by_hand(a):
    return declared_forward(a)


declared_forward = hs.per_example_call(plain)
declared_backward = hs.per_example_call(lambda a, slope: jax.vjp(plain, a)[1](slope))
by_hand.defvjp(lambda a: (declared_forward(a), a), lambda a, slope: declared_backward(a, slope))


def refused(kernel, loss=at_once):
    """The refusal of a kernel's program that is right as a program."""
    with pytest.raises(hs.Refusal) as found:
        hs.grad(partial(loss, kernel), statistics=hs.norms())(W, X)
    return found.value


# What is declared of a function along which examples do not lie so, or not only.
WRONG = {
    "no axis of an operand with examples": hs.per_example_call(plain, None, 0),
    "no axis of a result": hs.per_example_call(plain, 0, None),
    "another axis": hs.per_example_call(lambda a: plain(a)[:D], 1, 0),
    "of the result another axis": hs.per_example_call(lambda a: plain(a)[:, :, :1], 2, 1),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_word_that_the_examples_do_not_fit_is_refused(name):
    refusal = refused(WRONG[name])
    assert "declared to take examples one by one" in refusal.why
    assert "test_per_example_call.py:" in refusal.where
    assert "their axis" in refusal.help


def test_sums_over_the_examples_may_not_go_in():
    kernel = hs.per_example_call(plain, None, None)
    refused(lambda a: kernel(a.sum(0))[None] + a)


def test_a_host_call_inside_is_refused():
    def calling(a):
        return jax.pure_callback(np.tanh, jax.ShapeDtypeStruct(a.shape, a.dtype), a)

    def loss(w, x):
        return total(hs.per_example_call(calling)(jax.lax.stop_gradient(x)) * (x @ w))

    with pytest.raises(hs.Refusal, match="calls its host back"):
        hs.grad(loss, statistics=hs.norms())(W, X)
