"""Data parallel on the eight chips of a v5e:2x4, compiled ahead: what a statistic has to send."""

import importlib.util
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hlo_surgery as hs
from hlo_surgery.targets.target import compile_for, find_target, without_tpu
from tests.targets.collectives import collectives, excess

pytestmark = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")
without_tpu()

BATCH, LENGTH, WIDTH, HEADS, LAYERS, VOCABULARY = 64, 128, 128, 4, 2, 1000


def struct(*shape, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype)


def mlp(p, x, y):
    return jnp.mean((jnp.tanh(jnp.tanh(x @ p["w"] + p["b"]) @ p["v"]) @ p["u"] - y) ** 2)


def attention(h, p):
    q, k, v = jnp.moveaxis((h @ p["qkv"]).reshape(*h.shape[:2], 3, HEADS, -1), 2, 0)
    scores = jnp.einsum("blhd,bmhd->bhlm", q, k) / q.shape[-1] ** 0.5
    scores = jnp.where(jnp.tri(LENGTH, dtype=bool), scores, -1e9)
    return jnp.einsum("bhlm,bmhd->blhd", jax.nn.softmax(scores), v).reshape(h.shape) @ p["out"]


def layer(h, p):
    h = h + attention(jax.nn.standardize(h) * p["scale"], p)
    return h + jax.nn.gelu(h @ p["up"]) @ p["down"], None


def transformer(p, ids, labels):
    h, _ = lax.scan(layer, p["embedding"][ids], p["layers"])
    logits = jax.nn.log_softmax(h @ p["embedding"].T)
    return -jnp.mean(jnp.take_along_axis(logits, labels[..., None], -1))


DENSE = {"w": struct(512, 512), "b": struct(512), "v": struct(512, 512), "u": struct(512, 256)}
STACK = {
    "qkv": struct(LAYERS, WIDTH, 3 * WIDTH),
    "out": struct(LAYERS, WIDTH, WIDTH),
    "scale": struct(LAYERS, WIDTH),
    "up": struct(LAYERS, WIDTH, 4 * WIDTH),
    "down": struct(LAYERS, 4 * WIDTH, WIDTH),
}
TOKENS = struct(BATCH, LENGTH, dtype="int32")
MODELS = {
    "mlp": (mlp, DENSE, struct(1024, 512), struct(1024, 256)),
    "transformer": (
        transformer,
        {"embedding": struct(VOCABULARY, WIDTH), "layers": STACK},
        TOKENS,
        TOKENS,
    ),
}
STATISTICS = {
    "second_moment": hs.second_moment(),
    "mean_of_tanh": hs.mean_of(jnp.tanh),
    "norms": hs.norms(),
    "clipped_mean": hs.clipped_mean(1.0),
}


def compiled(module, parameters):
    """The collectives of a module whose last two arguments hold the examples, along eight
    devices.
    """
    target = find_target("tpu:v5e:2x4")
    mesh = Mesh(np.array(target.devices).reshape(8), ("data",))
    shardings = [NamedSharding(mesh, P())] * parameters + [NamedSharding(mesh, P("data"))] * 2
    return collectives(compile_for(module, target, shardings).text)


@cache
def plain(name):
    """The gradient's module, its number of parameters, and its collectives."""
    loss, params, *batch = MODELS[name]
    module = hs.modules.load(jax.jit(jax.grad(loss)).lower(params, *batch).as_text())
    parameters = len(jax.tree.leaves(params))
    return module, parameters, compiled(module, parameters)


CASES = [
    *((name, statistic, "auto") for name in MODELS for statistic in STATISTICS),
    *(("mlp", statistic, "loop") for statistic in STATISTICS),
    ("transformer", "clipped_mean", "loop"),
]


@pytest.mark.parametrize(("name", "statistic", "strategy"), CASES)
def test_one_sum_more_for_a_statistic(name, statistic, strategy):
    module, parameters, alone = plain(name)
    rewritten = hs.modules.rewrite_module(
        module,
        batch=[parameters, parameters + 1],
        statistics=STATISTICS[statistic],
        strategy=strategy,
        target="tpu:v5e",
        shards=8,
    )
    found = compiled(rewritten, parameters)
    assert alone["all-reduce"] >= 1
    assert excess(found, alone, 1, in_layers=name == "transformer") == {}, f"{found} beside {alone}"
