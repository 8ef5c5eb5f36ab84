"""Statistics compiled for GPUs that are not here: what is held, moved and gathered."""

import importlib.util
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hlo_surgery as hs
from hlo_surgery.targets.costs import cost, cost_of
from hlo_surgery.targets.gpus import PLUGINS
from hlo_surgery.targets.target import compile_for, find_target
from tests.targets.test_live_memory import struct
from tools.models.families import mlp

pytestmark = pytest.mark.skipif(
    not any(map(importlib.util.find_spec, PLUGINS)), reason="needs JAX's plugin for CUDA"
)
WIDE, DEPTH = 1024, 6
MLP = mlp.problem_without_biases(WIDE, WIDE, DEPTH)
B, LENGTH, WIDTH, HIGH = 8, 64, 128, 256


@pytest.fixture(scope="module")
def target():
    return find_target("gpu:h200")


def temporaries(made, target):
    structs = MLP.structs_on(target.devices[0])
    compiled = jax.jit(made).lower(*structs).compile(target.compiler_options)
    return cost_of(compiled, target).temporary_bytes


def with_statistic(statistic, target):
    how: Any = {"batch_argnums": MLP.batch_argnums, "target": target.name}
    return hs.grad(MLP.loss, statistics=statistic, **how)


def test_norms_hold_no_operands(target):
    norms = temporaries(with_statistic(hs.norms(), target), target)
    assert norms <= 1.1 * temporaries(jax.grad(MLP.loss), target)


def test_clipped_means_hold_weighted_operands_of_one_layer(target):
    """All operands but the argument until the last norm is known, two more with their weights, less
    what lies where the outputs will.
    """
    clipped = with_statistic(hs.clipped_mean(1.0), target)
    held = (2 * DEPTH - 1) + 2 - DEPTH
    found = temporaries(lambda *given: clipped(*given)[1], target)
    assert found <= (held + 0.1) * WIDE * WIDE * 4


def layer(w, x):
    return jnp.mean((x @ w).astype(jnp.float32) ** 2)


def module(strategy):
    f = hs.grad(layer, statistics=hs.second_moment(), strategy=strategy, target="gpu:h200")
    operands = struct(WIDTH, HIGH, dtype=jnp.bfloat16), struct(B, LENGTH, WIDTH, dtype=jnp.bfloat16)
    return f.module(*operands)


def test_lifting_moves_no_operand():
    assert f"[{B},{HIGH},{LENGTH}]" not in compile_for(module("lift"), "gpu:h200").text


def test_a_kernel_counts_its_contractions():
    """Forward and its own: the input has no gradient."""
    least = 2 * 2 * B * LENGTH * WIDTH * HIGH
    assert least <= cost(module("fused"), "gpu:h200").flops <= 1.1 * least


def test_sums_gather_nothing():
    target = find_target("gpu:h200:1x1x8")
    mesh = Mesh(np.array(target.devices), ("data",))
    struct_at = partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
    w = struct_at((WIDTH, HIGH), sharding=NamedSharding(mesh, P()))
    x = struct_at((B, LENGTH, WIDTH), sharding=NamedSharding(mesh, P("data")))
    how: Any = {"strategy": "lift", "target": target.name, "shards": 8}
    f = hs.grad(layer, statistics=hs.second_moment(), **how)
    compiled = jax.jit(f).lower(w, x).compile(target.compiler_options)
    assert set(cost_of(compiled, target).collectives) == {"all-reduce"}
