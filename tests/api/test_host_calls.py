"""Calls to the host: kept where nothing is heard of them, and refused where something is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import hlo_surgery as hs
from tests.products import covering

W = jnp.linspace(-1.0, 1.0, 15).reshape(3, 5)
X = jnp.cos(jnp.arange(12.0)).reshape(4, 3)
STATISTICS = {"norms": hs.norms(), "squares": hs.second_moment(), "clipped": hs.clipped_mean(0.1)}


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
