"""Constants that steps add beside their examples: as many for each step, or refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B = 4
X = jnp.array([[0.1], [0.5], [-1.0], [2.0]])
P = jnp.array([0.7])


def in_steps(step):
    """A sum over a scan of single examples; `step`: (sum so far, p, x_b, b) to the sum."""

    def made(p, x):
        over = (x, jnp.arange(B))
        return lax.scan(lambda c, s: (step(c, p, *s), None), jnp.zeros(1), over)[0]

    return made


def of_halves(step):
    """The same of two microbatches of two examples each."""

    def made(p, x):
        over = (x.reshape(2, 2, 1), jnp.arange(2))
        return lax.scan(lambda c, s: (step(c, p, s[0].sum(0), s[1]), None), jnp.zeros(1), over)[0]

    return made


def handed_on(which):
    """Sums of all sums so far, before a step (0) or after it (1): the first step counts most."""

    def made(p, x):
        def step(carry, row):
            before, total = carry
            after = before + row + p
            return (after, total + (before, after)[which]), None

        return lax.scan(step, (jnp.zeros(1), jnp.zeros(1)), x)[0][1]

    return made


def nested(step, outer_step=lambda c, p, b: c):
    """A sum of single examples in a loop over pairs, which goes on from pair to pair.

    `step`: (sum so far, p, x_b, number of the pair, number within it) to the sum.
    """

    def made(p, x):
        def of_pair(c, s):
            rows, b = s
            over = (rows, jnp.arange(2))
            c = lax.scan(lambda c, t: (step(c, p, t[0], b, t[1]), None), c, over)[0]
            return outer_step(c, p, b), None

        return lax.scan(of_pair, jnp.zeros(1), (x.reshape(2, 2, 1), jnp.arange(2)))[0]

    return made


def running_mean(c, p, x, b):
    return c + (x * p + p - c) / (b + 1)


def chosen_and_added_up(c, p, x, b):
    term = lax.cond(b < 1, lambda: x + p, lambda: x)
    return c + lax.fori_loop(0, 2, lambda i, t: t + (i + 1.0) * term, jnp.zeros(1))


UNEVEN = {
    "weighted halves": of_halves(lambda c, p, x, b: c + (b + 1.0) * (x + p)),
    "halves weighted by a table": of_halves(
        lambda c, p, x, b: c + jnp.array([1.0, 2.0])[b] * (x + p)
    ),
    "chosen in a half": of_halves(lambda c, p, x, b: c + jnp.where(b < 1, x + p, x)),
    "chosen in a half's branch": of_halves(
        lambda c, p, x, b: c + lax.cond(b < 1, lambda: x + p, lambda: x)
    ),
    "chosen in a half's branch by a parameter": of_halves(
        lambda c, p, x, b: c + lax.cond(b < p[0], lambda: x + p, lambda: x)
    ),
    "chosen in a half's branch, and moved": of_halves(
        lambda c, p, x, b: c + lax.cond(b < 1, lambda: x + p, lambda: x).reshape(1, 1).sum(0)
    ),
    "chosen in a half's branch, and added up": of_halves(chosen_and_added_up),
    "weights by the first half alone": of_halves(
        lambda c, p, x, b: c + lax.fori_loop(0, b + 1, lambda i, t: t + p, x)
    ),
    "mean of means": nested(lambda c, p, x, b, i: c + x + (p - c) / (i + 1.0)),
    "pairs scaled": nested(lambda c, p, x, b, i: c + x + p, lambda c, p, b: 0.9 * c),
    "wrong running mean": of_halves(lambda c, p, x, b: c + (x + p - c) / (2.0 * b + 1)),
    "chosen": in_steps(lambda c, p, x, b: jnp.where(b < 2, c + x + p, c + x)),
    "in a branch": in_steps(lambda c, p, x, b: lax.cond(b < 2, lambda: c + x + p, lambda: c + x)),
    "chosen before": in_steps(lambda c, p, x, b: jnp.where(b < 2, c + p, c) + x),
    "thrown away": in_steps(lambda c, p, x, b: jnp.where(b > 1, c + x + p, 0.0)),
    "as often as a loop runs": in_steps(
        lambda c, p, x, b: lax.fori_loop(0, b, lambda i, c: c + p, c) + x
    ),
    "scaled": in_steps(lambda c, p, x, b: 0.9 * c + x + p),
    "scaled by what a run tells": in_steps(lambda c, p, x, b: p * c + x + p),
    "scaled by the step": in_steps(lambda c, p, x, b: (c * (b + 1.0) + p) + x),
    "handed on": handed_on(1),
    "handed on as it was": handed_on(0),
    "chosen of halves": of_halves(lambda c, p, x, b: jnp.where(b < 1, c + x + p, c + x)),
    "scaled halves": of_halves(lambda c, p, x, b: 0.9 * c + x + p),
    "begun at another constant in each half": of_halves(
        lambda c, p, x, b: c + lax.fori_loop(0, 2, lambda i, t: t + x, jnp.exp(b * p))
    ),
}


@pytest.mark.parametrize("name", UNEVEN)
def test_constants_of_which_steps_bring_other_parts_are_refused(name):
    rewritten = hs.rewrite(
        UNEVEN[name], batch_argnums=1, statistics=hs.norms(), loss_reduction="sum"
    )
    with pytest.raises(hs.Refusal, match="not shown that all steps bring as much") as refused:
        rewritten(P, X)
    assert refused.value.where.startswith(__file__)


def test_what_comes_in_later_steps_is_looked_for():
    """What a step brings counts once more two steps later: the last two steps bring the same."""

    def step(p, carry, rows):
        first, second, total = carry
        brought = rows.sum(0) + p
        return (brought, first, total + brought + second), None

    def made(p, x):
        start = jnp.zeros(1), jnp.zeros(1), jnp.zeros(1)
        return lax.scan(lambda c, rows: step(p, c, rows), start, x.reshape(4, 2, 1))[0][2]

    rewritten = hs.rewrite(made, batch_argnums=1, statistics=hs.norms(), loss_reduction="sum")
    with pytest.raises(hs.Refusal, match="not shown that all steps bring as much"):
        rewritten(P, jnp.linspace(-1, 1, 8)[:, None])


EVEN = {
    "running mean": in_steps(running_mean),
    "running mean of halves": of_halves(running_mean),
    "scaled back": of_halves(lambda c, p, x, b: (2.0 * c + x + p) / (2.0 - b)),
    "chosen by all": of_halves(lambda c, p, x, b: c + jnp.where(b < 2, x + p, x)),
    "a scale of all": of_halves(lambda c, p, x, b: c + p * (x + p)),
    "negated": of_halves(lambda c, p, x, b: c - (x + p)),
    "goes on in pairs": nested(lambda c, p, x, b, i: c + x + p),
    "running mean over pairs": nested(lambda c, p, x, b, i: c + (x + p - c) / (2.0 * b + i + 1)),
    "as often in each half": of_halves(
        lambda c, p, x, b: c + lax.fori_loop(0, 3, lambda i, t: t + i * p, x)
    ),
    "added": in_steps(lambda c, p, x, b: c + x + p),
    "scaled without": in_steps(lambda c, p, x, b: 0.9 * c + x * p),
    "chosen without": in_steps(lambda c, p, x, b: jnp.where(b < 2, c + x * p, c)),
    "zero": in_steps(lambda c, p, x, b: 0.9 * c + x * p + jnp.zeros(1)),
    "halves": of_halves(lambda c, p, x, b: c + x + p),
    "scaled halves without": of_halves(lambda c, p, x, b: 0.9 * c + x * p),
}


@pytest.mark.parametrize("strategy", ["auto", "loop"])
@pytest.mark.parametrize("name", EVEN)
def test_shares_where_steps_bring_the_same(name, strategy):
    gradient = EVEN[name]
    rewritten = hs.rewrite(
        gradient,
        batch_argnums=1,
        statistics=hs.per_example(),
        loss_reduction="sum",
        strategy=strategy,
    )
    plain, each = rewritten(P, X)
    nothing = gradient(P, 0 * X)
    alone = [gradient(P, X * (jnp.arange(B) == b)[:, None]) for b in range(B)]
    wanted = jnp.stack([one - nothing + nothing / B for one in alone])
    np.testing.assert_allclose(each, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.jit(gradient)(P, X), plain, rtol=1e-6)
