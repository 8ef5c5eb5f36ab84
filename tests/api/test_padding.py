"""Padding examples: with `is_real`, every statistic is that of the batch without them."""

from functools import cache

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


def loss(p, tokens, y, real):
    h, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w) + h, None), p["table"][tokens], p["layers"])
    start = jnp.zeros_like(h[:, 0])
    _, states = jax.lax.scan(
        lambda c, z: (jnp.tanh(z + c @ p["recurrent"]), c), start, jnp.moveaxis(h, 1, 0)
    )
    each = jnp.sum((jnp.moveaxis(states, 0, 1) @ p["w"] + p["b"] - y) ** 2, (1, 2))
    return jnp.sum(jnp.where(real, each, 0)) / jnp.sum(real) + 0.1 * jnp.sum(p["recurrent"] ** 2)


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


def assert_that_of_the_real(fun, args, names, mask=MASK, **options):
    """Held against the same statistic of the real examples alone; rows of padding are zero."""
    options = {
        "batch_argnums": tuple(range(1, len(args) + 1)),
        "statistics": {k: ALL[k] for k in names},
        **options,
    }
    params, *batch = args
    found, statistics = hs.value_and_grad(fun, is_real=-1, **options)(params, *batch, mask)
    plain, expected = hs.value_and_grad(fun, **options)(params, *(x[mask] for x in [*batch, mask]))
    held({"value": found}, {"value": plain})
    held({k: among(mask, statistics[k], k) for k in names}, {k: expected[k] for k in names})


def among(mask, statistic, name):
    if name not in ROWS:
        return statistic
    padding, real = np.flatnonzero(~mask), np.flatnonzero(mask)
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


@pytest.mark.parametrize(
    ("strategy", "names"),
    [("square", ["second_moment", "mean_sign", "ones"]), ("ghost", ["norms", "gram"])],
)
def test_strategies_of_a_dense_layer(strategy, names):
    assert_that_of_the_real(dense, (W, X), names, strategy=strategy)


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


def counts_padding(w, x, real):
    """A sum whose own gradient counts padding, and NaN in it."""
    return jnp.sum(jnp.tanh(x @ w) ** 2)


def counts_padding_by_rows(table, tokens, real):
    """As `counts_padding`, of rows that are scattered."""
    return jnp.sum(jnp.where(real, 1.0, jnp.nan)[:, None, None] * jnp.tanh(table[tokens]) ** 2)


def counts_padding_in_steps(w, x, real):
    """As `counts_padding`, by microbatches."""
    step = jax.grad(lambda w, x: counts_padding(w, x, None))
    return jax.lax.scan(
        lambda total, x: (total + step(w, x), None), jnp.zeros_like(w), x.reshape(3, 2, 3)
    )[0]


@pytest.mark.parametrize("strategy", ["auto", "loop", "lift"])
@pytest.mark.parametrize("fun", [counts_padding, counts_padding_by_rows, counts_padding_in_steps])
def test_what_is_taken_about_the_mean_takes_no_padding_with_it(fun, strategy):
    by_rows = fun is counts_padding_by_rows
    own, batch = (P["table"], TOKENS) if by_rows else (W, X.at[~MASK].set(jnp.nan))
    transform = hs.rewrite if fun is counts_padding_in_steps else hs.grad
    f = transform(
        fun,
        batch_argnums=(1, 2),
        statistics={
            "snr": hs.snr(),
            "noise": hs.noise_scale(),
            "products": hs.inner_products(),
            "variance": hs.variance(),
        },
        is_real=2,
        strategy=strategy,
        loss_reduction="sum",
    )
    _, found = f(own, batch, MASK)
    alone = jax.grad(counts_padding_by_rows if by_rows else counts_padding)
    g = jax.vmap(lambda row: alone(own, row[None], jnp.ones(1, bool)))(batch[MASK])
    mean, variance = g.mean(0), g.var(0, ddof=1)
    held(found["variance"], variance)
    touched = variance > 0
    held(found["snr"][touched], (jnp.abs(mean) / jnp.sqrt(variance))[touched])
    held(found["products"], jnp.zeros(6).at[MASK].set(jnp.sum(g * mean, (1, 2))))
    held(found["noise"].variance, variance.sum())
    held(found["noise"].squared_mean, jnp.sum(mean**2) - variance.sum() / len(g))


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


def by_steps(term):
    """Of three parts, each with a term beside its examples'."""

    def gradient(w, *batch):
        own = jax.grad(lambda w, *part: total_of(w, *part) + term * jnp.sum(w**2))
        parts = [a.reshape(3, 2, *a.shape[1:]) for a in batch]
        return jax.lax.fori_loop(
            0, 3, lambda i, total: total + own(w, *(a[i] for a in parts)), jnp.zeros_like(w)
        )

    return gradient


def stacked(term):
    """Of three parts, with a term behind."""

    def gradient(w, *batch):
        parts = [a.reshape(3, 2, *a.shape[1:]) for a in batch]
        return jnp.sum(jax.lax.map(lambda part: jax.grad(total_of)(w, *part), parts), 0) + term * w

    return gradient


@pytest.mark.parametrize("parts", [by_steps, stacked])
def test_a_private_statistic_of_what_loops_add_up(parts):
    """Beside one that takes the batch as a whole, for which the loops carry each example's own."""
    asked = {"clipped": hs.clipped_mean(0.1), "gram": hs.gram()}
    options = {"batch_argnums": (1, 2), "statistics": asked, "loss_reduction": "sum"}
    real = X[MASK], MASK[MASK]
    found = hs.rewrite(parts(0), is_real=2, **options)(W, X, MASK)[1]
    expected = hs.grad(total_of, **options)(W, *real)[1]
    held(found["clipped"], expected["clipped"])
    held(found["gram"][np.ix_(MASK, MASK)], expected["gram"])
    with pytest.raises(hs.Refusal, match="share a term"):
        hs.rewrite(parts(0.5), is_real=2, **options)(W, X, MASK)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_train_step(reduction):
    ho = pytest.importorskip("hlo_surgery.optimizers")

    def fun(w, x, real):
        return dense(w, x, real) * (jnp.sum(real) if reduction == "sum" else 1)

    optimizer = (
        ho.multi_steps(ho.micro_adam_var(0.1), 2) if reduction == "mean" else ho.micro_adam(0.1)
    )
    options = {
        "batch_argnums": (1, 2),
        "loss_reduction": reduction,
        "statistics": {"norms": hs.norms()},
    }
    padded, plain = (
        hs.train_step(fun, optimizer, is_real=2, **options),
        hs.train_step(fun, optimizer, **options),
    )
    states = [(jnp.copy(W), optimizer.init(W)) for _ in range(2)]
    for mask in (MASK, ~MASK):
        *states[0], _ = padded(*states[0], X, mask)
        *states[1], _ = plain(*states[1], X[mask], mask[mask])
    held(states[0][0], states[1][0])


NO_FLAGS = [[0.5] * 4, [2.0, 1, 1, 1], [-1.0, 1, 1, 1], [np.nan, 1, 1, 1], [0.5, 0, 0, 0]]


@cache
def flagged(strategy):
    """The function that all flags are given to, compiled once."""
    statistics = {
        "squares": hs.second_moment(),
        "mean": hs.mean_power(1),
        "norms": hs.norms(),
        "rows": hs.per_example(),
        "gram": hs.gram(),
        "histogram": hs.histogram([-1.0, 0.0, 1.0]),
        "losses": hs.per_example_losses(),
    }
    options = {"statistics": statistics, "strategy": strategy, "is_real": 2}
    return jax.jit(hs.value_and_grad(lambda w, x, real: jnp.mean((x @ w) ** 2), **options))


@pytest.mark.parametrize("strategy", ["auto", "lift", "loop"])
@pytest.mark.parametrize("flags", NO_FLAGS)
def test_flags_that_are_neither_0_nor_1_make_nan(flags, strategy):
    for name, found in flagged(strategy)(W[:, 0], X[:4], jnp.array(flags))[1].items():
        assert (found == -1 if name == "histogram" else np.isnan(found)).all(), name


@pytest.mark.parametrize("flags", NO_FLAGS)
def test_flags_that_can_be_read_are_checked(flags):
    def squares(w, x, real):
        return jnp.mean((x @ w) ** 2)

    f = hs.grad(squares, statistics=hs.norms(), is_real=2)
    with pytest.raises(ValueError, match=r"is_real \(argument 2\) holds .*0 or False for padding"):
        f(W, X[:4], np.array(flags))
    with pytest.raises(ValueError, match=r"is_real holds .*0 or False for padding"):
        hs.grad(squares, statistics=hs.norms(), is_real=jnp.array(flags))(W, X[:4], 0)
