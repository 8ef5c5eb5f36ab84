"""Sharding constraints: set aside while a module is rewritten, and put back where they were."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import hlo_surgery as hs
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.normalise.devices import over_devices
from tests.dataflow.test_mosaic_kernels import ACCEPTED, BLOCK, REFUSED, B, D, L, W, in_order
from tests.products import covering


def loss(params, x, y):
    """With constraints of an op, of a scan's carry and its weights, and of a parameter."""
    place = lax.with_sharding_constraint
    h = place(jnp.tanh(x @ place(params["w"], P())), P("data"))

    def layer(h, v):
        return place(jnp.tanh(place(h, P("data")) @ place(v, P())), P("data")), None

    return jnp.mean((lax.scan(layer, h, params["v"])[0] - y) ** 2)


def problem():
    keys = jax.random.split(jax.random.key(0), 4)
    params = {"w": jax.random.normal(keys[0], (3, 3)), "v": jax.random.normal(keys[1], (2, 3, 3))}
    return params, jax.random.normal(keys[2], (4, 3)), jax.random.normal(keys[3], (4, 3))


def of_each(params, x, y):
    gradient = jax.grad(lambda p, x, y: loss(p, x[None], y[None]))
    return jax.device_get(jax.vmap(gradient, (None, 0, 0))(params, x, y))


STATISTICS = {"second_moment": hs.second_moment(), "norms": hs.norms()}


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("strategy", "kind"), covering(["auto", "lift", "loop"], [AxisType.Auto, AxisType.Explicit])
)
def test_statistics_are_those_of_each_example(strategy, kind):
    with jax.set_mesh(jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))):
        each = of_each(*problem())
    mesh = jax.make_mesh((1,), ("data",), axis_types=(kind,))
    with jax.set_mesh(mesh):
        f = hs.grad(
            loss if kind == AxisType.Auto else resharded,
            batch_argnums=(1, 2),
            statistics=STATISTICS,
            strategy=strategy,
        )
        gradient, found = jax.device_get(jax.jit(f)(*problem()))
        text = f.module(*problem()).text()
    assert text.count("sdy.sharding_constraint") >= 6
    norms = np.sqrt(sum((g**2).reshape(4, -1).sum(1) for g in jax.tree.leaves(each)))
    assert np.allclose(found["norms"], norms, rtol=1e-5)
    for name, g in each.items():
        assert np.allclose(gradient[name], g.mean(0), rtol=1e-5, atol=1e-6)
        assert np.allclose(found["second_moment"][name], (g**2).mean(0), rtol=1e-5, atol=1e-7)


def resharded(params, x, y):
    """The same on axes that are part of types."""
    place = jax.sharding.reshard
    h = place(jnp.tanh(x @ place(params["w"], P())), P("data"))

    def layer(h, v):
        return place(jnp.tanh(h @ v), P("data")), None

    return jnp.mean((lax.scan(layer, h, params["v"])[0] - y) ** 2)


MESH = AbstractMesh((2, 3), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
X = jax.ShapeDtypeStruct((2 * B, L, D), jnp.float32)


def on_each(features):
    """Of each device's examples, along "data"."""
    return jax.shard_map(
        features, mesh=MESH, in_specs=P("data"), out_specs=P("data"), check_vma=False
    )


def module_of(features):
    def loss(w, x):
        return jnp.mean(jnp.sum((on_each(features)(x) @ w) ** 2, (1, 2)))

    f = hs.grad(loss, statistics=hs.norms(), target="tpu:v5e")
    return f.module(jax.ShapeDtypeStruct(W.shape, W.dtype), X)


def computations(module):
    ops = mlir.all_operations(module.code)
    return [op for op in ops if op.name == "sdy.manual_computation"]


@pytest.mark.parametrize("name", ACCEPTED)
def test_each_device_has_it_to_itself(name):
    module = module_of(ACCEPTED[name])
    (computation,) = computations(module)
    (kernel,) = (
        op
        for op in mlir.nested_operations(computation)
        if mlir.text_attribute(op, "call_target_name") == "tpu_custom_call"
    )
    assert {mlir.shape(v) for v in (*kernel.operands, *kernel.results)} == {(B, L, D)}
    assert module.plan.batch_size == 2 * B
    assert over_devices(module.code) == []


@pytest.mark.parametrize("name", REFUSED)
def test_what_meets_in_a_kernel_is_refused(name):
    with pytest.raises(hs.Refusal, match="custom_call"):
        module_of(REFUSED[name])


def test_one_that_may_talk_to_other_devices_is_refused():
    def talking(x):
        how = pltpu.CompilerParams(dimension_semantics=("parallel",), collective_id=1)
        spec = pl.BlockSpec(BLOCK, in_order)
        out = jax.ShapeDtypeStruct((B, L, D), jnp.float32)
        return pl.pallas_call(
            meeting, out_shape=out, grid=(B,), in_specs=[spec], out_specs=spec, compiler_params=how
        )(x)

    with pytest.raises(hs.Refusal, match="nothing is known of how it works on several devices"):
        module_of(talking)


def meeting(x, out):
    """All devices wait for one another."""
    pl.semaphore_signal(pltpu.get_barrier_semaphore(), 1, device_id=(0, 0))
    out[...] = x[...]
