"""FLOPs, bytes, collectives of what runs: known instructions, XLA's own counts, loops' rounds."""

import jax
import jax.numpy as jnp
import pytest

from hlo_surgery.requests.options import roofline
from hlo_surgery.targets.executed import flops, moved_bytes
from hlo_surgery.targets.program import parse
from hlo_surgery.targets.times import collectives, seconds_at_peak
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


BYTES = {
    "%y = f32[256]{0} negate(%x)": 2048,
    "%y = f32[512]{0} fusion(%x, %x), calls=%whole": 1024 + 1024 + 2048,
    "%y = f32[16]{0} dynamic-slice(%x, %i), dynamic_slice_sizes={16}": 64 + 64 + 4,
    "%y = f32[256]{0} dynamic-update-slice(%x, %u, %i)": 64 + 64 + 4,
    "%y = f32[16]{0} fusion(%x, %i), calls=%sliced": 64 + 64 + 4,
    "%y = f32[256]{0} fusion(%x, %u, %i), calls=%updated": 64 + 64 + 4,
    "%y = f32[256]{0:S(1)} negate(%x)": 1024,
    "%y = f32[256]{0} bitcast(%x)": 0,
    "%y = (f32[256]{0}, f32[256]{0}) tuple(%x, %x)": 0,
    "%y = (f32[256]{0:S(1)}, f32[256]{0}, u32[]{:S(2)}) copy-start(%x)": 1024,
    "%y = ((f32[256]{0}), f32[16]{0:S(1)}, u32[]{:S(2)}) slice-start(%x)": 64,
    "%y = (f32[256]{0}, f32[512]{0}) all-gather-start(%x)": 1024 + 2048,
    "%y = f32[256]{0} all-reduce-start(%x)": 2048,
}
FUSED = [
    computation(
        "whole",
        """
        %p = f32[256]{0} parameter(0)
        %q = f32[256]{0} parameter(1)
        ROOT %c = f32[512]{0} concatenate(%p, %q)""",
    ),
    computation(
        "sliced",
        """
        %p = f32[256]{0} parameter(0)
        %b = f32[256]{0} bitcast(%p)
        %j = s32[] parameter(1)
        ROOT %s = f32[16]{0} dynamic-slice(%b, %j)""",
    ),
    computation(
        "updated",
        """
        %p = f32[256]{0} parameter(0)
        %v = f32[16]{0} parameter(1)
        %j = s32[] parameter(2)
        ROOT %s = f32[256]{0} dynamic-update-slice(%p, %v, %j)""",
    ),
]


@pytest.mark.parametrize("line", BYTES)
def test_bytes_of_single_instructions(line):
    read = program(
        f"""
        %x = f32[256]{{0}} parameter(0)
        %u = f32[16]{{0}} parameter(1)
        %i = s32[] parameter(2)
        ROOT {line}""",
        *FUSED,
    )
    assert total(read, moved_bytes) == BYTES[line]


def test_a_window_with_holes_counts_what_it_meets():
    """A batched contraction as the compiler for TPU writes it: of 8 x 8 places, the window meets
    its input in 8.
    """
    read = program("""
        %a = f32[8,16,32]{2,1,0} parameter(0)
        %b = f32[8,24,32]{2,1,0} parameter(1)
        ROOT %c = f32[8,16,24]{2,1,0} convolution(%a, %b), \
window={size=8 stride=7 lhs_dilate=8}, dim_labels=0bf_0oi->0bf""")
    assert total(read, flops) == 2 * 8 * 16 * 24 * 32


def test_a_window_over_a_whole_row_is_a_running_sum():
    add = computation(
        "add", "%p = f32[] parameter(0)\n%q = f32[] parameter(1)\nROOT %s = f32[] add(%p, %q)"
    )
    read = program(
        """
        %a = f32[8,100]{1,0} parameter(0)
        %z = f32[] constant(0)
        ROOT %c = f32[8,100]{1,0} reduce-window(%a, %z), \
window={size=1x199 pad=0_0x99_99}, to_apply=%add""",
        add,
    )
    assert total(read, flops) == 800


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


def test_of_a_conditional_one_branch_takes_time():
    branch = "%x = f32[1024]{0} parameter(0)\n"
    twice = "%y = f32[1024]{0} negate(%x)\nROOT %z = f32[1024]{0} exponential(%y)"
    read = program(
        """
        %i = s32[] parameter(0)
        %x = f32[1024]{0} parameter(1)
        ROOT %y = f32[1024]{0} conditional(%i, %x, %x), branch_computations={%one, %two}""",
        computation("one", branch + "ROOT %y = f32[1024]{0} negate(%x)"),
        computation("two", branch + twice),
    )
    # A kernel reads and writes its 4 kB.
    device = roofline("gpu:h200")
    once = 8 * 1024 / device.bandwidth
    assert seconds_at_peak(read, device) == pytest.approx(2 * once)
    assert seconds_at_peak(read, device, min) == pytest.approx(once)
