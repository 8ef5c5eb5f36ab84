"""Loops whose steps look up each example's own row at a number that data gives: the backward pass
reads the index vectors, a place and a label each, from a stack that the forward one wrote.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B, STEPS, WORDS, WIDTH = 4, 4, 5, 3
PARAMS = {
    "table": 0.5 * jax.random.normal(jax.random.key(0), (WORDS, WIDTH)),
    "turn": 0.5 * jax.random.normal(jax.random.key(1), (WIDTH, WIDTH)),
    "head": 0.5 * jax.random.normal(jax.random.key(2), (WIDTH, WORDS)),
}
LABELS = jax.random.randint(jax.random.key(3), (B, STEPS), 0, WORDS)


def rows(labels):
    return jnp.arange(len(labels))


def step(params, places, h, labels):
    """One step of a decoder, and what it loses at these places."""
    h = jnp.tanh(h @ params["turn"] + params["table"][labels])
    return h, -jax.nn.log_softmax(h @ params["head"])[places, labels]


def decoded(params, labels, run):
    h = jnp.zeros((len(labels), WIDTH))
    return jnp.mean(jnp.sum(run(lambda h, t: step(params, rows(t), h, t), h, labels.T), 0))


def scanned(params, labels):
    return decoded(params, labels, lambda f, h, xs: lax.scan(f, h, xs)[1])


def in_chunks(params, labels):
    """A loop in a loop, computed again by the backward pass."""

    def run(f, h, xs):
        chunk = jax.checkpoint(lambda h, part: lax.scan(f, h, part))
        parts = xs.reshape(2, STEPS // 2, -1)
        return lax.scan(chunk, h, parts)[1].reshape(STEPS, -1)

    return decoded(params, labels, run)


def clamped(params, labels):
    """Words are counted at labels that are clamped to the table."""

    def count(counts, t):
        found = jnp.tanh(params["table"][t] @ params["turn"]).sum(-1)
        counts = counts.at[rows(t), t + 1].add(found, mode="clip")
        return counts, counts**2

    counts = lax.scan(count, jnp.zeros((len(labels), WORDS)), labels.T)[1]
    return jnp.mean(jnp.sum(counts, (0, 2))) + jnp.sum(params["head"] ** 2)


def written(params, labels):
    """A memory of three rows for each example: the one that is the least alike is overwritten."""

    def write(memory, t):
        word = params["table"][t]
        place = jnp.argmin(jnp.einsum("bmd,bd->bm", memory, word @ params["turn"]), -1)
        kept = memory[rows(t), place] / 2
        memory = memory.at[rows(t), place].set(jnp.tanh(word) + kept)
        return memory, jnp.sum((memory @ params["head"]) ** 2, (1, 2))

    begun = params["table"][labels[:, :3]]
    return jnp.mean(jnp.sum(lax.scan(write, begun, labels.T)[1], 0))


LOSSES = [scanned, in_chunks, clamped, written]


@pytest.mark.parametrize("loss", LOSSES)
def test_each_example_reads_its_own_rows(loss):
    gradients = jax.vmap(lambda row: jax.grad(loss)(PARAMS, row[None]))(LABELS)
    f = hs.grad(loss, statistics={"all": hs.per_example(), "squares": hs.second_moment()})
    _, found = f(PARAMS, LABELS)
    squares = jax.tree.map(lambda g: jnp.mean(g**2, 0), gradients)
    for name in PARAMS:
        for got, wanted in ((found["all"], gradients), (found["squares"], squares)):
            close = {"rtol": 1e-4, "atol": 1e-5 * float(jnp.abs(wanted[name]).max())}
            np.testing.assert_allclose(got[name], wanted[name], **close)


OTHERS = {
    "backwards": lambda i: jnp.arange(B)[::-1],
    "turned by the step": lambda i: (jnp.arange(B) + i) % B,
    "the first one's": lambda i: jnp.zeros(B, jnp.int32),
}


@pytest.mark.parametrize("name", OTHERS)
def test_reading_rows_of_others_is_refused(name):
    def loss(params, labels):
        def of_step(h, x):
            return step(params, OTHERS[name](x[0]), h, x[1])

        found = lax.scan(of_step, jnp.zeros((B, WIDTH)), (jnp.arange(STEPS), labels.T))[1]
        return jnp.mean(jnp.sum(found, 0))

    with pytest.raises(hs.Refusal):
        hs.grad(loss, statistics=hs.norms())(PARAMS, LABELS)
