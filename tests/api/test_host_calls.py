"""Calls to the host: kept where nothing is heard of them, and refused where something is."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir

import hlo_surgery as hs
from tests.products import covering

W = jnp.linspace(-1.0, 1.0, 15).reshape(3, 5)
X = jnp.cos(jnp.arange(12.0)).reshape(4, 3)
STATISTICS = {
    "norms": hs.norms(),
    "squares": hs.second_moment(),
    "clipped": hs.clipped_mean(0.1),
}


class Told:
    """What a program tells its host, in the order in which that hears of it."""

    def __init__(self):
        self.values = []

    def hear(self, value):
        self.values.append(float(value))

    def after(self, function, *args):
        """What a call returns, and what the host has heard by then."""
        self.values.clear()
        result = jax.block_until_ready(function(*args))
        jax.effects_barrier()
        return result, sorted(self.values)


@pytest.fixture
def told():
    return Told()


def quiet(w, x, tell=lambda h: None):
    h = x @ w
    tell(h)
    return jnp.mean(jnp.sum(jnp.tanh(h) ** 2, -1))


def same(got, want):
    jax.tree.map(np.testing.assert_array_equal, got, want)


@pytest.mark.parametrize(("outer", "ordered"), covering([lambda f: f, jax.jit], [False, True]))
def test_a_callback_is_called_once_a_call(told, outer, ordered):
    def tell(h):
        jax.debug.callback(told.hear, h.sum(), ordered=ordered)

    f = outer(hs.grad(lambda w, x: quiet(w, x, tell), statistics=STATISTICS))
    want = outer(hs.grad(quiet, statistics=STATISTICS))(W, X)
    for scale in (1, 2):
        got, heard = told.after(f, W, scale * X)
        np.testing.assert_allclose(heard, [scale * float((X @ W).sum())], rtol=1e-5)
        same(got, want if scale == 1 else outer(hs.grad(quiet, statistics=STATISTICS))(W, 2 * X))


def test_a_print_prints(capfd):
    def loss(w, x):
        return quiet(w, x, lambda h: jax.debug.print("sum {}", h.shape[0]))

    hs.value_and_grad(loss, statistics=hs.norms())(W, X)
    jax.effects_barrier()
    assert capfd.readouterr().out == "sum 4\n"


def test_in_loops_and_branches_each_round_is_told(told):
    weights = jnp.stack([W[:, :3], -W[:, :3]])

    def loss(w, x, tell):
        def layer(h, one):
            tell(h)
            return jnp.tanh(h @ one), None

        return jnp.mean(jnp.sum(jax.lax.scan(jax.checkpoint(layer), x, w)[0] ** 2, -1))

    def tell(h):
        jax.debug.callback(told.hear, h.sum())

    f = hs.grad(lambda w, x: loss(w, x, tell), statistics=STATISTICS)
    got, heard = told.after(f, weights, X)
    plain = jax.jit(jax.grad(lambda w, x: loss(w, x, tell)))
    assert heard == told.after(plain, weights, X)[1]
    assert len(set(heard)) == 2
    want = hs.grad(lambda w, x: loss(w, x, lambda h: None), statistics=STATISTICS)(weights, X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, want)


def test_an_io_callback_of_which_nothing_is_used_is_called(told):
    def loss(w, x):
        def tell(h):
            total = jax.lax.stop_gradient(h.sum())
            io_callback(lambda v: told.hear(v) or v, jax.ShapeDtypeStruct((), h.dtype), total)

        return quiet(w, x, tell)

    got, heard = told.after(hs.grad(loss, statistics=STATISTICS), W, X)
    assert len(heard) == 1
    same(got, hs.grad(quiet, statistics=STATISTICS)(W, X))


def test_what_traced_values_are_closed_over(told):
    def step(scale, x):
        def loss(w, x):
            return quiet(w, x, lambda h: jax.debug.callback(told.hear, scale)) * scale

        return hs.grad(loss, statistics=STATISTICS)(W, x)

    got, heard = told.after(jax.jit(step), jnp.float32(3), X)
    assert heard == [3]
    want = hs.grad(lambda w, x: quiet(w, x) * 3, statistics=STATISTICS)(W, X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, want)


def test_flags_of_padding_are_beside(told):
    real = jnp.array([1, 1, 1, 0])

    def of_real(w, x, is_real):
        jax.debug.callback(told.hear, is_real.sum())
        own = jnp.sum(jnp.tanh(x @ w) ** 2, -1)
        return jnp.sum(own * is_real) / jnp.sum(is_real)

    f = hs.grad(of_real, batch_argnums=(1, 2), statistics=hs.second_moment(), is_real=2)
    (gradient, squares), heard = told.after(f, W, X, real)
    assert heard == [3]
    want = hs.grad(quiet, statistics=hs.second_moment())(W, X[:3])
    np.testing.assert_allclose(gradient, want[0], rtol=1e-6)
    np.testing.assert_allclose(squares, want[1], rtol=1e-6)


def test_ops_whose_parameters_have_names_are_kept(told):
    """Gathers, scatters and solves."""

    def loss(w, x, tell=lambda n: None):
        rows = (x[:, 0] > 0).astype(int)
        tell(rows.sum())
        solved = jnp.linalg.solve(jnp.eye(3) + 0.1 * w[:, :3], x.T).T
        return jnp.mean(jnp.sum((w[rows, :3] * solved.at[:, 0].add(1)) ** 2, -1))

    f = hs.grad(
        lambda w, x: loss(w, x, lambda n: jax.debug.callback(told.hear, n)), statistics=STATISTICS
    )
    got, heard = told.after(f, W, X)
    assert heard == [float((X[:, 0] > 0).sum())]
    want = hs.grad(loss, statistics=STATISTICS)(W, X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, want)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_keys_are_keys_to_the_function_too(told, impl):
    key = jax.random.key(3, impl=impl)

    def loss(w, x, key, scale):
        assert jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        assert jax.typeof(scale).weak_type
        jax.debug.callback(told.hear, x.sum())
        return quiet(w + scale * jax.random.normal(key, w.shape), x)

    (gradient, _), heard = told.after(hs.grad(loss, statistics=hs.norms()), W, X, key, 0.5)
    assert len(heard) == 1
    np.testing.assert_allclose(gradient, jax.grad(loss)(W, X, key, 0.5), rtol=1e-5)


def test_what_rests_on_an_unheard_call_alone_is_left_out(told):
    def loss(w, x):
        total = jax.lax.stop_gradient(x.sum())
        heard = io_callback(lambda v: told.hear(v) or v, jax.ShapeDtypeStruct((), x.dtype), total)
        _ = jnp.tanh(heard) * 2
        return quiet(w, x)

    got, heard = told.after(hs.grad(loss, statistics=STATISTICS), W, X)
    assert len(heard) == 1
    same(got, hs.grad(quiet, statistics=STATISTICS)(W, X))


def test_a_train_step_prints(told):
    def loss(w, x):
        return quiet(w, x, lambda h: jax.debug.callback(told.hear, h.sum()))

    step = hs.train_step(loss, optax.sgd(0.1), statistics={"norms": hs.norms()})
    state = optax.sgd(0.1).init(W)
    (_, _, metrics), heard = told.after(step, jnp.copy(W), state, X)
    assert len(heard) == 1
    np.testing.assert_allclose(metrics["norms"], hs.grad(quiet, statistics=hs.norms())(W, X)[1])


@pytest.mark.parametrize("call", [jax.pure_callback, io_callback])
def test_a_result_that_is_used_is_refused(call):
    def loss(w, x):
        return quiet(w, x * call(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x))

    with pytest.raises(hs.Refusal, match=r"test_host_calls\.py:\d+: refused: .*calls its host"):
        hs.grad(loss, statistics=hs.norms())(W, X)


def test_a_statistic_that_tells_its_host_is_refused():
    def told(g):
        jax.debug.print("{}", g)
        return g**2

    with pytest.raises(ValueError, match="a statistic calls its host"):
        hs.grad(quiet, statistics=hs.mean_of(told))(W, X)


def raises(wrong):
    """As in Equinox, by whose name the callback is known."""
    raise ValueError("not finite")


raises.__module__, raises.__qualname__ = "equinox._errors", "_error.<locals>.raises"


def checked(x, wrong):
    """As `equinox.error_if` traces it: x, or a branch that raises."""

    def failed(x):
        return jax.pure_callback(raises, jax.ShapeDtypeStruct(x.shape, x.dtype), wrong)

    @jax.custom_jvp
    def branched(x):
        return jax.lax.cond(wrong, failed, lambda x: x, x)

    branched.defjvp(lambda primals, tangents: (branched(*primals), *tangents))
    return branched(x)


def test_what_only_may_raise_is_passed_on_and_raises_still():
    def loss(w, x):
        h = x @ w
        return jnp.mean(jnp.sum(jnp.tanh(checked(h, jnp.any(jnp.isnan(h)))) ** 2, -1))

    f = hs.grad(loss, statistics=STATISTICS)
    got, want = f(W, X), hs.grad(quiet, statistics=STATISTICS)(W, X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, want)
    with pytest.raises(Exception, match="not finite"):
        jax.block_until_ready(f(W, X.at[0, 0].set(jnp.nan)))


def test_it_raises_where_statistics_alone_are_used():
    def loss(w, x):
        h = x @ w
        return jnp.mean(jnp.sum(jnp.tanh(checked(h, jnp.any(jnp.isnan(h)))) ** 2, -1))

    def norms(w, x):
        return hs.grad(loss, statistics=hs.norms())(w, x)[1]

    np.testing.assert_allclose(
        jax.jit(norms)(W, X), hs.grad(quiet, statistics=hs.norms())(W, X)[1], rtol=1e-6
    )
    with pytest.raises(Exception, match="not finite"):
        jax.block_until_ready(jax.jit(norms)(W, X.at[0, 0].set(jnp.nan)))


def test_a_branch_that_calls_another_function_is_no_error():
    def loss(w, x):
        def called(h):
            kind = jax.ShapeDtypeStruct(h.shape, h.dtype)
            return jax.pure_callback(np.sin, kind, jax.lax.stop_gradient(h))

        return jnp.mean(jnp.tanh(jax.lax.cond(w[0, 0] > 9, called, lambda h: h, x @ w)))

    with pytest.raises(hs.Refusal, match="calls its host"):
        hs.grad(loss, statistics=hs.norms())(W, X)


def test_equinox_raises():
    equinox = pytest.importorskip("equinox")

    def loss(w, x):
        h = x @ w
        return quiet(w, equinox.error_if(x, jnp.any(jnp.isnan(h)), "not finite"))

    f = hs.grad(loss, statistics=STATISTICS)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6),
        f(W, X),
        hs.grad(quiet, statistics=STATISTICS)(W, X),
    )
    with pytest.raises(Exception, match="not finite"):
        jax.block_until_ready(f(W, X.at[0, 0].set(jnp.nan)))


def test_a_primitive_of_numpy_is_what_it_is_lowered_to():
    sine = Primitive("sine_of_numpy")
    sine.def_impl(lambda x: jnp.asarray(np.sin(np.asarray(x))))
    sine.def_abstract_eval(lambda x: x)
    mlir.register_lowering(sine, mlir.lower_fun(jnp.sin, multiple_results=False))
    ad.defjvp(sine, lambda slope, x: slope * jnp.cos(x))

    def loss(of, w, x):
        return jnp.mean(jnp.sum(of(x * w), axis=1))

    w, x = jnp.ones(3), jnp.arange(6.0).reshape(2, 3)
    found = hs.grad(partial(loss, sine.bind), statistics=hs.norms())(w, x)[1]
    expected = hs.grad(partial(loss, jnp.sin), statistics=hs.norms())(w, x)[1]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
