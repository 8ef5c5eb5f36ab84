"""Gradients of parts of the batch of any sizes, by loops over some of them or without, with
constants: biases behind the last activation, and penalties.
"""

from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B, D = 12, 3
PARAMS = {
    "b": jnp.linspace(0.2, 0.7, D),
    "w": jnp.linspace(-1.0, 1.0, D * D).reshape(D, D),
}
X = jnp.sin(jnp.arange(B * D) ** 1.3).reshape(B, D)
close = partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-6)


def biased(p, x, weight=1.0):
    """Its gradient by b has a constant in each row."""
    return jnp.mean(jnp.sum((jnp.tanh(x @ p["w"]) + weight * p["b"] - x) ** 2, -1))


def inner(p, x):
    """Its gradients have no constants."""
    return jnp.mean(jnp.tanh(jnp.tanh(x @ p["w"] + p["b"]) @ p["b"]) ** 2)


def penalty(p):
    return 0.1 * sum(jnp.sum(leaf**2) for leaf in p.values())


def penalised(p, x, weight=1.0):
    return inner(p, x) + weight * penalty(p)


def added(*trees):
    return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *trees)


def times(tree, number):
    return jax.tree.map(lambda leaf: leaf * number, tree)


def of_parts(*sizes, total=B, weigh=lambda n: n / B):
    """A gradient of each part, added up with weights by its size."""

    def made(loss, p, x):
        ends = np.cumsum((0, *sizes))
        parts = [x[i:j] for i, j in pairwise(ends)]
        return added(*(times(jax.grad(loss)(p, rows), weigh(len(rows))) for rows in parts))

    return made


def by_sums(loss, p, x):
    """Sums over parts, divided in the end."""
    whole = lambda p, rows: loss(p, rows) * len(rows)  # noqa: E731
    return times(of_parts(5, 5, 2, weigh=lambda n: 1.0)(whole, p, x), 1 / B)


def in_one_loss(loss, p, x):
    parts = x[:5], x[5:10], x[10:]
    return jax.grad(lambda p: sum(loss(p, rows) * len(rows) / B for rows in parts))(p)


def summed(loss, p, x, size, **options):
    """The sum of the gradients of parts of one size, by a loop."""
    zero = jax.tree.map(jnp.zeros_like, p)
    step = lambda c, rows: (added(c, jax.grad(loss)(p, rows)), None)  # noqa: E731
    return lax.scan(step, zero, x.reshape(-1, size, D), **options)[0]


def scanned(size, unroll, count=B):
    return lambda loss, p, x: times(summed(loss, p, x[:count], size, unroll=unroll), size / count)


def two_loops(size):
    return lambda loss, p, x: times(
        added(summed(loss, p, x[:6], size), summed(loss, p, x[6:], size)), size / B
    )


def loop_and_rest(loss, p, x):
    rest = times(jax.grad(loss)(p, x[10:]), 2.0)
    return times(added(times(summed(loss, p, x[:10], 5), 5.0), rest), 1 / B)


def nested(loss, p, x):
    """Halves one by one, each by a loop over pairs."""
    zero = jax.tree.map(jnp.zeros_like, p)
    step = lambda c, half: (added(c, summed(loss, p, half, 2)), None)  # noqa: E731
    parts = x[:8].reshape(2, 4, D)
    return times(added(lax.scan(step, zero, parts)[0], summed(loss, p, x[8:], 2)), 1 / 6)


BOTH = {"bias": biased, "penalty": penalised}
EVEN = {
    "5 + 5 + 2": of_parts(5, 5, 2),
    "sums of 5 + 5 + 2": by_sums,
    "a rest step": scanned(4, 2),
    "two a step": scanned(2, 2),
    "more than there are": scanned(2, 4),
    "two loops over single examples": two_loops(1),
}


# Parts that are taken apart again, and a bias added to single ones.
SPLIT_AGAIN = {
    **{name: EVEN[name] for name in ("a rest step", "two a step", "more than there are")},
    "a rest of single examples": scanned(1, 2, 11),
    "two loops": two_loops(3),
    "a loop and a rest": loop_and_rest,
    "nested": nested,
}


@pytest.mark.parametrize("name", SPLIT_AGAIN)
def test_parts_that_are_split_again_are_refused(name):
    made, count = partial(SPLIT_AGAIN[name], biased), 11 if "single" in name else B
    with pytest.raises(hs.Refusal) as refused:
        hs.rewrite(made, batch_argnums=1, statistics=hs.norms())(PARAMS, X[:count])
    assert refused.value.where.startswith(__file__)
    assert refused.value.help


@pytest.mark.parametrize(
    ("name", "loss"),
    [(n, b) for n in [*EVEN, "one loss"] for b in BOTH if b != "bias" or n not in SPLIT_AGAIN],
)
def test_each_has_its_share(name, loss):
    made = partial(EVEN.get(name, in_one_loss), BOTH[loss])
    asked = {"each": hs.per_example(), "squares": hs.second_moment()}
    rewritten = hs.rewrite(made, batch_argnums=1, statistics=asked)
    plain, found = rewritten(PARAMS, X)
    alone = [jax.grad(BOTH[loss])(PARAMS, X[b : b + 1]) for b in range(B)]
    wanted = jax.tree.map(lambda *gradients: jnp.stack(gradients), *alone)
    jax.tree.map(close, found["each"], wanted)
    jax.tree.map(lambda s, each: close(s, (each**2).mean(0)), found["squares"], wanted)
    jax.tree.map(lambda g, each: close(g, each.mean(0)), plain, wanted)
