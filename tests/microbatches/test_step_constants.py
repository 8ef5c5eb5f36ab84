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


UNEVEN = {
    "chosen": in_steps(lambda c, p, x, b: jnp.where(b < 2, c + x + p, c + x)),
    "in a branch": in_steps(lambda c, p, x, b: lax.cond(b < 2, lambda: c + x + p, lambda: c + x)),
    "chosen before": in_steps(lambda c, p, x, b: jnp.where(b < 2, c + p, c) + x),
    "thrown away": in_steps(lambda c, p, x, b: jnp.where(b > 1, c + x + p, 0.0)),
    "as often as a loop runs": in_steps(
        lambda c, p, x, b: lax.fori_loop(0, b, lambda i, c: c + p, c) + x
    ),
    "scaled": in_steps(lambda c, p, x, b: 0.9 * c + x + p),
    "scaled by the step": in_steps(lambda c, p, x, b: (c * (b + 1.0) + p) + x),
    "handed on": handed_on(1),
    "handed on as it was": handed_on(0),
    "chosen of halves": of_halves(lambda c, p, x, b: jnp.where(b < 1, c + x + p, c + x)),
    "scaled halves": of_halves(lambda c, p, x, b: 0.9 * c + x + p),
}


@pytest.mark.parametrize("name", UNEVEN)
def test_constants_of_which_steps_bring_other_parts_are_refused(name):
    rewritten = hs.rewrite(
        UNEVEN[name], batch_argnums=1, statistics=hs.norms(), loss_reduction="sum"
    )
    with pytest.raises(hs.Refusal, match="is not only added to") as refused:
        rewritten(P, X)
    assert refused.value.where.startswith(__file__)


EVEN = {
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
