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
from tests.products import covering

B, LENGTH, WIDTH, WIDER = 4, 3, 4, 6
DTYPES = [jnp.bfloat16, jnp.float16]
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


def transposed_convolution(p, x):
    return lax.conv_transpose(x, p, (2, 2), "SAME", dimension_numbers=CHANNELS_LAST)


def scanned(p, x):
    return lax.scan(
        lambda total, layer: (total + x @ layer, None), jnp.zeros((*x.shape[:2], WIDER), x.dtype), p
    )[0]


def by_head(p, x):
    return jnp.einsum("blhd,hdk->bhlk", x.reshape(*x.shape[:2], 2, 2), p)


def looked_up(p, x):
    """A row for each position, picked by the sign of its first number."""
    return p[jnp.where(x[..., 0] > 0, 2, 0)]


def tied(p, x):
    return jnp.concatenate([looked_up(p, x), x @ p.T], -1)


# Functions of a parameter and the inputs, with the shapes of both; all of them are widenable.
WIDENABLE = {
    "dense": (lambda p, x: x @ p, (WIDTH, WIDER), (LENGTH, WIDTH)),
    "one position": (lambda p, x: x @ p, (WIDTH, WIDER), (WIDTH,)),
    "transposed": (lambda p, x: x @ p.T, (WIDER, WIDTH), (LENGTH, WIDTH)),
    "heads": (lambda p, x: jnp.einsum("bld,dhk->bhlk", x, p), (WIDTH, 2, 3), (LENGTH, WIDTH)),
    "a matrix for each head": (by_head, (2, 2, 3), (LENGTH, WIDTH)),
    "convolution": (convolved, (3, 3, 2, 4), (5, 5, 2)),
    "depthwise": (lambda p, x: convolved(p, x, feature_group_count=2), (3, 3, 1, 4), (5, 5, 2)),
    "twice": (lambda p, x: x @ p + x[:, ::-1] @ p, (WIDTH, WIDER), (LENGTH, WIDTH)),
    "looked up": (looked_up, (WIDER, WIDTH), (LENGTH, WIDTH)),
    "tied": (tied, (WIDER, WIDTH), (LENGTH, WIDTH)),
    "transposed convolution": (transposed_convolution, (3, 3, 2, 3), (3, 3, 2)),
}
# In these the slice sums or scales: each example's own gradient is rounded as the module rounds it.
NARROW = {
    "scaled": (lambda p, x: x @ (p * p.dtype.type(0.75)), (WIDTH, WIDER), (LENGTH, WIDTH)),
    "bias": (lambda p, x: x + p, (WIDTH,), (LENGTH, WIDTH)),
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


@pytest.mark.parametrize(
    ("casts", "strategy", "reuse"),
    covering([False, True], ["lift", "loop"], [True, False], together=2),
)
def test_neither_strategy_nor_reuse_matters(casts, strategy, reuse):
    case, dtype = WIDENABLE["dense"], jnp.bfloat16
    loss, p, batch = example_of(case, dtype, casts)
    f = hs.grad(
        loss, batch_argnums=(1, 2), statistics=STATISTICS, strategy=strategy, reuse_gradient=reuse
    )
    gradient, found = f(p, *batch)
    exact = exact_gradients(case, p, *batch)
    assert gradient.dtype == p.dtype
    if reuse:
        assert_rounded_once(gradient, exact.mean(0), dtype)
    else:
        np.testing.assert_array_equal(wide(gradient), wide(jax.jit(jax.grad(loss))(p, *batch)))
    assert_exact_statistics(found, exact, p)


def test_a_sum_loss():
    case = WIDENABLE["dense"]
    loss, p, batch = example_of(case, jnp.bfloat16)
    f = hs.grad(
        lambda p, x, c: loss(p, x, c) * x.shape[0],
        batch_argnums=(1, 2),
        statistics=STATISTICS,
        strategy="lift",
        loss_reduction="sum",
    )
    gradient, found = f(p, *batch)
    exact = exact_gradients(case, p, *batch)
    assert_rounded_once(gradient, exact.sum(0), jnp.bfloat16)
    assert_exact_statistics(found, exact, p)


def contractions(text):
    return text.count("stablehlo.dot_general")


def test_the_gradient_comes_from_the_same_contraction():
    loss, p, batch = example_of(WIDENABLE["dense"], jnp.bfloat16)

    def made(reuse):
        f = hs.grad(
            loss,
            batch_argnums=(1, 2),
            statistics=hs.second_moment(),
            strategy="lift",
            reuse_gradient=reuse,
        )
        return contractions(f.module(p, *batch).text())

    assert made(True) == made(False) - 1


@pytest.mark.parametrize(("name", "dtype"), list(zip(NARROW, DTYPES, strict=True)))
def test_other_tails_keep_the_gradient(name, dtype):
    """Examples' own gradients are rounded as the module does, so that the gradient is not taken
    from them.
    """
    case = NARROW[name]
    loss, p, batch = example_of(case, dtype)
    f = hs.grad(
        loss, batch_argnums=(1, 2), statistics=STATISTICS, strategy="lift", reuse_gradient=True
    )
    gradient, found = f(p, *batch)
    np.testing.assert_array_equal(wide(gradient), wide(jax.jit(jax.grad(loss))(p, *batch)))
    exact = exact_gradients(case, p, *batch)
    # At most two roundings of summands of size 10 or less, one of their sum.
    tolerance = 3 * float(jnp.finfo(dtype).eps) / 2
    np.testing.assert_allclose(wide(found["own"]), exact, rtol=tolerance, atol=10 * tolerance)


def test_layers_in_a_scan():
    """Statistics inside the loop; the sum that the loop carries is rounded, but no example's
    gradient rests on it.
    """
    case = (scanned, (3, WIDTH, WIDER), (LENGTH, WIDTH))
    loss, p, batch = example_of(case, jnp.bfloat16)
    asked = {"squares": hs.second_moment(), "norms": hs.norms()}
    exact = exact_gradients(case, p, *batch)
    for strategy in ("lift", "loop"):
        gradient, found = hs.grad(loss, batch_argnums=(1, 2), statistics=asked, strategy=strategy)(
            p, *batch
        )
        assert_rounded_once(gradient, exact.mean(0), jnp.bfloat16, strategy)
        np.testing.assert_allclose(
            found["squares"], (exact**2).mean(0), rtol=ACCUMULATED, atol=64 * ACCUMULATED
        )
        norms = np.linalg.norm(exact.reshape(B, -1), axis=1)
        np.testing.assert_allclose(found["norms"], norms, rtol=ACCUMULATED, err_msg=strategy)


def mlp(p, x, factors):
    """Not linear: activations and the gradients behind them are rounded, for all strategies
    alike.
    """
    h = jnp.tanh(x @ p["w"] + p["b"])
    return jnp.mean(
        jnp.sum((h @ p["v"]).astype(jnp.float32) ** 2 * factors.astype(jnp.float32), (1, 2))
    )


def test_deep_gradients():
    """Where XLA accumulates in float32, a reused gradient is the module's; some CPUs round after
    each position.
    """
    p = {"w": draw(0, WIDTH, WIDER), "b": draw(1, WIDER), "v": draw(2, WIDER, WIDTH)}
    p = jax.tree.map(lambda a: jnp.asarray(a, jnp.bfloat16), p)
    x, factors = (jnp.asarray(draw(seed, B, LENGTH, WIDTH), jnp.bfloat16) for seed in (3, 4))
    plain = jax.jit(jax.grad(mlp))(p, x, factors)
    rounding = float(jnp.finfo(jnp.bfloat16).eps) / 2
    for strategy in ("lift", "loop"):
        f = hs.grad(
            mlp, batch_argnums=(1, 2), statistics=hs.norms(), strategy=strategy, reuse_gradient=True
        )
        gradient = f(p, x, factors)[0]
        for name in p:
            scale = np.abs(wide(plain[name])).max()
            np.testing.assert_allclose(
                wide(gradient[name]), wide(plain[name]), rtol=0, atol=B * LENGTH * rounding * scale
            )


def test_float16_overflows_where_the_module_does():
    """A gradient beyond 65504 is infinite in float16; its square is a number of float32 all the
    same.
    """
    loss, p, (x, factors) = example_of(WIDENABLE["one position"], jnp.float16)
    x = x.at[:, 0].set(400).at[:, 1].set(1)
    factors = jnp.full_like(factors, 300)
    exact = exact_gradients(WIDENABLE["one position"], p, x, factors)
    plain = jax.jit(jax.grad(loss))(p, x, factors)
    assert np.isinf(wide(plain)[0]).all()
    assert np.isfinite(wide(plain)[1]).all()
    for strategy in ("lift", "loop"):
        f = hs.grad(
            loss,
            batch_argnums=(1, 2),
            statistics=STATISTICS,
            strategy=strategy,
            reuse_gradient=True,
        )
        gradient, found = f(p, x, factors)
        np.testing.assert_array_equal(np.isinf(wide(gradient)), np.isinf(wide(plain)))
        np.testing.assert_array_equal(np.isinf(wide(found["own"])), np.abs(exact) >= 65520)
        np.testing.assert_allclose(found["squares"], (exact**2).mean(0), rtol=ACCUMULATED, atol=1)


@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.float8_e5m2])
def test_eight_bits(dtype):
    """Matrices cast to 8 bits; small whole numbers are exact in them."""
    generator = np.random.default_rng(0)
    x, factors, p = generator.choice([-4.0, -2, 2, 4], (3, B, WIDTH, WIDTH)).astype(np.float32)

    def loss(p, x, factors):
        found = jnp.matmul(x.astype(dtype), p.astype(dtype), preferred_element_type=jnp.float32)
        return jnp.sum(found * factors) / x.shape[0]

    exact = np.einsum("bld,blf->bdf", x.astype(np.float64), factors.astype(np.float64))
    for strategy in ("lift", "loop"):
        f = hs.grad(
            loss,
            batch_argnums=(1, 2),
            statistics={"squares": hs.second_moment()},
            strategy=strategy,
        )
        np.testing.assert_allclose(
            f(p[0], x, factors)[1]["squares"], (exact**2).mean(0), rtol=ACCUMULATED
        )


def test_a_scaled_loss():
    """Loss scaling: what is divided behind the contraction in float32 is as exact as the
    contraction in float16.
    """
    loss, p, batch = example_of(WIDENABLE["dense"], jnp.float16)
    scale, tiny = 2.0**15, 2.0**-20

    def gradient(p, x, factors):
        scaled = jax.grad(lambda p: loss(p, x, factors) * tiny * scale)(p)
        return scaled.astype(jnp.float32) / scale

    f = hs.rewrite(gradient, batch_argnums=(1, 2), statistics=STATISTICS, strategy="lift")
    found = f(p, *batch)[1]
    exact = tiny * exact_gradients(WIDENABLE["dense"], p, *batch)
    eps = float(jnp.finfo(jnp.float16).eps)
    np.testing.assert_allclose(found["own"], exact, rtol=eps, atol=eps * tiny)
    np.testing.assert_allclose(
        found["squares"], (exact**2).mean(0), rtol=2 * eps, atol=2 * eps * tiny**2
    )
