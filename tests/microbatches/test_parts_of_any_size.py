"""Parts of a batch of any sizes, and statistics that rest on what all examples have."""

from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs
from tests.microbatches import test_microbatches
from tests.microbatches.microbatch_statistics import (
    BOUND,
    assert_right,
    examples,
    norm,
)
from tests.microbatches.microbatch_statistics import (
    PARAMS as PARAMS_OF_STEPS,
)
from tests.microbatches.microbatch_statistics import (
    X as X_OF_STEPS,
)

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
    "a rest step": scanned(4, 2),
    "two a step": scanned(2, 2),
    "two loops over single examples": two_loops(1),
}


# Parts that are taken apart again, and a bias added to single ones.
SPLIT_AGAIN = {
    **{name: EVEN[name] for name in ("a rest step", "two a step")},
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


CASES = test_microbatches.CASES


def below_the_median(norms):
    """Weights of which each rests on the norms of all."""
    return jnp.minimum(1, jnp.median(norms) / norms)


def of_norms(norms):
    """Another weight for each place in the batch."""
    return (1 + jnp.arange(norms.size)) / norms.max()


STATISTICS = {
    "products": hs.inner_products("mean"),
    "products by parameter": hs.inner_products("mean", per="parameter"),
    "median": hs.weighted_mean(below_the_median),
    "places": hs.weighted_mean(of_norms, per="parameter"),
    "squares of places": hs.weighted_second_moment(of_norms, per="parameter"),
    "clipped": hs.clipped_mean(BOUND),
    "norms": hs.norms(),
    "squares": hs.second_moment(),
}


def product(x, d):
    return np.tensordot(x, d, x.ndim - 1)


def expected(g, real=None):
    """All of them, of these examples' gradients, or of those that are real."""
    leaves = jax.tree.leaves(g)
    real = np.ones(len(leaves[0])) if real is None else real
    count = real.sum()

    def mean(weights, x):
        return np.tensordot(weights * real, x, 1) / count

    ones = np.ones_like(real)
    each = jax.tree.map(lambda x: product(x, mean(ones, x)) * real, g)
    norms = norm(g) * real
    alone = jax.tree.map(lambda x: norm([x]) * real, g)
    return {
        "products": sum(jax.tree.leaves(each)),
        "products by parameter": each,
        "median": jax.tree.map(partial(mean, np.asarray(below_the_median(norms))), g),
        "places": jax.tree.map(lambda n, x: mean(np.asarray(of_norms(n)), x), alone, g),
        "squares of places": jax.tree.map(
            lambda n, x: mean(np.asarray(of_norms(n)) ** 2, x**2), alone, g
        ),
        "clipped": jax.tree.map(partial(mean, BOUND / np.maximum(BOUND, norm(g))), g),
        "norms": norms,
        "squares": jax.tree.map(lambda x: mean(ones, x**2), g),
    }


@pytest.mark.parametrize("name", CASES)
def test_every_form(name, steps_taken):
    f = hs.rewrite(CASES[name], batch_argnums=1, statistics=STATISTICS)
    gradient, found = f(PARAMS_OF_STEPS, X_OF_STEPS)
    own = examples(test_microbatches.recurrent) if name == "recurrent" else examples()
    assert_right({"plain": gradient}, {"plain": jax.tree.map(lambda x: x.mean(0), own)})
    assert_right(found, expected(own))
    assert not steps_taken


def test_a_loss_in_a_loop_that_is_unrolled_whole():
    def loss(p, x):
        step = lambda total, rows: (total + p["b"][0] * inner(p, rows), None)  # noqa: E731
        return lax.scan(step, 0.0, x.reshape(3, 4, D), unroll=3)[0] / 3

    found = hs.grad(loss, batch_argnums=1, statistics=hs.per_example())(PARAMS, X)[1]
    alone = [jax.grad(lambda p, b=b: p["b"][0] * inner(p, X[b : b + 1]))(PARAMS) for b in range(B)]
    jax.tree.map(close, found, jax.tree.map(lambda *each: jnp.stack(each), *alone))
