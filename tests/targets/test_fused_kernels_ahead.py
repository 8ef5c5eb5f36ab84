"""Fused kernels compiled for TPUs that are not here. Needs libtpu."""

import importlib.util

import jax
import jax.numpy as jnp
import pytest

import hlo_surgery as hs
from hlo_surgery.targets.target import without_tpu

pytestmark = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")
without_tpu()

B, LENGTH, WIDTH, HIGH = 4, 64, 256, 130
STATISTICS = {
    "squares": hs.second_moment(),
    "signs": hs.mean_sign(),
    "bent": hs.mean_of(lambda g: jnp.where(g > 1, jnp.cos(g), jnp.tanh(g) * g**3)),
    "norms": hs.norms(),
}


def struct(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def loss(p, x):
    """Layers of a scan, and a dense layer whose width no tile divides."""
    h, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w.astype(h.dtype)), None), x, p["layers"])
    return jnp.mean((h @ p["out"].astype(h.dtype)).astype(jnp.float32) ** 2)


PARAMETERS = {"layers": struct(3, WIDTH, WIDTH), "out": struct(WIDTH, HIGH)}


def module(dtype, target, **planning):
    f = hs.grad(loss, statistics=STATISTICS, strategy="fused", target=target, **planning)
    return f.module(PARAMETERS, struct(B, LENGTH, WIDTH, dtype=dtype))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.float16])
@pytest.mark.parametrize("target", ["tpu:v5e", "tpu:v5p"])
def test_one_kernel_a_site(target, dtype):
    text = hs.compile_for(module(dtype, target), target).text
    assert text.count('custom_call_target="tpu_custom_call"') == 2
    assert f"[{B},{WIDTH},{WIDTH}]" not in text
    assert f"[{B},{WIDTH},{HIGH}]" not in text
