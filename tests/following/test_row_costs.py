"""What statistics by rows are predicted to take, beside the FLOPs that XLA counts."""

import jax
import jax.numpy as jnp
import numpy as np

import hlo_surgery as hs

ROWS, WIDTH = 128, 64
SITE = 2 * ROWS * WIDTH * WIDTH


def problem(examples):
    r = np.random.default_rng(0)
    ids = np.sort(np.arange(ROWS) % examples).astype(np.int32)
    b = {"x": r.normal(size=(ROWS, WIDTH)), "ids": ids, "y": np.zeros(examples)}
    return jax.tree.map(jnp.asarray, ({"w": r.normal(size=(WIDTH, WIDTH))}, b))


def loss(p, b):
    h = jnp.tanh(b["x"] @ p["w"])
    return jnp.mean((jax.ops.segment_sum(h, b["ids"], len(b["y"])).sum(1) - b["y"]) ** 2)


def whose(p, b):
    return {"x": b["ids"], "ids": None, "y": 0}


def norms():
    return hs.grad(loss, segments=whose, statistics=hs.norms(), strategy="lift")


def test_each_example_takes_all_rows_and_ones_once_more():
    args = problem(16)
    flops, plain = (
        jax.jit(f).lower(*args).compile().cost_analysis()["flops"]
        for f in (norms(), jax.grad(loss))
    )
    assert 0.9 < (flops - plain) / (17 * SITE) < 1.15


def test_the_prediction_grows_with_the_examples():
    seconds = []
    for examples in (16, 32):
        (output,) = hs.explain(norms(), *problem(examples)).outputs
        assert [site.flops for site in output.sites] == [SITE]
        assert output.tail == ("stablehlo.transpose",)
        seconds.append(output.predicted["lift"].seconds)
    assert 1.5 < seconds[1] / seconds[0] < 2.5
