"""The Python API: what of `jax.grad`'s interface is kept, and what goes wrong with which words."""

import os
import subprocess
import sys
import textwrap

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


def test_grad():
    gradient, squares = hs.grad(loss, batch_argnums=(1, 2), statistics=SQUARES)(W, X, Y)
    assert_close(gradient, jax.grad(loss)(W, X, Y))
    assert_close(squares, mean_square(EXAMPLES))


def test_value_and_grad_with_aux():
    def with_aux(w, x, y):
        return loss(w, x, y), {"prediction": x @ w}

    f = hs.value_and_grad(with_aux, has_aux=True, batch_argnums=(1, 2), statistics=SQUARES)
    result, squares = f(W, X, Y)
    assert_close(result, jax.value_and_grad(with_aux, has_aux=True)(W, X, Y))
    assert_close(squares, mean_square(EXAMPLES))


def test_argnums_tuple():
    def two(w, x, v, y):
        return jnp.mean(jnp.sum((jnp.tanh(x @ w) @ v - y) ** 2, axis=-1))

    v = jnp.eye(2) * 0.5
    gradients, squares = hs.grad(two, (0, 2), batch_argnums=(1, 3), statistics=SQUARES)(W, X, v, Y)
    assert_close(gradients, jax.grad(two, (0, 2))(W, X, v, Y))
    one = jax.vmap(lambda x, y: jax.grad(two, (0, 2))(W, x[None], v, y[None]))
    assert_close(squares, jax.tree.map(mean_square, one(X, Y)))


@pytest.mark.parametrize(
    "phi", [jnp.square, jax.lax.erf, jnp.arcsinh, lambda g: jnp.clip(g, -1, 1)]
)
@pytest.mark.parametrize("strategy", ["lift", "loop"])
def test_mean_of_any_function(phi, strategy):
    f = hs.grad(loss, batch_argnums=(1, 2), statistics=hs.mean_of(phi), strategy=strategy)
    assert_close(f(W, X, Y)[1], jnp.mean(phi(EXAMPLES), 0))


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


def test_keyword_arguments_are_shared():
    f = hs.grad(lambda w, x, *, scale: scale * jnp.mean((x @ w) ** 2), statistics=hs.per_example())
    plain = hs.grad(lambda w, x: jnp.mean((x @ w) ** 2), statistics=hs.per_example())
    assert_close(f(W, X, scale=2.0)[1], 2 * plain(W, X)[1])


def test_flags_and_strings_are_static():
    def switched(w, x, squared, activation):
        y = jnp.tanh(x @ w) if activation == "tanh" else x @ w
        return jnp.mean(y**2 if squared else y)

    f = hs.grad(switched, statistics=SQUARES)
    for flags in [(True, "tanh"), (False, "tanh"), (True, "none"), (False, "none")]:
        expected = jax.vmap(lambda x, flags=flags: jax.grad(switched)(W, x[None], *flags))(X)
        assert_close(f(W, X, *flags)[1], mean_square(expected))


def noisy(w, x, keys):
    noise = jax.vmap(lambda key: jax.random.normal(key, (4,)))(keys)
    return jnp.mean(((x + noise) @ w) ** 2)


@pytest.mark.parametrize("axis", [0, -1])
def test_a_batch_of_keys(axis):
    keys = jax.random.split(jax.random.key(0), 3)
    f = hs.grad(noisy, batch_argnums=(1, 2), in_axes=(0, axis), statistics=SQUARES)
    assert_close(f(W, X, keys)[1], mean_square(alone(noisy)(W, X, keys)))


def test_keys_are_returned_as_keys():
    def splitting(w, x, key):
        return jnp.mean((x @ w) ** 2), jax.random.split(key)

    f = hs.grad(splitting, has_aux=True, statistics=SQUARES)
    (_, keys), _ = f(W, X, jax.random.key(1))
    assert keys.dtype == jax.random.key(1).dtype
    assert_close(
        jax.random.key_data(keys), jax.random.key_data(jax.random.split(jax.random.key(1)))
    )


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


def test_what_it_returns_may_count_as_a_constant_of_a_derivative():
    f = hs.grad(loss, batch_argnums=(1, 2), statistics=SQUARES)

    def scaled(w, around_arguments):
        constant = jax.lax.stop_gradient(w)
        found = f(constant if around_arguments else w, X, Y)[1]
        return jnp.sum(w * jax.lax.stop_gradient(found))

    for around_arguments in (True, False):
        assert_close(jax.grad(scaled)(W, around_arguments), mean_square(EXAMPLES))


def test_a_batch_of_one_that_would_mix():
    """With one example nothing can meet."""
    f = hs.grad(lambda w, x: jnp.sum(jnp.sum(x @ w, 0) ** 2), statistics=SQUARES)
    gradient, squares = f(W, X[:1])
    assert_close(squares, gradient**2)


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


@pytest.mark.parametrize("strategy", ["square", "lift", "loop"])
def test_complex_parameters(strategy):
    """The gradient is `jax.grad`'s, the conjugate of the steepest ascent; its second moment is
    real.
    """

    def power(w, x):
        return jnp.mean(jnp.sum(jnp.abs(x @ w) ** 2, -1))

    w = W + 1j * W[::-1]
    statistics = {"squares": SQUARES, "cubes": hs.mean_power(3)}
    gradient, found = hs.grad(power, statistics=statistics, strategy=strategy)(w, X)
    examples = alone(power)(w, X)
    assert_close(gradient, jax.grad(power)(w, X))
    assert found["squares"].dtype == jnp.float32
    assert_close(found, {"squares": mean_square(examples), "cubes": jnp.mean(examples**3, 0)}, 1e-4)


def test_rewrite_with_picked_gradients():
    f = hs.rewrite(
        jax.value_and_grad(loss),
        batch_argnums=(1, 2),
        statistics=SQUARES,
        gradients=lambda outputs: outputs[1],
    )
    outputs, squares = f(W, X, Y)
    assert_close(outputs, jax.value_and_grad(loss)(W, X, Y))
    assert_close(squares, mean_square(EXAMPLES))


def test_explain_prints_sites_and_strategies():
    f = hs.grad(loss, batch_argnums=(1, 2), statistics=SQUARES)
    plan = str(hs.explain(f, W, X, Y))
    assert plan.startswith("3 examples, loss reduced by mean (taken on trust)\n")
    assert "second_moment: square" in plan
    assert "stablehlo.dot_general at" in plan
    assert "test_api.py:" in plan


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
    "no axis": (
        {"batch_argnums": (1, 2), "in_axes": None},
        ValueError,
        "in_axes names no axis",
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
    "loss_reduction": (
        {"loss_reduction": "none"},
        ValueError,
        "loss_reduction is 'none'; it is one of",
    ),
    "on_mixing": ({"on_mixing": "ignore"}, ValueError, "on_mixing is 'ignore'; it is one of"),
    "strategy": ({"strategy": "fast"}, ValueError, "strategy is 'fast'; it is one of"),
    "square of all": (
        {"strategy": "square", "statistics": hs.per_example(), "batch_argnums": (1, 2)},
        ValueError,
        "strategy='square' does not apply to per_example of ",
    ),
    "no statistic": ({"statistics": {}}, ValueError, "no statistic is asked for"),
    "a function": (
        {"statistics": {"a": jnp.square}},
        TypeError,
        "pass a statistic, such as second_moment",
    ),
    "a function alone": (
        {"statistics": jnp.square},
        TypeError,
        "pass a statistic, such as second_moment",
    ),
    "a list": (
        {"statistics": [SQUARES]},
        TypeError,
        "statistics is a list; pass a statistic, such as second_moment",
    ),
}


@pytest.mark.parametrize(("options", "kind", "words"), WRONG.values(), ids=WRONG.keys())
def test_wrong_use(options, kind, words):
    with pytest.raises(kind, match=words):
        hs.grad(loss, **{"statistics": SQUARES, **options})(W, X, Y)


def test_an_empty_batch():
    with pytest.raises(ValueError, match="the batch is empty"):
        hs.grad(loss, batch_argnums=(1, 2), statistics=SQUARES)(W, X[:0], Y[:0])


SHARDED = """
    import jax, jax.numpy as jnp, numpy as np
    import hlo_surgery as hs
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    mesh = Mesh(np.array(jax.devices()), ("data",))
    rng = np.random.default_rng(0)
    w, x, y = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in [(5, 3), (16, 5), (16, 3)])
    loss = lambda w, x, y: jnp.mean((jnp.tanh(x @ w) - y) ** 2)
    statistics = {"squares": hs.second_moment(), "tanh": hs.mean_of(jnp.tanh)}
    f = hs.grad(loss, batch_argnums=(1, 2), statistics=statistics)
    plain = f(w, x, y)
    put = lambda a, *spec: jax.device_put(a, NamedSharding(mesh, P(*spec)))
    arguments = put(w), put(x, "data"), put(y, "data")
    assert len(arguments[1].sharding.device_set) == 8
    for g in (f, jax.jit(f)):
        for a, b in zip(jax.tree.leaves(g(*arguments)), jax.tree.leaves(plain), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    print("sharded over", len(jax.devices()))
"""


def test_sharded_batch():
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SHARDED)],
        env={**os.environ, **flags},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "sharded over 8"
