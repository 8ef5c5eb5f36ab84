"""Biases whose gradients have constants, as behind the last activation, and examples in groups."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs

B, D = 8, 3
PARAMS = {
    "b": jnp.linspace(0.2, 0.7, D),
    "c": jnp.linspace(-0.5, 0.4, D),
    "w": jnp.linspace(-1.0, 1.0, D * D).reshape(D, D),
}
X = jnp.sin(jnp.arange(B * D) ** 1.3).reshape(B, D)
MASK = jnp.array([0.5, 2.0])
ROWS = jnp.array([[1.0, 2.0, 3.0], [-1.0, 0.5, 0.0]])


def residual(p, x):
    h = x + jnp.tanh(x @ p["w"] + p["b"]) + p["c"]
    return h + jnp.tanh(h @ p["w"])


def fit(p, x):
    return jnp.mean(residual(p, x) ** 2)


def groups(x, size=2):
    return [x[i : i + size] for i in range(0, B, size)]


def total(trees, scale=1.0):
    return jax.tree.map(lambda *leaves: scale * sum(leaves[1:], leaves[0]), *trees)


def added_gradients(p, x):
    return total([jax.grad(fit)(p, rows) for rows in groups(x)], 2 / B)


@jax.grad
def added_losses(p, x):
    return sum(fit(p, rows) for rows in groups(x)) * 2 / B


@jax.grad
def stacked_losses(p, x):
    return jnp.mean(jnp.stack([fit(p, rows) for rows in groups(x)]))


@jax.grad
def single_examples(p, x):
    return sum(fit(p, row[None]) for row in x) / B


@jax.grad
def stacked_examples(p, x):
    return jnp.mean(jnp.stack([fit(p, row) for row in x]))


@jax.grad
def strided(p, x):
    return sum(fit(p, x[i::4]) for i in range(4)) / 4


def penalised(p, x):
    return fit(p, x) + 0.1 * sum(jnp.sum(leaf**2) for leaf in p.values())


def with_penalties(p, x):
    return total([jax.grad(penalised)(p, rows) for rows in groups(x)], 2 / B)


def running_mean(p, x):
    mean = jax.tree.map(jnp.zeros_like, p)
    for i, rows in enumerate(groups(x, 4)):
        new = jax.grad(fit)(p, rows)
        mean = jax.tree.map(lambda m, g, n=i + 1: m + (g - m) / n, mean, new)
    return mean


EVEN = {
    "added gradients": (added_gradients, fit),
    "added losses": (added_losses, fit),
    "stacked losses": (stacked_losses, fit),
    "single examples": (single_examples, fit),
    "stacked examples": (stacked_examples, fit),
    "strided": (strided, fit),
    "with penalties": (with_penalties, penalised),
    "running mean": (running_mean, fit),
}


def alone(loss):
    each = [jax.grad(loss)(PARAMS, X[b : b + 1]) for b in range(B)]
    return jax.tree.map(lambda *gradients: jnp.stack(gradients), *each)


close = partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("strategy", ["auto", "loop", "lift"])
@pytest.mark.parametrize("name", EVEN)
def test_constants_in_rows_of_groups_are_shared(name, strategy):
    made, loss = EVEN[name]
    statistics = {"each": hs.per_example(), "norms": hs.norms()}
    rewritten = hs.rewrite(made, batch_argnums=1, statistics=statistics, strategy=strategy)
    plain, found = rewritten(PARAMS, X)
    wanted = alone(loss)
    jax.tree.map(close, found["each"], wanted)
    jax.tree.map(lambda g, each: close(g, each.mean(0)), plain, wanted)
    squares = sum(jnp.sum(each.reshape(B, -1) ** 2, 1) for each in jax.tree.leaves(wanted))
    close(found["norms"].ravel(), jnp.sqrt(squares))


def linear(p, x, weight=1.0, bias=0.0, scale=1.0):
    """Half a square, so that the gradient of c is the mean of what comes out."""
    h = (x @ p["w"] + weight * p["c"] + bias) * scale
    return jnp.sum(h**2) / 2 / len(x)


def of_groups(*losses):
    @jax.grad
    def made(p, x):
        return sum(
            loss(p, rows) for loss, rows in zip(losses, groups(x, B // len(losses)), strict=True)
        )

    return made


def of_rows(*chosen, loss=linear):
    @jax.grad
    def made(p, x):
        return sum(loss(p, x[rows]) for rows in map(np.array, chosen))

    return made


def by_tokens(p, x):
    return linear(p, x) / (1 + jnp.sum(jnp.abs(x)))


def stacked_with_weights(p, x):
    return jnp.array([0.3, 0.7]) @ jnp.stack([linear(p, rows) for rows in groups(x, 4)])


def some_of_each(p, x):
    one, two = x[:1] @ p["w"] + p["c"], x[1:] @ p["w"] + 2 * p["c"]
    return jnp.sum(one**2) + jnp.sum(two**2)


def behind(p, x, first):
    """Two biases, or one alone behind what the examples have."""
    h = (jnp.tanh(x @ p["w"]) + first(p, x)) + p["c"]
    return jnp.sum(h**2) / 2 / len(x)


def chosen(p, x, *columns):
    h = jnp.where(np.isin(np.arange(D), columns), x @ p["w"] + p["c"], 0.0)
    return jnp.sum(h**2) / 2 / len(x)


def by_c(made):
    return lambda p, x: made(p, x)["c"]


def one_part_only(p, x):
    return fit(p, x) + linear(p, x[:4])


UNEVEN = {
    "more of one": of_groups(linear, partial(linear, weight=2.0)),
    "another constant": of_groups(partial(linear, bias=1.0), partial(linear, bias=1.5)),
    "a constant before in one": by_c(
        of_groups(
            partial(behind, first=lambda p, x: p["b"]),
            partial(behind, first=lambda p, x: jnp.sin(x)),
        )
    ),
    "other columns": by_c(
        of_groups(lambda p, x: chosen(p, x, 0, 1), lambda p, x: chosen(p, x, 1, 2))
    ),
    "a constant in one": of_groups(linear, partial(linear, bias=1.0)),
    "weights": of_groups(partial(linear, scale=0.5), linear),
    "rows": of_groups(*[partial(linear, bias=ROWS)] * 4),
    "masks": of_groups(*[partial(linear, scale=MASK[:, None])] * 4),
    "data of groups": of_groups(by_tokens, by_tokens),
    "weights of a stack": jax.grad(stacked_with_weights),
    "parts of groups": of_groups(some_of_each, some_of_each),
    "parts of all": jax.grad(one_part_only),
    "sizes": of_rows([0, 1, 2], [3, 4, 5, 6, 7]),
    "twice": of_rows([0, 1, 2, 3, 0], [4, 5, 6, 7, 4]),
    "twice in one": of_rows([0, 1, 2, 0], [4, 5, 6, 7]),
    "left out": of_rows([0, 1, 2], [4, 5, 6]),
    "overlapping": of_rows([0, 1, 2, 3], [3, 4, 5, 6], [7, 0, 1, 2]),
}


@pytest.mark.parametrize("name", UNEVEN)
def test_constants_that_groups_may_have_otherwise_are_refused(name):
    with pytest.raises(hs.Refusal, match=r"each of them gets its share|equal share") as refused:
        hs.rewrite(UNEVEN[name], batch_argnums=1, statistics=hs.norms())(PARAMS, X)
    assert refused.value.where.startswith(__file__)


def halves(p, x, biases=(1.0, 1.0)):
    parts = zip(groups(x, 4), biases, strict=True)
    return sum(jnp.mean(rows @ p["w"] + bias) for rows, bias in parts) / 2


def each_loss(loss):
    found = hs.value_and_grad(loss, batch_argnums=1, statistics=hs.per_example_losses())
    return found(PARAMS, X)[1]


def test_losses_of_groups():
    close(each_loss(halves), [1 + jnp.mean(x @ PARAMS["w"]) for x in X])
    with pytest.raises(hs.Refusal, match="each of them gets its share"):
        each_loss(partial(halves, biases=(1.0, 2.0)))
