"""Gradients of groups of examples that a Python loop adds, with a penalty in each group's loss."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs

B, D = 8, 3
PARAMS = {
    "v": jnp.linspace(-1.0, 1.5, D),
    "w": jnp.linspace(-1.0, 1.0, D * D).reshape(D, D),
}
X = jnp.sin(jnp.arange(B * D) ** 1.3).reshape(B, D)


def fit(p, x):
    return jnp.mean(jnp.tanh(jnp.tanh(x @ p["w"]) @ p["v"]) ** 2)


def penalty(p):
    return 0.1 * sum(jnp.sum(leaf**2) for leaf in p.values())


def penalised(p, x, weight=1.0):
    return fit(p, x) + weight * penalty(p)


def of_first(p, x, number):
    """The penalty of each group's number: all of it, twice, ... in the first ones."""
    return fit(p, x) + (2.0 - number) * penalty(p)


def added(*trees):
    return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *trees)


def times(tree, number):
    return jax.tree.map(lambda leaf: leaf * number, tree)


def groups(x, size=2):
    return [x[i : i + size] for i in range(0, B, size)]


def of_groups(loss, size=2):
    def made(p, x):
        each = [jax.grad(loss)(p, rows) for rows in groups(x, size)]
        return times(added(*each), size / B)

    return made


def running_mean(p, x):
    mean = jax.tree.map(jnp.zeros_like, p)
    for i, rows in enumerate(groups(x)):
        new = jax.grad(penalised)(p, rows)
        mean = jax.tree.map(lambda m, g, n=i + 1: m + (g - m) / n, mean, new)
    return mean


def backwards(p, x):
    each = [jax.grad(penalised)(p, rows) for rows in groups(x)]
    return times(added(*each[::-1]), 1 / len(each))


def in_pairs(p, x):
    one, two, three, four = (jax.grad(penalised)(p, rows) for rows in groups(x))
    return times(added(added(one, three), added(two, four)), 1 / 4)


def two_penalties(p, x):
    return penalised(p, x) + 0.3 * jnp.sum(jnp.abs(p["v"]))


EQUAL = {
    "groups of two": (of_groups(penalised), penalised),
    "groups of four": (of_groups(penalised, 4), penalised),
    "backwards": (backwards, penalised),
    "in pairs": (in_pairs, penalised),
    "running mean": (running_mean, penalised),
    "two penalties": (of_groups(two_penalties), two_penalties),
}


@pytest.mark.parametrize("strategy", ["auto", "loop"])
@pytest.mark.parametrize("name", EQUAL)
def test_penalties_of_groups_are_shared(name, strategy):
    made, loss = EQUAL[name]
    rewritten = hs.rewrite(made, batch_argnums=1, statistics=hs.per_example(), strategy=strategy)
    plain, each = rewritten(PARAMS, X)
    alone = [jax.grad(loss)(PARAMS, X[b : b + 1]) for b in range(B)]
    wanted = jax.tree.map(lambda *gradients: jnp.stack(gradients), *alone)
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    jax.tree.map(close, each, wanted)
    jax.tree.map(lambda g, of_each: close(g, of_each.mean(0)), plain, each)


def of_unequal_groups(p, x):
    return added(*(jax.grad(penalised)(p, rows) for rows in (x[:2], x[2:])))


def of_some(p, x):
    """All examples meet in one sum, and some of them in another."""
    return added(*(jax.grad(penalised)(p, rows) for rows in (x, x[:2])))


def weighted(p, x):
    each = [jax.grad(penalised)(p, rows) for rows in groups(x, 4)]
    return added(times(each[0], 0.3), times(each[1], 0.7))


def numbered(p, x):
    """The first group's loss has the penalty twice."""
    each = [jax.grad(of_first)(p, rows, i) for i, rows in enumerate(groups(x, 4))]
    return times(added(*each), 0.5)


def of_one_group(p, x):
    """Both penalties are the first group's."""
    one, two = groups(x, 4)
    twice = added(jax.grad(penalised)(p, one), jax.grad(penalty)(p))
    return added(twice, jax.grad(fit)(p, two))


def of_nobody(p, x):
    return added(*(jax.grad(fit)(p, rows) for rows in groups(x, 4)), jax.grad(penalty)(p))


def in_one_loss(p, x):
    return jax.grad(lambda p: sum(penalised(p, rows) for rows in groups(x, 4)))(p)


def weighs_within(p, x):
    """A bias that the first example of a group takes once, and the second one twice."""
    one, two = x[:1] @ p["w"] + p["v"], x[1:] @ p["w"] + 2 * p["v"]
    return jnp.mean(jnp.tanh(x @ p["v"])) + (one.sum() + two.sum()) / 2


def within_groups(p, x):
    return times(added(*(jax.grad(weighs_within)(p, rows) for rows in groups(x))), 1 / 4)


def of_halves_of_all(p, x):
    """All examples meet in one sum, and the second half's constant is three times the first's."""

    def loss(p):
        one, two = x[:4] @ p["w"] + p["v"], x[4:] @ p["w"] + 3 * p["v"]
        return jnp.mean(jnp.tanh(x @ p["v"])) + (one.sum() + two.sum()) / B

    return jax.grad(loss)(p)


def other_penalties(p, x):
    one, two = groups(x, 4)
    cubes = lambda p, x: fit(p, x) + sum(jnp.sum(leaf**3) for leaf in p.values())  # noqa: E731
    return added(jax.grad(penalised)(p, one), jax.grad(cubes)(p, two))


def where_groups_have_met(p, x):
    """Once for the first group with the second one, and once for the second with the first."""
    one, two = (jax.grad(fit)(p, rows) for rows in groups(x, 4))
    decay = jax.grad(penalty)(p)
    return added(added(added(one, two), decay), added(added(two, one), decay))


def behind_a_loop(p, x):
    """The second half has the penalty twice, and the steps over the first one have it together."""

    def step(total, rows):
        return added(total, jax.grad(fit)(p, rows)), None

    zeros, decay = jax.tree.map(jnp.zeros_like, p), jax.grad(penalty)(p)
    steps = jax.lax.scan(step, zeros, x[:4].reshape(2, 2, D))[0]
    return added(added(steps, decay), added(added(jax.grad(fit)(p, x[4:]), decay), decay))


def in_rows_of_two_groups(p, x):
    own = jax.grad(fit)(p, x)
    return {"v": (jnp.flip(x[:4], 0) + x[4:] + p["v"] ** 2).sum(0), "w": own["w"]}


@pytest.mark.parametrize(
    "made",
    [
        of_unequal_groups,
        of_some,
        weighted,
        numbered,
        of_one_group,
        of_nobody,
        in_one_loss,
        within_groups,
        of_halves_of_all,
        other_penalties,
        where_groups_have_met,
        behind_a_loop,
        in_rows_of_two_groups,
    ],
)
def test_penalties_that_may_be_of_some_groups_are_refused(made):
    with pytest.raises(hs.Refusal, match="examples are taken apart, and a constant") as refused:
        hs.rewrite(made, batch_argnums=1, statistics=hs.norms())(PARAMS, X)
    assert refused.value.where.startswith(__file__)
