"""`on_mixing="contribution"`: what flows into each example's own copy of the parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B, WIDTH, EXPERTS = 6, 4, 3
CONTRIBUTION = {"on_mixing": "contribution"}
STATISTICS = {"all": hs.per_example(), "squares": hs.second_moment()}


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


PARAMS = {
    "w": draw(0, WIDTH, WIDTH),
    "router": draw(1, WIDTH, EXPERTS),
    "experts": draw(2, EXPERTS, WIDTH, WIDTH),
}
X = draw(3, B, WIDTH)


def squares(h):
    return jnp.mean(jnp.sum(h**2, -1))


def rows(x, w):
    """Row b times copy b."""
    return jnp.tanh(jax.vmap(jnp.matmul)(x, w))


def batch_norm(p, x):
    h = rows(x, p["w"])
    return squares(jnp.sin((h - h.mean(0)) / jnp.sqrt(h.var(0) + 0.1)))


def sorted_over_examples(p, x):
    return squares(jnp.sort(rows(x, p["w"]), 0) + x)


def gathered(p, x):
    return squares(jax.ops.segment_sum(rows(x, p["w"]), jnp.array([0, 0, 1, 1, 1, 2]), 3))


def experts_loss(p, x, gates):
    outputs = jnp.tanh(jax.vmap(lambda row, w: jnp.einsum("d,edf->ef", row, w))(x, p["experts"]))
    return squares((gates[..., None] * outputs).sum(1))


def routed(p, x):
    probabilities = jax.nn.softmax(jax.vmap(jnp.matmul)(x, p["router"]))
    return probabilities, jax.nn.one_hot(jnp.argmax(probabilities, -1), EXPERTS)


def experts_with_capacity(p, x):
    probabilities, chosen = routed(p, x)
    return experts_loss(p, x, probabilities * chosen * (jnp.cumsum(chosen, 0) <= 2))


def experts_with_balanced_load(p, x):
    probabilities, chosen = routed(p, x)
    return experts_loss(p, x, probabilities * chosen) + jnp.sum(
        chosen.mean(0) * probabilities.mean(0)
    )


def neighbours_in_a_loop(p, x):
    """Row b is computed with copy b, also where it takes its neighbours in."""
    h = rows(x, p["w"])
    h = h + jnp.tanh(h[jnp.array([2, 0, 1, 5, 3, 4])])
    h = lax.fori_loop(0, 2, lambda _, h: jnp.tanh(jnp.roll(h, -1, 0)) + h, h)
    return jnp.mean(jax.nn.logsumexp(rows(h, p["w"]), 1))


def penalised_gradient(p, x):
    def inner(p):
        return squares(rows(x, p["w"]))

    slope = jax.grad(inner)(p)["w"].sum(0)
    return inner(p) + 0.1 * jnp.sqrt(jnp.sum(slope**2))


LOSSES = [
    batch_norm,
    sorted_over_examples,
    gathered,
    experts_with_capacity,
    experts_with_balanced_load,
    penalised_gradient,
]


def of_shared_parameters(loss):
    def shared(p, x):
        return loss(jax.tree.map(lambda w: jnp.broadcast_to(w, (len(x), *w.shape)), p), x)

    return shared


def test_rows_that_are_moved_are_refused():
    f = hs.grad(of_shared_parameters(neighbours_in_a_loop), statistics=hs.norms(), **CONTRIBUTION)
    with pytest.raises(hs.Refusal, match="permute, choose or mix examples before the call"):
        f(PARAMS, X)


def classes_as_rows(p, x):
    """As many classes as examples, and scores that are compared both ways."""
    scores = jnp.tanh(x @ p["w"]) @ p["head"]
    both = jax.nn.log_softmax(scores), jax.nn.log_softmax(scores.T)
    return -jnp.mean(sum(map(jnp.diagonal, both)))


def test_a_parameter_along_the_batch_beside_what_is_mixed_is_refused():
    """Column b of the head is no example's, though a row of scores.T is."""
    head = draw(5, WIDTH, B)
    head_alone = hs.grad(
        lambda head, x: classes_as_rows(PARAMS | {"head": head}, x),
        statistics=hs.per_example(),
        **CONTRIBUTION,
    )
    with pytest.raises(hs.Refusal, match="different or divided dimensions"):
        head_alone(head, X)


@pytest.mark.first(2)
@pytest.mark.parametrize("loss", LOSSES)
def test_contributions_flow_into_each_examples_copy(loss):
    shared = of_shared_parameters(loss)
    with pytest.raises(hs.Refusal):
        hs.grad(shared, statistics=STATISTICS)(PARAMS, X)
    gradient, found = hs.grad(shared, statistics=STATISTICS, **CONTRIBUTION)(PARAMS, X)
    copies = jax.tree.map(lambda w: jnp.stack([w] * B), PARAMS)
    for name, each in jax.jit(jax.grad(loss))(copies, X).items():
        expected = B * each
        scale = float(jnp.abs(expected).max())
        close = {"rtol": 0, "atol": 2e-5 * scale, "err_msg": name}
        np.testing.assert_allclose(gradient[name], expected.mean(0), **close)
        np.testing.assert_allclose(found["all"][name], expected, **close)
        np.testing.assert_allclose(
            found["squares"][name], (expected**2).mean(0), rtol=0, atol=4e-5 * scale**2
        )


def of_running_means(w, scale, mean, part, slope):
    """The loss of a microbatch, and the mean of what has come so far; row b with copy b."""
    h = rows(part, w)
    mean = 0.5 * mean + 0.5 * h.mean(0)
    off = h - mean
    loss = squares(jnp.sin(off * scale))
    return loss + jnp.mean(off * scale) if slope else loss, lax.stop_gradient(mean)


def accumulated(size, slope):
    """The gradient over microbatches of so many examples, through which the mean is carried."""

    def of_shared(p, mean, part):
        copies = jnp.broadcast_to(p["w"], (size, WIDTH, WIDTH))
        return of_running_means(copies, p["scale"], mean, part, slope)

    def gradient(p, x):
        def step(state, part):
            total, mean = state
            found, mean = jax.grad(of_shared, has_aux=True)(p, mean, part)
            return (jax.tree.map(lambda a, b: a + b * size / B, total, found), mean), None

        start = jax.tree.map(jnp.zeros_like, p), jnp.zeros(WIDTH)
        return lax.scan(step, start, x.reshape(-1, size, WIDTH))[0][0]

    asked = {"batch_argnums": 1, "statistics": hs.per_example(), **CONTRIBUTION}
    return hs.rewrite(gradient, **asked)


RUNNING = {"w": PARAMS["w"], "scale": draw(4, WIDTH)}


@pytest.mark.first(1)
@pytest.mark.parametrize(("size", "slope"), [(2, False), (2, True), (3, True)])
def test_what_earlier_steps_summed_is_a_constant_beside_rows(size, slope):
    """A running mean goes from one microbatch to the next: beside a row it belongs to nobody."""

    def of_copies(copies):
        mean, losses = jnp.zeros(WIDTH), []
        for i in range(0, B, size):
            w, scale, part = copies["w"][i:][:size], copies["scale"][i:][:size], X[i:][:size]
            loss, mean = of_running_means(w, scale, mean, part, slope)
            losses.append(loss * size / B)
        return sum(losses)

    copies = jax.tree.map(lambda w: jnp.stack([w] * B), RUNNING)
    found = accumulated(size, slope)(RUNNING, X)[1]
    for name, each in jax.grad(of_copies)(copies).items():
        expected = B * each
        close = {"rtol": 0, "atol": 2e-5 * float(jnp.abs(expected).max()), "err_msg": name}
        np.testing.assert_allclose(found[name], expected, **close)


def test_a_row_that_is_a_term_of_a_sum_as_well_is_refused():
    """It sums what a step has, earlier means in it; elsewhere that is the step's own row."""
    with pytest.raises(hs.Refusal):
        accumulated(1, True)(RUNNING, X)
