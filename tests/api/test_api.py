"""The Python API: what of `jax.grad`'s interface is kept, and what goes wrong with which words.

This folder alone tests the interface of `jax.grad`, padding, rows of an example, what is closed
over, wrong calls.
"""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs

RNG = np.random.default_rng(0)
W, X, Y = (jnp.asarray(RNG.normal(size=shape), jnp.float32) for shape in [(4, 2), (3, 4), (3, 2)])
SQUARES = hs.second_moment()


def loss(w, x, y):
    return jnp.mean(jnp.sum((jnp.tanh(x @ w) - y) ** 2, axis=-1))


def alone(loss, argnums=0):
    """Every example's gradient, one batch of one at a time."""

    def examples(w, *batch):
        one = jax.vmap(lambda *row: jax.grad(loss, argnums)(w, *(a[None] for a in row)))
        return one(*batch)

    return examples


def mean_square(g):
    return jnp.mean(jnp.abs(g) ** 2, axis=0)


EXAMPLES = alone(loss)(W, X, Y)


def assert_close(actual, expected, tolerance=1e-5):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(
        lambda a, e: np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance),
        actual,
        expected,
    )


def test_value_and_grad_with_aux():
    def with_aux(w, x, y):
        return loss(w, x, y), {"prediction": x @ w}

    f = hs.value_and_grad(with_aux, has_aux=True, batch_argnums=(1, 2), statistics=SQUARES)
    result, squares = f(W, X, Y)
    assert_close(result, jax.value_and_grad(with_aux, has_aux=True)(W, X, Y))
    assert_close(squares, mean_square(EXAMPLES))


@pytest.mark.parametrize(
    ("in_axes", "batch"),
    [
        (0, {"x": X, "y": Y, "scale": jnp.ones(3)}),
        ({"x": 1, "y": 0, "scale": None}, {"x": X.T, "y": Y, "scale": jnp.float32(1)}),
        ({"x": -1, "y": -2, "scale": None}, {"x": X.T, "y": Y, "scale": None}),
    ],
    ids=["one for all", "pytree with None", "negative"],
)
def test_in_axes(in_axes, batch):
    def dict_loss(w, batch):
        x = batch["x"] if batch["x"].shape == X.shape else batch["x"].T
        weights = 1.0 if batch["scale"] is None else batch["scale"]
        return jnp.mean(weights * jnp.sum((jnp.tanh(x @ w) - batch["y"]) ** 2, axis=-1))

    f = hs.grad(dict_loss, in_axes=in_axes if in_axes == 0 else (in_axes,), statistics=SQUARES)
    assert_close(f(W, batch)[1], mean_square(EXAMPLES))


def test_flags_and_strings_are_static():
    def switched(w, x, squared, activation):
        y = jnp.tanh(x @ w) if activation == "tanh" else x @ w
        return jnp.mean(y**2 if squared else y)

    f = hs.grad(switched, statistics=SQUARES)
    for flags in [(True, "tanh"), (False, "tanh"), (True, "none"), (False, "none")]:
        expected = jax.vmap(lambda x, flags=flags: jax.grad(switched)(W, x[None], *flags))(X)
        assert_close(f(W, X, *flags)[1], mean_square(expected))


def test_equal_static_values_of_other_types_are_others():
    def switched(w, x, flag):
        return jnp.mean((x @ w) ** 2) * (1 if isinstance(flag, bool) else 3)

    f = hs.grad(switched, statistics=hs.norms())
    assert_close(f(W, X, Fraction(1))[1], 3 * f(W, X, True)[1])


def test_promotion_may_be_strict():
    f = hs.grad(loss, batch_argnums=(1, 2), statistics=SQUARES)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        squares = f(*(a.astype(jnp.float64) for a in (W, X, Y)))[1]
    assert_close(squares, mean_square(EXAMPLES))


def noisy(w, x, keys):
    noise = jax.vmap(lambda key: jax.random.normal(key, (4,)))(keys)
    return jnp.mean(((x + noise) @ w) ** 2)


@pytest.mark.parametrize("axis", [0, -1])
def test_a_batch_of_keys(axis):
    keys = jax.random.split(jax.random.key(0), 3)
    f = hs.grad(noisy, batch_argnums=(1, 2), in_axes=(0, axis), statistics=SQUARES)
    assert_close(f(W, X, keys)[1], mean_square(alone(noisy)(W, X, keys)))


def test_inside_jit_scan_and_with_donation():
    f = hs.grad(loss, batch_argnums=(1, 2), statistics=SQUARES)
    expected = f(W, X, Y)
    assert_close(jax.jit(f, donate_argnums=0)(jnp.array(W), X, Y), expected)
    _, stacked = jax.lax.scan(lambda w, _: (w, f(w, X, Y)), W, None, length=2)
    assert_close(jax.tree.map(lambda a: a[1], stacked), expected)


def test_rewritten_once_for_each_set_of_shapes_and_dtypes():
    traced = []

    def counted(w, x, y):
        traced.append(x.shape)
        return loss(w, x, y)

    f = hs.grad(counted, batch_argnums=(1, 2), statistics=SQUARES)
    f(W, X, Y)
    f(W + 1, X * 2, Y)
    f(W, X[:2], Y[:2])
    f(W, X[1:], Y[1:])
    f(W.astype(jnp.bfloat16), X, Y)
    assert traced == [(3, 4), (2, 4), (3, 4)]


def test_it_cannot_be_differentiated_or_mapped():
    """Better an error than the derivative of another function."""
    f = hs.grad(loss, batch_argnums=(1, 2), statistics=SQUARES)
    for differentiated in (jax.grad, jax.jacfwd):
        with pytest.raises(TypeError, match=r"cannot be differentiated: .* put jax.lax.stop_grad"):
            differentiated(lambda w: f(w, X, Y)[1].sum())(W)
    with pytest.raises(NotImplementedError):
        jax.vmap(f, in_axes=(0, None, None))(W[None], X, Y)


def test_a_loss_that_sums_shares_weight_decay():
    def decayed(w, x):
        return jnp.sum(x @ w) + jnp.sum(w**2)

    f = hs.grad(decayed, statistics=hs.per_example(), loss_reduction="sum")
    assert_close(f(W, X)[1], jnp.stack([jnp.outer(x, jnp.ones(2)) + 2 * W / 3 for x in X]))


def test_float64():
    with jax.enable_x64(True):
        w, x, y = (jnp.asarray(np.asarray(a), jnp.float64) for a in (W, X, Y))
        _, squares = hs.grad(loss, batch_argnums=(1, 2), statistics=SQUARES)(w, x, y)
        assert squares.dtype == jnp.float64
        assert_close(squares, mean_square(alone(loss)(w, x, y)), 1e-12)


def test_bfloat16_parameters_accumulate_in_float32():
    w = W.astype(jnp.bfloat16)
    gradient, squares = hs.grad(loss, batch_argnums=(1, 2), statistics=SQUARES)(w, X, Y)
    assert gradient.dtype == jnp.bfloat16
    assert squares.dtype == jnp.float32
    assert_close(squares, mean_square(alone(loss)(w.astype(jnp.float32), X, Y)), 2**-6)


@pytest.mark.first(1)
@pytest.mark.parametrize("strategy", ["square", "lift", "loop"])
def test_many_equal_examples_are_not_summed_in_low_precision(strategy):
    """1 added to a bfloat16 again and again stops at 256."""

    def narrow(w, x):
        return jnp.mean(jnp.sum(jnp.tanh(x @ w).astype(jnp.float32) ** 2, -1))

    w, row = W.astype(jnp.bfloat16), X[:1].astype(jnp.bfloat16)
    f = hs.grad(narrow, statistics=SQUARES, strategy=strategy)
    one = jax.grad(narrow)(w.astype(jnp.float32), row.astype(jnp.float32))
    assert_close(f(w, jnp.repeat(row, 1500, 0))[1], one**2, 2**-5)


def test_explain_prints_sites_and_strategies():
    f = hs.grad(loss, batch_argnums=(1, 2), statistics=SQUARES)
    plan = str(hs.explain(f, W, X, Y))
    assert plan.startswith("3 examples, loss reduced by mean (taken on trust)\n")
    assert "second_moment: square" in plan
    assert "stablehlo.dot_general at" in plan
    assert "test_api.py:" in plan


def test_the_plan_in_short_is_like_the_gradient():
    """What `explain` says of each gradient, one strategy for one statistic, a dict for several."""
    params = {"w1": jnp.ones((4, 5)), "steps": (jnp.ones(5), 7)}
    of = lambda p, x: jnp.mean(jnp.tanh(x @ p["w1"]) @ p["steps"][0])  # noqa: E731
    asked = {"squares": hs.second_moment(), "norms": hs.norms()}
    f = hs.grad(of, statistics=asked)
    plan = f.plan(params, X)
    assert jax.tree.structure(plan["norms"]) == jax.tree.structure(f(params, X)[0])
    said = hs.explain(f, params, X).outputs
    assert len(said) == 2
    for name in asked:
        assert jax.tree.leaves(plan[name]) == [o.strategies[name] for o in said]
        assert hs.grad(of, statistics=asked[name]).plan(params, X) == plan[name]
    assert hs.grad(of, statistics=hs.norms(), strategy="lift").plan(params, X) == {
        "steps": ("lift", None),
        "w1": "lift",
    }


WRONG = {
    "no such argument": (
        {"batch_argnums": 5},
        ValueError,
        "batch_argnums names argument 5; 3 positional ones",
    ),
    "no such axis": (
        {"batch_argnums": (1, 2), "in_axes": (0, 3)},
        ValueError,
        "there is no example axis 3",
    ),
    "too few axes": (
        {"batch_argnums": (1, 2), "in_axes": (0,)},
        ValueError,
        "in_axes has 1 entries for 2",
    ),
    "sizes differ": (
        {"batch_argnums": (1, 2), "in_axes": (1, 0)},
        ValueError,
        "different numbers of examples",
    ),
    "square of all": (
        {"strategy": "square", "statistics": hs.per_example(), "batch_argnums": (1, 2)},
        ValueError,
        "strategy='square' does not apply to per_example of ",
    ),
    "no statistic": ({"statistics": {}}, TypeError, "statistics is {}; pass a statistic"),
    "a function": (
        {"statistics": {"a": jnp.square}},
        TypeError,
        "pass a statistic, such as hlo_surgery.norms",
    ),
}


@pytest.mark.parametrize(("options", "kind", "words"), WRONG.values(), ids=WRONG.keys())
def test_wrong_use(options, kind, words):
    with pytest.raises(kind, match=words):
        hs.grad(loss, **{"statistics": SQUARES, **options})(W, X, Y)
