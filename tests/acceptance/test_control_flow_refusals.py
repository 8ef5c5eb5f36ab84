"""Loops and branches in which examples meet, or that hold what belongs to positions: refused."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B, STEPS, WIDTH = 5, 3, 4


def draw(shape, seed):
    return jax.random.normal(jax.random.key(seed), shape) / math.sqrt(shape[-1])


def stacked():
    return {"w": draw((STEPS, WIDTH, WIDTH), 0)}


def single():
    return {"w": draw((WIDTH, WIDTH), 0)}


def features():
    return draw((B, WIDTH), 2)


def squares(h):
    """The mean over the examples [B, ..]."""
    return jnp.mean(jnp.sum(h**2, tuple(range(1, h.ndim))))


def attending_over_the_batch(p, x):
    def step(h, q):
        h = jnp.tanh(h @ q["w"])
        return jax.nn.softmax(h @ h.T) @ h, None

    return squares(lax.scan(step, x, p)[0])


def cumulated_over_the_batch(p, x):
    return squares(lax.scan(lambda h, q: (jnp.sin(jnp.cumsum(h @ q["w"], 0)), None), x, p)[0])


def mean_kept_for_the_next_step(p, x):
    def step(carry, q):
        h = jnp.tanh(carry[0] @ q["w"] + carry[1])
        return (h, h.mean(0)), None

    return squares(lax.scan(step, (x, jnp.zeros(x.shape[1])), p)[0][0])


def centred_at_the_last_step(p, x):
    def step(h, q):
        h = jnp.tanh(h @ q[0]["w"])
        return lax.cond(q[1] == 2, lambda h: h - h.mean(0), lambda h: h, h), None

    return squares(lax.scan(step, x, (p, jnp.arange(3)))[0])


def weights_learned_from_the_batch(p, x):
    def step(w, _):
        return w - 0.1 * jax.grad(lambda w: squares(jnp.tanh(x @ w)))(w), None

    return squares(x @ lax.scan(step, p["w"], None, length=2)[0])


OF_STACKS = (
    attending_over_the_batch,
    cumulated_over_the_batch,
    mean_kept_for_the_next_step,
    centred_at_the_last_step,
)
OF_ONE = (weights_learned_from_the_batch,)


@pytest.mark.parametrize("loss", [*OF_STACKS, *OF_ONE])
def test_examples_that_meet_in_a_loop_are_refused(loss):
    params = stacked() if loss in OF_STACKS else single()
    with pytest.raises(hs.Refusal) as refused:
        hs.grad(loss, statistics=hs.second_moment())(params, features())
    assert "test_control_flow" in str(refused.value.where)


def turned_at_each_step(p, x):
    """As many features as examples: behind one step the examples lie where the features were."""
    return jnp.mean(lax.scan(lambda h, _: (jnp.tanh(h @ p).T, None), x, None, length=2)[0][0])


def turned_in_a_branch(p, x):
    h = jnp.tanh(x @ p)
    return jnp.mean(jnp.sin(lax.cond(p[0, 0] > 0, lambda h: h, lambda h: h.T, h))[0])


@pytest.mark.parametrize("loss", [turned_at_each_step, turned_in_a_branch])
def test_examples_now_along_one_dimension_and_now_along_another_are_refused(loss):
    with pytest.raises(hs.Refusal, match=r"now in|meets others|out of the batch"):
        hs.grad(loss, statistics=hs.second_moment())(jnp.eye(4) + 0.1, features()[:4, :4])


def vector():
    return {"w": single()["w"][0]}


def own_loss(p, row):
    return (row @ p["w"] - 1) ** 2


def penalty(p):
    return jnp.sum(p["w"] ** 2)


def penalised(p, row):
    return own_loss(p, row) + penalty(p)


def tripled(p, row):
    return 3 * own_loss(p, row)


def of_its_choice(p, row, number):
    """What the example's own numbers decide, it has."""
    return lax.cond(row[0] > 0, penalised, own_loss, p, row)


def through_layers(p, row, number):
    """The step's number is that of a layer."""

    def layer(h, k):
        kinds = (lambda h: jnp.tanh(h * p["w"]), lambda h: 2 * h + p["w"])
        return lax.cond(k % 2 == 0, *kinds, h), None

    return jnp.sum(lax.scan(layer, row, jnp.arange(3))[0])


def three_times_every_other(p, row, number):
    """Without constants."""
    return lax.cond(number % 2 == 0, own_loss, tripled, p, row)


@pytest.mark.first(1)
@pytest.mark.parametrize("of_one", [of_its_choice, through_layers, three_times_every_other])
def test_near_to_that_each_example_has_its_own(of_one):
    p, x = vector(), features()[:4]
    numbers = jnp.arange(len(x))

    def loss(p, x):
        return jnp.mean(lax.map(lambda a: of_one(p, *a), (x, numbers)))

    _, found = hs.grad(loss, statistics=hs.norms())(p, x)
    rows = [jax.tree.leaves(jax.grad(of_one)(p, *a)) for a in zip(x, numbers, strict=True)]
    norms = [np.sqrt(sum(np.sum(np.square(leaf)) for leaf in leaves)) for leaves in rows]
    np.testing.assert_allclose(found, norms, rtol=1e-5)
