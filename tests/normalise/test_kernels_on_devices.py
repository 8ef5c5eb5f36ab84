"""Kernels that each device has to itself: what shows of them, and what is refused as it was."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import hlo_surgery as hs
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.normalise.devices import over_devices
from tests.dataflow.test_mosaic_kernels import ACCEPTED, BLOCK, REFUSED, B, D, L, W, in_order

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


def test_a_single_device_cannot_run_it():
    module = module_of(ACCEPTED["a block an example"])
    with pytest.raises(hs.Refusal, match="on its own part"):
        module.exported  # noqa: B018
