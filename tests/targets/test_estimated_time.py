"""Estimated time: trip counts, copies that queue on one channel, and what has no estimate.

This folder alone tests costs, and devices that are not here.
"""

import jax
import jax.numpy as jnp
import pytest

from hlo_surgery.targets import trip_counts as trip_counts
from hlo_surgery.targets.executed import flops
from hlo_surgery.targets.live_memory import staircase
from hlo_surgery.targets.program import parse
from hlo_surgery.targets.trip_counts import executed


def test_scans_are_found_in_what_xla_compiles():
    def scanned(x, length):
        return jax.lax.scan(lambda c, _: (jnp.tanh(c @ c), None), x, None, length=length)[0]

    compiled = jax.jit(scanned, static_argnums=1).lower(jnp.ones((4, 4)), 7).compile()
    assert {each.times for each in executed(parse(compiled.as_text()))} == {1, 7}


def test_a_loop_by_data_is_not_known_in_what_xla_compiles():
    compiled = jax.jit(
        lambda x: jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2 + 1, x)
    ).lower(jnp.ones(4))
    read = parse(compiled.compile().as_text())
    assert [each.times for each in executed(read) if each.unknown] == [1]
    assert None in {each.times for each in executed(read)}


def total(read, count):
    return sum(each.times * count(each.instruction) for each in executed(read))


def struct(*shape, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype)


def mlp(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


@pytest.mark.parametrize("length", [2, 7])
def test_a_scan_computes_its_rounds(length):
    def scanned(x):
        return jax.lax.scan(lambda c, _: (jnp.tanh(c @ x), None), x, None, length=length)[0]

    read = parse(jax.jit(scanned).lower(struct(64, 64)).compile().as_text())
    assert total(read, flops) == pytest.approx(length * 2 * 64**3, rel=1e-3)


def scanned_lm(params, tokens):
    def layer(h, w):
        scores = jax.nn.softmax(jnp.einsum("bld,bmd->blm", h @ w["q"], h))
        h = h + jnp.einsum("blm,bmd->bld", scores, h)
        return h + jax.nn.gelu(h @ w["up"]) @ w["down"], None

    h, _ = jax.lax.scan(layer, params["embedding"][tokens], params["layers"])
    logits = jax.nn.log_softmax(h @ params["embedding"].T)
    return -jnp.mean(jnp.take_along_axis(logits, tokens[..., None], -1))


LAYERS = {"q": struct(5, 128, 128), "up": struct(5, 128, 512), "down": struct(5, 512, 128)}
LM = ({"embedding": struct(1000, 128), "layers": LAYERS}, struct(4, 128, dtype="int32"))
GRADIENTS = {
    "mlp": (mlp, ([struct(256, 256)] * 3, struct(512, 256))),
    "scanned lm": (scanned_lm, LM),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_the_peak_is_what_xla_plans_on_cpu(name):
    """XLA lays temporaries into outputs not made yet, and packs with gaps: within 3 %."""
    function, arguments = GRADIENTS[name]
    compiled = jax.jit(jax.grad(function)).lower(*arguments).compile()
    memory = compiled.memory_analysis()
    planned = (
        memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    )
    peak = max(step.bytes for step in staircase(parse(compiled.as_text())))
    assert peak == pytest.approx(planned, rel=0.03)
    assert memory.temp_size_in_bytes > 0.3 * planned
