"""Gradients with common operands share a loop over the examples, and their numbers stay theirs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.requests import options as rooflines
from hlo_surgery.requests.options import roofline

B, WIDTH, WIDER = 6, 4, 5
TOLERANCE = 64 * float(jnp.finfo(jnp.float32).eps)
STATISTICS = {
    "cosines": hs.mean_of(jnp.cos),
    "norms": hs.norms("parameter"),
    "own": hs.per_example(),
}


def layer(p, x):
    return jnp.tanh(x @ p["weight"] + p["bias"])


def loss(params, x):
    hidden = layer(params["first"], x)
    return jnp.mean(jnp.sum(layer(params["second"], hidden) ** 2, -1))


def arguments():
    rng = np.random.default_rng(0)

    def drawn(*shape):
        return rng.normal(size=shape).astype(np.float32)

    first = {"weight": drawn(WIDTH, WIDER), "bias": drawn(WIDER)}
    second = {"weight": drawn(WIDER, WIDTH), "bias": drawn(WIDTH)}
    return {"first": first, "second": second}, drawn(B, WIDTH)


def loops(f, *given):
    return f.module(*given).text().count("stablehlo.while")


@pytest.mark.parametrize("reuse", [True, False])
def test_a_layer_is_looped_over_once(reuse):
    """Its weight and its bias share the cotangent; the other layer's are other values."""
    f = hs.grad(loss, statistics=STATISTICS, strategy="loop", reuse_gradient=reuse)
    params, x = arguments()
    assert loops(f, params, x) == 2
    own = jax.vmap(lambda one: jax.grad(loss)(params, one[None]))(x)
    gradient, found = f(params, x)
    expected = {
        "cosines": jax.tree.map(lambda g: jnp.cos(g).mean(0), own),
        "norms": jax.tree.map(lambda g: jnp.linalg.norm(g.reshape(B, -1), axis=1), own),
        "own": own,
    }
    close = jax.tree.map(
        lambda a, b: np.allclose(a, b, TOLERANCE, TOLERANCE),
        (gradient, found),
        (mean(own), expected),
    )
    assert all(jax.tree.leaves(close)), close


def mean(own):
    return jax.tree.map(lambda g: g.mean(0), own)


def test_gradients_without_common_operands_keep_their_own_loops():
    f = hs.grad(
        lambda p, x, y: jnp.mean(x @ p[0]) + jnp.mean(y @ p[1]), **two_arguments(), strategy="loop"
    )
    given = (
        (np.ones(WIDTH, np.float32), np.ones(WIDER, np.float32)),
        np.ones((B, WIDTH)),
        np.ones((B, WIDER)),
    )
    assert loops(f, *given) == 2


def two_arguments():
    return {"batch_argnums": (1, 2), "statistics": STATISTICS["cosines"]}


def test_a_shared_loop_takes_as_many_at_once_as_its_largest_gradient_may(monkeypatch):
    device = dataclasses.replace(roofline("cpu"), widest_chunk=B, batched=1)
    monkeypatch.setitem(rooflines.ROOFLINES, "cpu", device)
    weight_bytes = 4 * WIDTH * WIDER
    f = hs.grad(
        loss, statistics=STATISTICS["cosines"], strategy="loop", memory_budget=2 * weight_bytes
    )
    params, x = arguments()
    assert {output.chunk for output in f.explain(params, x).outputs} == {2}
    assert loops(f, params, x) == 2
