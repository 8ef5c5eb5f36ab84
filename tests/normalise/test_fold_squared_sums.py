"""The peephole for vmapped modules: where it fires, where not, and results but for rounding."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jax import lax

from hlo_surgery.modules import optimize


def loss(params, x, y):
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = params[-1]
    return jnp.mean(jnp.abs(x @ w + b - y) ** 2)


def example(dtype=np.float32, sizes=(6, 5, 4), batch=7, seed=0):
    draw = np.random.default_rng(seed)

    def normal(*shape):
        imaginary = 1j * draw.normal(size=shape) if np.dtype(dtype).kind == "c" else 0
        return jnp.asarray(np.asarray(draw.normal(size=shape) + imaginary).astype(dtype))

    params = [(normal(n, m) / n, normal(m)) for n, m in itertools.pairwise(sizes)]
    return params, normal(batch, sizes[0]), normal(batch, sizes[-1])


def gradients(*args):
    return jax.vmap(jax.grad(loss), (None, 0, 0))(*args)


def over_examples(statistic):
    return lambda *args: jax.tree.map(statistic, gradients(*args))


STATISTICS = {
    "second moment": lambda g: jnp.mean(g**2, 0),
    "absolute value": lambda g: jnp.mean(jnp.abs(g), 0),
    "sign": lambda g: jnp.mean(jnp.sign(g), 0),
    "cube": lambda g: jnp.mean(g**3, 0),
    "scaled": lambda g: jnp.sqrt(jnp.mean((1.5 * g) ** 2, 0)),
    "norms": lambda g: jnp.sqrt(jnp.sum(g**2, tuple(range(1, g.ndim)))),
}


def assert_close(found, expected, eps):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        scale = float(jnp.max(jnp.abs(other), initial=0))
        np.testing.assert_allclose(one, other, rtol=50 * eps, atol=50 * eps * scale)


def products_left(optimized, *args):
    """Lines of the module that hold an outer product of a weight's gradient."""
    text = str(optimized.module(*args).code)
    shapes = [
        f"7x{'x'.join(map(str, shape))}x"
        for shape in ((6, 5), (5, 6), (5, 4), (4, 5), (30,), (20,))
    ]
    return [line for line in text.splitlines() if any(shape in line for shape in shapes)]


@pytest.mark.parametrize("statistic", STATISTICS.values(), ids=STATISTICS.keys())
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_statistics_of_vmapped_gradients(statistic, dtype):
    with jax.enable_x64(dtype == np.float64):
        args = example(dtype)
        plain = over_examples(statistic)
        optimized = optimize(plain)
        assert_close(optimized(*args), jax.jit(plain)(*args), np.finfo(dtype).eps)
        assert products_left(optimized, *args) == []


FUNCTIONS = {
    "plain": lambda x: x,
    "square": lambda x: x * x,
    "abs": jnp.abs,
    "sign": jnp.sign,
    "cube": lambda x: x**3,
    "signed square": lambda x: x * jnp.abs(x),
    "square of sign": lambda x: jnp.sign(x) ** 2,
}


@st.composite
def sums(draw):
    """Sizes of b, d, f; order; what is summed; a function; a scale's dimensions; merged."""
    sizes = draw(st.tuples(*[st.integers(1, 4)] * 3))
    order = draw(st.permutations(range(3)))
    summed = draw(st.sets(st.integers(0, 2), min_size=1))
    scaled = draw(st.sets(st.integers(0, 2), max_size=2))
    return (
        sizes,
        order,
        sorted(summed),
        draw(st.sampled_from(sorted(FUNCTIONS))),
        sorted(scaled),
        draw(st.booleans()),
    )


@given(sums(), st.integers(0, 99))
def test_any_sum_of_any_outer_product(drawn, seed):
    sizes, order, summed, name, scaled, divides = drawn
    assume(any(sizes[order[d]] > 1 for d in summed))
    random = np.random.default_rng(seed)
    h, e = (jnp.asarray(random.normal(size=(sizes[0], n)), jnp.float32) for n in sizes[1:])
    scale = jnp.asarray(random.uniform(0.5, 2, size=[sizes[order[d]] for d in scaled]), jnp.float32)

    def total(h, e, scale):
        product = lax.dot_general(h, e, (((), ()), ((0,), (0,)))).transpose(order)
        scales = lax.broadcast_in_dim(scale, product.shape, scaled)
        return jnp.sum(FUNCTIONS[name](product / scales if divides else product * scales), summed)

    assert_close(
        optimize(total)(h, e, scale), jax.jit(total)(h, e, scale), np.finfo(np.float32).eps
    )


def test_what_is_no_function_is_not_optimized():
    with pytest.raises(TypeError, match="optimize takes a function, not 3"):
        optimize(3)
