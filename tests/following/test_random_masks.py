"""Random masks over random packed rows, most of which let nothing through between examples: no
example that is not said to be crossed has another gradient than by itself.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs

E, ROWS, D, LAYERS, TRIES = 3, 3, 3, 2, 40
N = E * ROWS + 1


def softmax(s, bias):
    return jax.nn.softmax(s + bias)


def gated(s, bias):
    weights = jnp.exp(bias) * s
    return weights / (1 + jnp.abs(weights).sum(1, keepdims=True))


def losses(weights, p, b):
    def layer(x, w):
        scores = (x @ w["q"]) @ (x @ w["k"]).T
        return x + jnp.tanh(weights(scores, b["bias"]) @ (x @ w["v"])), None

    x, _ = jax.lax.scan(layer, b["x"], p["layers"])
    count = len(b["y"])
    ids = jnp.where(b["ids"] < 0, count, b["ids"])
    return (jax.ops.segment_sum(x, ids, count + 1)[:-1] @ p["out"] - b["y"]) ** 2


def segments(p, b):
    return {"x": b["ids"], "ids": None, "bias": None, "y": 0}


def problem(r):
    """Ids in any order, and a bias that is now and then another somewhere."""
    ids = r.permutation(np.r_[np.repeat(np.arange(E), ROWS), -1]).astype(np.int32)
    small = -40.0 if r.random() < 0.2 else -np.inf
    bias = np.where(ids[:, None] == ids[None, :], 0, r.choice([small, -1e30]))
    for _ in range(r.choice([0, 0, 1, 2])):
        bias[tuple(r.integers(N, size=2))] = r.choice([0, -np.inf, -5, 3])
    x = r.normal(size=(N, D))
    if r.random() < 0.1:
        x[r.integers(N), 0] = r.choice([np.nan, np.inf, 1e300])
    p = {"layers": {name: r.normal(size=(LAYERS, D, D)) for name in "qkv"}}
    p["out"] = r.normal(size=D)
    return p, {"x": x, "ids": ids, "bias": bias, "y": r.normal(size=E)}


def example(b, k):
    own = b["ids"] == k
    rows = {"x": b["x"][own], "bias": b["bias"][np.ix_(own, own)]}
    return rows | {"ids": np.zeros(ROWS, np.int32), "y": b["y"][[k]]}


def assert_nan_or(own, wanted):
    """Padding that others see is told by the layers alone whose gradients it reaches."""
    told = jax.tree.map(np.isnan, own)
    assert any(t.any() for t in jax.tree.leaves(told))
    assert_alike(jax.tree.map(np.where, told, wanted, own), wanted)


def assert_alike(own, wanted):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-7, 1e-9), own, wanted)


@pytest.mark.parametrize("weights", [softmax, gated])
def test_random_masks(weights):
    asked = {"each": hs.per_example(), "crossed": hs.crossed()}
    met = list[bool]()
    with jax.enable_x64(True):
        f = hs.grad(lambda p, b: losses(weights, p, b).mean(), segments=segments, statistics=asked)
        rewritten = jax.jit(f)
        alone = jax.jit(jax.grad(lambda p, b: losses(weights, p, b).sum()))
        for seed in range(TRIES):
            p, b = problem(np.random.default_rng(seed))
            found = jax.device_get(rewritten(p, b)[1])
            for k, crossed in enumerate(found["crossed"]):
                own = jax.tree.map(lambda g, k=k: g[k], found["each"])
                wanted = jax.device_get(alone(p, example(b, k)))
                (assert_nan_or if crossed else assert_alike)(own, wanted)
                met.append(bool(crossed))
    assert 0.2 < np.mean(met) < 0.8
