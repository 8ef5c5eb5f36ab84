"""FLOPs of rewritten programs: never below the plain contractions', counted by hand here; and an
array that they must not hold.
"""

import importlib.util

import jax
import jax.numpy as jnp
import pytest

import hlo_surgery as hs
from hlo_surgery.targets.costs import cost_of
from hlo_surgery.targets.target import find_target, without_tpu

B, L, D, F, LAYERS = 8, 16, 32, 64, 3
without_tpu()
TPU = pytest.param(
    "tpu:v5e",
    marks=pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="needs libtpu"),
)


def dense(w, x):
    return jnp.mean(jnp.sum(jnp.tanh(x @ w) ** 2, (1, 2)))


def convolution(w, x):
    y = jax.lax.conv_general_dilated(
        x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jnp.mean(jnp.sum(jnp.tanh(y) ** 2, (1, 2, 3)))


def layers(w, x):
    return jnp.mean(
        jnp.sum(jax.lax.scan(lambda h, own: (jnp.tanh(h @ own), None), x, w)[0] ** 2, (1, 2))
    )


def recurrent(w, x):
    cells = jax.lax.scan(
        lambda h, xt: (jnp.tanh(h @ w + xt), None), jnp.ones((B, D)), jnp.moveaxis(x, 1, 0)
    )
    return jnp.mean(jnp.sum(cells[0] ** 2, 1))


# Parameters, examples, and the FLOPs of: the layer, its weights' gradient, and (but for the first)
# its inputs'.
PROGRAMS = {
    dense: ((D, F), (B, L, D), 2 * 2 * B * L * D * F),
    convolution: ((3, 3, 8, 16), (B, 10, 10, 8), 2 * 2 * B * 8 * 8 * 3 * 3 * 8 * 16),
    layers: ((LAYERS, D, D), (B, L, D), (2 * LAYERS + LAYERS - 1) * 2 * B * L * D * D),
    recurrent: ((D, D), (B, L, D), (2 * L + L - 1) * 2 * B * D * D),
}


@pytest.mark.parametrize("target", ["cpu", TPU])
@pytest.mark.parametrize("strategy", ["loop", "lift"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_no_work_is_lost(program, strategy, target):
    *shapes, least = PROGRAMS[program]
    devices = find_target(target)
    place = jax.sharding.SingleDeviceSharding(devices.devices[0])
    arguments = [jax.ShapeDtypeStruct(shape, "float32", sharding=place) for shape in shapes]
    function = hs.grad(program, statistics=hs.second_moment(), strategy=strategy, target=target)
    found = cost_of(jax.jit(function).lower(*arguments).compile(), devices)
    assert found.flops >= least


def biased_layers(params, x):
    for w, b in params:
        x = jnp.tanh(x @ w + b)
    return jnp.mean(jnp.sum(x**2, 1))


def test_the_number_of_examples_is_no_array():
    """A mean's gradients are B times what examples add, as a sum's are not: of each bias, too."""
    params, x = [(jnp.eye(F), jnp.ones(F))] * 6, jnp.ones((64, F))

    def temporaries(**options):
        f = hs.grad(biased_layers, statistics=hs.second_moment(), **options)
        return jax.jit(f).lower(params, x).compile().memory_analysis().temp_size_in_bytes

    assert temporaries() < temporaries(loss_reduction="sum") + x.nbytes / 2
