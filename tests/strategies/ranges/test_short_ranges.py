"""Gradients through float16, whose loss is scaled so that the batch's just fits: B times what one
example adds to it does not. The oracle scales by less, powers of two, which changes no digit.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs
from tests.products import covering

B, T, D, H = 4, 5, 3, 6
HALF = jnp.float16
MAX_NORM = 1.0
STATISTICS = {
    "squares": hs.second_moment(),
    "norms": hs.norms(),
    "clipped": hs.clipped_mean(MAX_NORM, nan_safe=True),
    "any": hs.mean_of(jnp.tanh),
    "inner": hs.inner_products(),
}


def drawn(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


PARAMS = {
    "table": drawn(7, D),
    "in": drawn(D, H) / 8,
    "bias": drawn(H) / 8,
    "layers": drawn(2, H, H) / 4,
    # So large that scales need not be beyond float16 themselves.
    "out": 8 * drawn(H, 2),
}
# One example adds most.
MOST = np.array([8, 1, 1, 1], np.float32)[:, None]
X = MOST * drawn(B, D)
WORDS = np.random.default_rng(0).integers(0, 6, (B, T))
WORDS[0] = 6
PARAMS["table"][6] *= 8


def halved(params):
    return {name: value.astype(HALF) for name, value in params.items()}


def dense(p, x):
    return jnp.tanh(x.astype(HALF) @ p["in"] + p["bias"]) @ p["out"]


def looked_up(p, words):
    return dense(p, p["table"][words]).sum(1)


def scanned(p, x):
    hidden = x.astype(HALF) @ p["in"]
    hidden, _ = lax.scan(lambda h, w: (jnp.tanh(h @ w), None), hidden, p["layers"])
    return hidden @ p["out"]


def windows(p, words):
    rows = p["table"][words]
    kernel = p["in"][:, :4].reshape(D, 2, 2).transpose(1, 0, 2)
    dims = ("NWC", "WIO", "NWC")
    return jnp.tanh(lax.conv_general_dilated(rows, kernel, (1,), "SAME", dimension_numbers=dims))


def of(model, penalty=lambda p: 0.0):
    """The gradient of a mean in float16, unscaled in float32."""

    def gradient(params, x, scale):
        def loss(p):
            mean = jnp.mean(jnp.sum(model(halved(p), x).reshape(len(x), -1), -1))
            return (mean.astype(np.float32) + penalty(p)) * scale

        return jax.tree.map(lambda g: g / scale, jax.grad(loss)(params))

    return gradient


def all_in_half(params, x, scale):
    loss = jax.grad(lambda p: jnp.mean(jnp.sum(dense(p, x), -1)) * HALF(scale))
    return jax.tree.map(lambda g: g / HALF(scale), loss(halved(params)))


def of_each(params, x, scale):
    one = jax.grad(lambda p, row: jnp.sum(dense(p, row[None])) * HALF(scale))
    gradients = jax.vmap(one, (None, 0))(halved(params), x)
    return jax.tree.map(lambda g: jnp.mean(g, 0).astype(np.float32) / scale, gradients)


def of_two_parts(params, x, scale):
    def add(total, part):
        one = jax.grad(lambda p: jnp.mean(jnp.sum(dense(p, part), -1)) * HALF(scale))
        return jax.tree.map(jnp.add, total, one(halved(params))), None

    zeros = jax.tree.map(lambda v: jnp.zeros(v.shape, HALF), params)
    total, _ = lax.scan(add, zeros, x.reshape(2, -1, D))
    return jax.tree.map(lambda g: g.astype(np.float32) / (2 * scale), total)


def decay(p):
    return 0.01 * (jnp.sum(p["in"] ** 2) + jnp.sum(p["out"].astype(HALF) ** 2))


GRADIENTS = {
    "dense": (of(dense), X),
    "looked up": (of(looked_up), WORDS),
    "scanned": (of(scanned), X),
    "windows": (of(windows), WORDS),
    "decayed": (of(dense, decay), X),
    "all in half": (all_in_half, X),
    "of each": (of_each, X),
    "of two parts": (of_two_parts, X),
}


def largest_scale(gradient, x):
    """The last power of two by which all of the batch's gradient is finite."""
    scales = (2.0**k for k in range(15, 0, -1))
    fits = (s for s in scales if all(np.isfinite(g).all() for g in leaves(gradient, x, s)))
    return next(fits)


def leaves(gradient, x, scale):
    return [np.asarray(g, np.float64) for g in jax.tree.leaves(gradient(PARAMS, x, scale))]


def expected(gradient, x, scale):
    """Of batches of one example alone, B times."""
    alone = [leaves(gradient, np.repeat(x[[b]], B, 0), scale / 64) for b in range(B)]
    rows = np.stack([np.concatenate([g.ravel() for g in one]) for one in alone])
    norms = np.linalg.norm(rows, axis=1)
    return {
        "squares": np.mean(rows**2, 0),
        "norms": norms,
        "clipped": np.mean(rows * np.minimum(1, MAX_NORM / norms)[:, None], 0),
        "any": np.mean(np.tanh(rows), 0),
        "inner": rows @ rows.mean(0),
    }


@pytest.mark.first(1)
@pytest.mark.parametrize(("name", "strategy"), covering(list(GRADIENTS), ["auto", "lift", "loop"]))
def test_what_an_example_adds_may_be_beyond_float16_times_b(name, strategy):
    gradient, x = GRADIENTS[name]
    scale = largest_scale(gradient, x)
    # It takes the batch as a whole, where what a loop of parts adds up in float16 is times B.
    asked = {k: s for k, s in STATISTICS.items() if (name, k) != ("of two parts", "inner")}
    how = {"batch_argnums": 1, "statistics": asked, "strategy": strategy}
    _, found = hs.rewrite(lambda p, x: gradient(p, x, scale), **how)(PARAMS, x)
    known = expected(gradient, x, scale)
    for statistic, tree in found.items():
        own = np.concatenate([np.ravel(leaf).astype(np.float64) for leaf in jax.tree.leaves(tree)])
        atol = 0.01 * np.abs(known[statistic]).max()
        np.testing.assert_allclose(own, known[statistic], rtol=0.02, atol=atol)
