"""Wide slices: per-example gradients of bfloat16 and float16 programs, by float32 contractions.

The losses are linear in each parameter, `mean_b sum(f(p, x_b) * c_b)` in float32, and a batch has 4
examples. So all that a slice contracts is exact, and an example's own gradient is one contraction
of what the program holds: it is had in float64 as the reference, and the wide slice may differ by
the roundings of float32 accumulation alone.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

B, LENGTH, WIDTH, WIDER = 4, 3, 4, 6
# Of a sum of at most 64 terms of size about 1, in float32.
ACCUMULATED = 64 * float(jnp.finfo(jnp.float32).eps)
STATISTICS = {
    "own": hs.per_example(),
    "squares": hs.second_moment(),
    "norms": hs.norms(),
    "sines": hs.mean_of(jnp.sin),
}
CHANNELS_LAST = ("NHWC", "HWIO", "NHWC")


def draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def convolved(p, x, **how):
    return lax.conv_general_dilated(x, p, (1, 1), "SAME", dimension_numbers=CHANNELS_LAST, **how)


def looked_up(p, x):
    """A row for each position, picked by the sign of its first number."""
    return p[jnp.where(x[..., 0] > 0, 2, 0)]


def tied(p, x):
    return jnp.concatenate([looked_up(p, x), x @ p.T], -1)


# Functions of a parameter and the inputs, with the shapes of both; all of them are widenable.
WIDENABLE = {
    "dense": (lambda p, x: x @ p, (WIDTH, WIDER), (LENGTH, WIDTH)),
    "heads": (lambda p, x: jnp.einsum("bld,dhk->bhlk", x, p), (WIDTH, 2, 3), (LENGTH, WIDTH)),
    "convolution": (convolved, (3, 3, 2, 4), (5, 5, 2)),
    "depthwise": (lambda p, x: convolved(p, x, feature_group_count=2), (3, 3, 1, 4), (5, 5, 2)),
    "looked up": (looked_up, (WIDER, WIDTH), (LENGTH, WIDTH)),
    "tied": (tied, (WIDER, WIDTH), (LENGTH, WIDTH)),
}


def linear_loss(function, dtype):
    def loss(p, x, factors):
        found = function(p.astype(dtype), x.astype(dtype))
        accumulator = jnp.promote_types(dtype, jnp.float32)
        return jnp.sum(found.astype(accumulator) * factors.astype(accumulator)) / x.shape[0]

    return loss


def example_of(case, dtype, casts=False):
    """The loss, the parameter, and a batch whose numbers are exact in the low precision."""
    function, parameter, inputs = case
    p, x = draw(0, *parameter), jnp.asarray(draw(1, B, *inputs), dtype)
    shape = jax.eval_shape(function, jnp.asarray(p, dtype), x).shape
    return (
        linear_loss(function, dtype),
        p if casts else jnp.asarray(p, dtype),
        (x, jnp.asarray(draw(2, *shape), dtype)),
    )


def exact_gradients(case, p, x, factors):
    """Each example's own gradient in float64."""
    with jax.enable_x64(True):
        p, x, factors = (np.asarray(a).astype(np.float64) for a in (p, x, factors))
        loss = linear_loss(case[0], np.float64)
        return np.asarray(
            jax.jit(jax.vmap(lambda x, c: jax.grad(loss)(p, x[None], c[None])))(x, factors)
        )


def wide(a):
    return np.asarray(a).astype(np.float64)


def assert_rounded_once(found, exact, dtype, message=""):
    """Within half a unit in the last place, and the roundings of an accumulation in float32."""
    half = float(jnp.finfo(dtype).eps) / 2
    np.testing.assert_allclose(
        wide(found),
        exact,
        rtol=half + ACCUMULATED,
        atol=ACCUMULATED + float(jnp.finfo(dtype).tiny),
        err_msg=message,
    )


def assert_exact_statistics(found, exact, p):
    norms = np.linalg.norm(exact.reshape(B, -1), axis=1)
    expected = {"squares": (exact**2).mean(0), "norms": norms, "sines": np.sin(exact).mean(0)}
    for name, value in expected.items():
        assert found[name].dtype == jnp.float32
        scale = max(1, np.abs(value).max())
        np.testing.assert_allclose(
            found[name], value, rtol=ACCUMULATED, atol=ACCUMULATED * scale, err_msg=name
        )
    assert found["own"].dtype == p.dtype
    assert_rounded_once(found["own"], exact, p.dtype, "own")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, jnp.bfloat16) for name in WIDENABLE),
        ("dense", jnp.float16),
        ("convolution", jnp.float16),
    ],
)
def test_statistics_are_those_of_float32_accumulation(name, dtype):
    case = WIDENABLE[name]
    loss, p, batch = example_of(case, dtype)
    gradient, found = hs.grad(loss, batch_argnums=(1, 2), statistics=STATISTICS)(p, *batch)
    exact = exact_gradients(case, p, *batch)
    assert gradient.dtype == p.dtype
    assert_rounded_once(gradient, exact.mean(0), dtype)
    assert_exact_statistics(found, exact, p)


def contractions(text):
    return text.count("stablehlo.dot_general")
