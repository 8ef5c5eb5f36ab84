"""Padding examples: with `is_real`, every statistic is that of the batch without them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs

RNG = np.random.default_rng(0)
MASK = jnp.array([1, 0, 1, 1, 0, 1], bool)
TOKENS, Y = (
    jnp.asarray(RNG.integers(0, 5, (6, 3))),
    jnp.asarray(RNG.normal(size=(6, 3, 2)), jnp.float32),
)
SHAPES = {"table": (5, 4), "layers": (2, 4, 4), "recurrent": (4, 4), "w": (4, 2), "b": (2,)}
P = {name: jnp.asarray(RNG.normal(size=shape) / 2, jnp.float32) for name, shape in SHAPES.items()}


def dense(p, x, real):
    return jnp.sum(jnp.where(real, jnp.sum(jnp.tanh(x @ p) ** 2, -1), 0)) / jnp.maximum(
        jnp.sum(real), 1
    )


W, X = (
    jnp.asarray(RNG.normal(size=(3, 2)), jnp.float32),
    jnp.asarray(RNG.normal(size=(6, 3)), jnp.float32),
)
MEANS = {
    "second_moment": hs.second_moment(),
    "mean_sign": hs.mean_sign(),
    "ones": hs.mean_of(jnp.ones_like, factorable=True),
    "cos": hs.mean_of(jnp.cos),
    "polynomial": hs.polynomial([1.0, 2.0, 0.5]),
    "variance": hs.variance(),
    "histogram": hs.histogram([-2.0, -0.5, 0.1, 0.5, 2.0]),
    "noise_scale": hs.noise_scale(),
    "weighted_mean": hs.weighted_mean(lambda n: 1 / (n + 0.01)),
    "gram_weights": hs.weighted_mean(lambda gram: 1 / (1 + jnp.abs(gram).sum(1)), of="gram"),
    "weighted_squares": hs.weighted_second_moment(lambda n: 1 / (n + 0.1)),
    "sum_of": hs.sum_of(lambda g: jnp.cos(g).sum()),
    "sum_of_all": hs.sum_of(lambda tree: jax.tree.map(jnp.cos, tree), "global"),
    "top": hs.top_directions(2),
    "clipped": hs.weighted_mean(lambda n: 0.5 / jnp.maximum(n, 0.5), nan_safe=True),
}
ROWS = {
    "norms": hs.norms(),
    "norms of parameters": hs.norms("parameter", ord=1),
    "gram": hs.gram(),
    "inner_products": hs.inner_products(),
    "per_example": hs.per_example(),
    "losses": hs.per_example_losses(),
    "projected": hs.projected(3, per="global"),
}
ALL = {**MEANS, **ROWS}


def assert_that_of_the_real(fun, args, names, **options):
    """Held against the same statistic of the real examples alone; rows of padding are zero."""
    options = {
        "batch_argnums": tuple(range(1, len(args) + 1)),
        "statistics": {k: ALL[k] for k in names},
        **options,
    }
    params, *batch = args
    found, statistics = hs.value_and_grad(fun, is_real=-1, **options)(params, *batch, MASK)
    plain, expected = hs.value_and_grad(fun, **options)(params, *(x[MASK] for x in [*batch, MASK]))
    held({"value": found}, {"value": plain})
    held({k: among(statistics[k], k) for k in names}, {k: expected[k] for k in names})


def among(statistic, name):
    if name not in ROWS:
        return statistic
    padding, real = np.flatnonzero(~MASK), np.flatnonzero(MASK)
    assert all(not np.any(np.asarray(leaf)[padding]) for leaf in jax.tree.leaves(statistic))
    rows = jax.tree.map(lambda leaf: leaf[real], statistic)
    return rows[:, real] if name == "gram" else rows


def held(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, e in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, e, rtol=2e-4, atol=2e-5 * np.max(np.abs(e)))


@pytest.mark.parametrize(
    ("strategy", "reduction"),
    [("auto", "sum"), pytest.param("lift", "sum", marks=pytest.mark.slow), ("loop", "mean")],
)
def test_every_statistic(strategy, reduction):
    def fun(p, tokens, y, real):
        each = jnp.sum((jnp.tanh(p["table"][tokens]) @ p["w"] - y) ** 2, (1, 2))
        total = jnp.sum(jnp.where(real, each, 0))
        mean = total / jnp.maximum(jnp.sum(real), 1)
        return (mean if reduction == "mean" else total) + 0.1 * (
            jnp.sum(p["table"] ** 2) + jnp.sum(p["w"])
        )

    params = {name: P[name] for name in ("table", "w")}
    assert_that_of_the_real(
        fun, (params, TOKENS, Y), ALL, strategy=strategy, loss_reduction=reduction
    )


def test_padding_that_is_not_finite_and_no_real_example():
    bad = X.at[1].set(jnp.nan).at[4].set(jnp.inf)
    names = ["second_moment", "cos", "norms", "weighted_mean"]
    options = {"batch_argnums": (1, 2), "statistics": {k: ALL[k] for k in names}, "is_real": MASK}

    def safe(w, x, real):
        return dense(w, jnp.where(real[:, None], x, 0), real)

    held(hs.grad(safe, **options)(W, bad, MASK), hs.grad(safe, **options)(W, X, MASK))
    none = jnp.zeros(6, bool)
    _, statistics = hs.grad(dense, **{**options, "is_real": none})(W, X, none)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(statistics))
    _, spread = hs.grad(dense, **{**options, "statistics": hs.variance(), "is_real": none})(
        W, X, none
    )
    assert np.all(np.isnan(spread))


def test_how_the_flags_are_given():
    def fun(p, batch):
        return dense(p, batch["x"], batch["mask"])

    expected = hs.grad(dense, batch_argnums=(1, 2), statistics=hs.second_moment())(
        W, X[MASK], MASK[MASK]
    )[1]
    batch = {"x": X, "mask": MASK}
    for is_real in (MASK, MASK.astype(int).tolist(), MASK * 1.0):
        held(hs.grad(fun, statistics=hs.second_moment(), is_real=is_real)(W, batch)[1], expected)
    f = hs.grad(fun, statistics=hs.second_moment(), is_real=lambda p, batch: batch["mask"])
    held(jax.jit(f)(W, batch)[1], expected)
    other = {**batch, "mask": ~MASK}
    plain = hs.grad(dense, batch_argnums=(1, 2), statistics=hs.second_moment())
    held(f(W, other)[1], plain(W, X[~MASK], ~MASK[~MASK])[1])


@pytest.mark.parametrize(
    ("is_real", "kind", "said"),
    [
        (5, ValueError, "names argument 5; 3"),
        (1, TypeError, r"one array \[B\] .*, not float32\[6,"),
        (lambda w, x, real: {"w": w}, TypeError, r"not \{'w': 'float32\[[\d,]*\]'\}"),
        (np.ones(4), ValueError, r"is_real must hold .* each of the 6 examples; it is float"),
        (lambda w, x, real: None, TypeError, "one array"),
        (1j * np.ones(6), ValueError, "one flag or 0/1"),
    ],
)
def test_wrong_flags(is_real, kind, said):
    f = hs.grad(dense, batch_argnums=(1, 2), statistics=hs.norms(), is_real=is_real)
    with pytest.raises(kind, match=said):
        f(W, X, MASK)


def total_of(w, x, real):
    return jnp.sum(jnp.where(real, jnp.sum(jnp.tanh(x @ w) ** 2, -1), 0))


def test_a_private_statistic_takes_the_sum():
    options = {"batch_argnums": (1, 2), "statistics": hs.clipped_mean(0.1), "loss_reduction": "sum"}
    found = hs.grad(total_of, is_real=2, **options)(W, X, MASK)
    held(found, hs.grad(total_of, **options)(W, X[MASK], MASK[MASK]))
    with pytest.raises(hs.Refusal, match="share a term"):
        hs.grad(lambda w, *batch: total_of(w, *batch) + jnp.sum(w**2), is_real=2, **options)(
            W, X, MASK
        )
    with pytest.raises(hs.Refusal, match="sum over the real examples"):
        hs.grad(dense, is_real=2, **{**options, "loss_reduction": "mean"})(W, X, MASK)


NO_FLAGS = [[0.5] * 4, [2.0, 1, 1, 1], [-1.0, 1, 1, 1], [np.nan, 1, 1, 1], [0.5, 0, 0, 0]]


@pytest.mark.parametrize("flags", NO_FLAGS)
def test_flags_that_can_be_read_are_checked(flags):
    def squares(w, x, real):
        return jnp.mean((x @ w) ** 2)

    f = hs.grad(squares, statistics=hs.norms(), is_real=2)
    with pytest.raises(ValueError, match=r"is_real \(argument 2\) holds .*0 or False for padding"):
        f(W, X[:4], np.array(flags))
    with pytest.raises(ValueError, match=r"is_real holds .*0 or False for padding"):
        hs.grad(squares, statistics=hs.norms(), is_real=jnp.array(flags))(W, X[:4], 0)
