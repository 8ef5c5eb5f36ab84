"""Scheduled HLO is read: shapes, their bytes and memory, instructions, computations; refusals."""

import jax
import jax.numpy as jnp
import pytest

from hlo_surgery.targets.program import parse, parse_shape

SHAPES = {
    "f32[4,250]{1,0}": (4000, 0),
    "f32[]": (4, 0),
    "pred[3]{0}": (3, 0),
    "bf16[3,5]{1,0}": (30, 0),
    "c64[2]{0}": (16, 0),
    "f8e4m3fn[10]{0}": (10, 0),
    "s4[10]{0:E(4)}": (5, 0),
    # Tiles of 8 x 128 cover the two innermost dimensions, whichever they are.
    "f32[10,130]{1,0:T(8,128)}": (16 * 256 * 4, 0),
    "f32[10,130]{0,1:T(8,128)}": (136 * 128 * 4, 0),
    "f32[7,10,130]{2,1,0:T(8,128)}": (7 * 16 * 256 * 4, 0),
    "bf16[256,512]{1,0:T(8,128)(2,1)S(1)}": (256 * 512 * 2, 1),
    "s32[]{:T(128)}": (512, 0),
    "u32[]{:S(2)}": (4, 2),
    "s32[1024]{0:T(1024)S(1)}": (4096, 1),
    "token[]": (0, 0),
}


@pytest.mark.parametrize("text", SHAPES)
def test_arrays_have_the_bytes_of_their_tiles(text):
    array = parse_shape(text)
    assert (array.bytes, array.space) == SHAPES[text]


@pytest.mark.parametrize("text", ["", "module @m {}", "HloModule m\nENTRY %e () -> f32[] {\n}"])
def test_text_that_is_not_scheduled_is_refused(text):
    with pytest.raises(ValueError, match="no text of a scheduled HLO module"):
        parse(text)


def test_what_xla_writes_is_read_whole():
    def f(x):
        looped = jax.lax.scan(lambda c, _: (jnp.sin(c @ c), c.sum()), x, None, length=5)
        return jax.lax.cond(x.sum() > 0, lambda: looped, lambda: (x, jnp.zeros(5)))

    text = jax.jit(f).lower(jnp.ones((4, 4))).compile().as_text()
    read = parse(text)
    count = sum(len(each.instructions) for each in read.computations.values())
    assert count == sum(" = " in line and line.startswith("  ") for line in text.splitlines())
    for each in read.computations.values():
        assert {name for i in each.instructions for name in i.operands} <= set(each.named)
        assert {name for i in each.instructions for _, name in i.calls} <= set(read.computations)
