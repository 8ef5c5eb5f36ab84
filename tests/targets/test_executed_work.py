"""FLOPs, bytes, collectives of what runs: known instructions, XLA's own counts, loops' rounds."""

import jax
import jax.numpy as jnp
import pytest

from hlo_surgery.targets.executed import flops, moved_bytes
from hlo_surgery.targets.program import parse
from hlo_surgery.targets.times import collectives
from hlo_surgery.targets.trip_counts import executed
from tests.targets.scheduled_programs import computation, loop, program, until


def total(read, count):
    return sum(
        each.times * count(read, each.computation, each.instruction) for each in executed(read)
    )


def struct(*shape, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype)


def mlp(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def convolutions(weights, x):
    first, second, third = weights
    dims = ("NHWC", "HWIO", "NHWC")
    x = jax.lax.conv_general_dilated(x, first, (1, 1), "SAME", dimension_numbers=dims)
    x = jax.lax.conv_general_dilated(
        x, second, (2, 2), "VALID", dimension_numbers=dims, feature_group_count=2
    )
    x = jax.lax.conv_general_dilated(
        x, third, (1, 1), "SAME", rhs_dilation=(2, 2), dimension_numbers=dims
    )
    return jnp.sum(x)


def pooled(x):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3), (1, 2, 2), "VALID")


KERNELS = [struct(3, 3, 4, 6), struct(3, 3, 3, 8), struct(3, 3, 8, 5)]
PROGRAMS = {
    "dense": (jax.grad(mlp), ([struct(64, 64)] * 3, struct(32, 64))),
    "batched": (lambda a, b: jnp.einsum("bij,bjk->bik", a, b), (struct(3, 5, 7), struct(3, 7, 11))),
    "convolutions": (convolutions, (KERNELS, struct(2, 12, 12, 4))),
    "their gradients": (jax.grad(convolutions), (KERNELS, struct(2, 12, 12, 4))),
    "pooling": (pooled, (struct(2, 9, 9),)),
    "sums": (lambda x: (x.sum(0), (x * x).sum()), (struct(50, 60),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_flops_are_those_that_xla_counts_where_nothing_loops(name):
    function, arguments = PROGRAMS[name]
    compiled = jax.jit(function).lower(*arguments).compile()
    assert total(parse(compiled.as_text()), flops) == pytest.approx(
        compiled.cost_analysis()["flops"], rel=1e-3
    )


@pytest.mark.parametrize("name", ["dense", "batched", "sums"])
def test_bytes_are_those_that_xla_counts_where_nothing_is_sliced(name):
    function, arguments = PROGRAMS[name]
    compiled = jax.jit(function).lower(*arguments).compile()
    counted = compiled.cost_analysis()["bytes accessed"]
    assert total(parse(compiled.as_text()), moved_bytes) == pytest.approx(counted, rel=0.01)


@pytest.mark.parametrize("length", [2, 7])
def test_a_scan_computes_its_rounds(length):
    def scanned(x):
        return jax.lax.scan(lambda c, _: (jnp.tanh(c @ x), None), x, None, length=length)[0]

    read = parse(jax.jit(scanned).lower(struct(64, 64)).compile().as_text())
    assert total(read, flops) == pytest.approx(length * 2 * 64**3, rel=1e-3)


def test_collectives_count_once_by_channel_and_as_often_as_they_run():
    part = (
        "%p = f32[256]{0} parameter(0)\nROOT %NAME = f32[512]{0} all-gather(%p), channel_id=3, "
        "dimensions={0}"
    )
    read = program(
        """
        %x = f32[256]{0} parameter(0)
        %a = f32[512]{0} fusion(%x), calls=%begin
        %b = f32[512]{0} fusion(%x), calls=%end
        %s = (f32[256]{0}, f32[512]{0}) all-gather-start(%x), channel_id=4, dimensions={0}
        %d = f32[512]{0} all-gather-done(%s)
        %r = f32[256]{0} all-reduce(%x), channel_id=5, to_apply=%add
        ROOT %q = f32[256]{0} reduce-scatter(%d), channel_id=6, to_apply=%add""",
        computation("begin", part.replace("NAME", "g.1")),
        computation("end", part.replace("NAME", "g.2")),
    )
    assert collectives(read) == {"all-gather": 2, "all-reduce": 1, "reduce-scatter": 1}
    looped = loop(until(7), work="%y = f32[256]{0} all-reduce(%x), channel_id=1, to_apply=%add")
    assert collectives(looped) == {"all-reduce": 7}
