"""Dtypes in loops: scanned gradients in every float and complex dtype, against single examples.

The references are the gradients of batches of one in 64 bits, of the same parameters and examples.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B, STEPS, WIDTH = 5, 4, 3
STATISTICS = {"all": hs.per_example(), "squares": hs.second_moment(), "abs": hs.mean_abs()}


def draw(seed, shape, dtype):
    rng = np.random.default_rng(seed)
    parts = rng.normal(size=(2, *shape)) / np.sqrt(shape[-1])
    return jnp.asarray(
        parts[0] + 1j * parts[1] if jnp.issubdtype(dtype, jnp.complexfloating) else parts[0], dtype
    )


def wide(a):
    return a.astype(jnp.promote_types(a.dtype, jnp.float32))


def mean_square(h):
    return jnp.mean(jnp.sum(jnp.abs(wide(h)) ** 2, tuple(range(1, h.ndim))))


def squashed(h):
    """Holomorphic nowhere, and bounded on the complex plane."""
    return h / jnp.sqrt(1 + jnp.abs(h) ** 2)


def cell(h, p):
    """A dense layer that accumulates in 32 bits at least, and answers in h's dtype."""
    h = (jnp.matmul(h, p["w"], preferred_element_type=wide(h).dtype) + p["b"]).astype(h.dtype)
    return squashed(h) if jnp.iscomplexobj(h) else jnp.tanh(h)


def layers(p, x):
    return mean_square(lax.scan(lambda h, q: (cell(h, q), None), x[:, 0], p)[0])


def recurrent(p, x):
    def step(h, xt):
        h = cell(h, p) + xt
        return h, h

    return mean_square(lax.scan(step, jnp.zeros_like(x[:, 0]), x.swapaxes(0, 1))[1].swapaxes(0, 1))


def drawn(loss, dtype):
    """Parameters, stacked for a scan over layers; and sequences [B, T, D]."""
    stack = (STEPS,) if loss is layers else ()
    params = {"w": draw(0, (*stack, WIDTH, WIDTH), dtype), "b": draw(1, (*stack, WIDTH), dtype)}
    return params, draw(2, (B, STEPS, WIDTH), dtype)


def in_64_bits(tree):
    return jax.tree.map(lambda a: a.astype(jnp.promote_types(a.dtype, jnp.float64)), tree)


def references(gradient, p, x):
    with jax.enable_x64(True):
        p, x = in_64_bits((p, x))
        return jax.tree.map(np.asarray, jax.jit(jax.vmap(lambda one: gradient(p, one[None])))(x))


def rounding(dtype):
    """A step rounds the sum, the bias and the activation (squashed: 4 ops), forward and backward,
    by eps / 2 each.
    """
    ops = 6 if jnp.issubdtype(dtype, jnp.complexfloating) else 3
    return 2 * ops * STEPS * float(jnp.finfo(dtype).eps) / 2


def assert_exact(found, examples, tolerance):
    """The tolerance is relative to the gradients' scale; a square doubles a relative error."""
    gradient, statistics = jax.tree.map(np.asarray, found)
    for name, g in examples.items():
        scale = float(np.abs(g).max())
        magnitudes = np.abs(g)
        close = {"rtol": 0, "atol": tolerance * scale, "err_msg": name}
        np.testing.assert_allclose(gradient[name], np.mean(g, 0), **close)
        np.testing.assert_allclose(statistics["all"][name], g, **close)
        np.testing.assert_allclose(statistics["abs"][name], magnitudes.mean(0), **close)
        close["atol"] = 2 * tolerance * scale**2
        np.testing.assert_allclose(statistics["squares"][name], (magnitudes**2).mean(0), **close)


@pytest.mark.parametrize("loss", [layers, recurrent])
@pytest.mark.parametrize(
    "dtype", [jnp.bfloat16, jnp.float16, jnp.float64, jnp.complex64, jnp.complex128]
)
def test_every_dtype_is_exact_in_loops(loss, dtype):
    with jax.enable_x64(True):
        p, x = drawn(loss, dtype)
        found = hs.grad(loss, statistics=STATISTICS)(p, x)
        accumulated = wide(jnp.abs(x)).dtype
    assert_exact(found, references(jax.grad(loss), p, x), rounding(dtype))
    gradient, statistics = found
    assert gradient["w"].dtype == statistics["all"]["w"].dtype == dtype
    assert statistics["squares"]["w"].dtype == statistics["abs"]["w"].dtype == accumulated


SUMMING = [
    (layers, "square"),
    *((loss, strategy) for loss in (layers, recurrent) for strategy in ("lift", "loop")),
]


@pytest.mark.parametrize(("loss", "strategy"), SUMMING)
def test_many_equal_examples_are_not_summed_in_low_precision(loss, strategy):
    """1 added to a bfloat16 again and again stops at 256."""
    p, x = drawn(loss, jnp.bfloat16)
    f = hs.grad(loss, statistics=hs.second_moment(), strategy=strategy)
    _, squares = f(p, jnp.repeat(x[:1], 1500, 0))
    for name, g in references(jax.grad(loss), p, x[:1]).items():
        scale = float(np.abs(g).max())
        close = {"rtol": 0, "atol": 2 * rounding(jnp.bfloat16) * scale**2}
        np.testing.assert_allclose(squares[name], g[0] ** 2, **close)
