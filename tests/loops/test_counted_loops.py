"""Counters of 32 bits: no emitted loop counts in 64 bits, and none has arrays of 64-bit indices."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.passes.emit.rebuild import counted_loop

B, LENGTH, WIDTH, ROWS = 4, 3, 5, 11


def struct(*shape, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype)


def sequences(p, x):
    return jnp.mean(jnp.sum(jnp.tanh(x @ p) ** 2, (1, 2)))


def table(p, x):
    return jnp.mean(jnp.sum(jnp.tanh(p[x]) ** 2, (1, 2)))


def convolution(p, x):
    return jnp.mean(
        jnp.sum(jnp.tanh(jax.lax.conv_general_dilated(x, p, (1,), "SAME")) ** 2, (1, 2))
    )


def layers(p, x):
    return jnp.mean(
        jnp.sum(jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, p)[0] ** 2, (1, 2))
    )


def rows(p, x):
    return jnp.mean(jnp.sum((x + p) ** 2, (1, 2)))


X = struct(B, LENGTH, WIDTH)
PROGRAMS = {
    sequences: (struct(WIDTH, WIDTH), X),
    table: (struct(ROWS, WIDTH), struct(B, LENGTH, dtype="int32")),
    convolution: (struct(2, LENGTH, 3), X),
    layers: (struct(2, WIDTH, WIDTH), X),
    rows: (struct(B, 1, WIDTH), X),
}
STATISTICS = {
    "squares": hs.second_moment(),
    "phi": hs.mean_of(jnp.tanh),
    "clipped": hs.clipped_mean(1.0),
    "all": hs.per_example(),
    "counts": hs.histogram([-1.0, 0.0, 1.0]),
    "products": hs.gram(),
}


def of_64_bits(text):
    """The lines with a loop that carries 64-bit integers, or an op that makes an array of them."""
    attributes = r"dense<[^>]*> : tensor<[^>]*>|array<i64[^>]*>"
    lines = [
        re.sub(attributes, "", line)
        for line in text.splitlines()
        if "stablehlo.constant" not in line
    ]
    loop, array = r"stablehlo\.while.*tensor<u?i64>|iterArg.*tensor<u?i64>", r"tensor<[\dx]+xu?i64>"
    return [
        line
        for line in lines
        if re.search(loop, line) or ("stablehlo." in line and re.search(array, line))
    ]


@pytest.mark.parametrize("strategy", ["auto", "loop", "lift"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_emitted_counts_in_32_bits(program, strategy):
    p, x = PROGRAMS[program]
    f = hs.grad(program, statistics=STATISTICS, strategy=strategy)
    assert of_64_bits(jax.jit(f).lower(p, x).as_text()) == []


def test_a_loop_of_64_bits_would_be_found():
    with jax.enable_x64(True):
        scanned = (
            jax.jit(lambda x: jax.lax.scan(lambda s, r: (s + r, s), x[0], x))
            .lower(struct(3, 2))
            .as_text()
        )
    assert of_64_bits(scanned)


def test_in_modules_of_64_bits_too():
    with jax.enable_x64(True):
        p, x = (struct(*each.shape, dtype="float64") for each in PROGRAMS[sequences])
        text = (
            jax.jit(hs.grad(sequences, statistics=STATISTICS, strategy="loop"))
            .lower(p, x)
            .as_text()
        )
    assert "stablehlo.while" in text
    assert of_64_bits(text) == []


@pytest.mark.parametrize("written_out", [False, True])
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("wide", [False, True])
def test_counted_loops_are_scans(count, written_out, wide):
    def step(carry, number):
        x, total = carry
        return (x * 2, total + x * number), (x, {"number": number})

    with jax.enable_x64(wide):
        start = jnp.arange(3.0), jnp.zeros(3)
        found = jax.jit(lambda: counted_loop(step, start, count, written_out))()
        expected = jax.lax.scan(step, start, jnp.arange(count, dtype=jnp.int32))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert jax.tree.map(lambda x: x.dtype, found) == jax.tree.map(lambda x: x.dtype, expected)
