"""Scheduled HLO is read: shapes, their bytes and memory, instructions, computations; refusals."""

import jax
import jax.numpy as jnp
import pytest

from hlo_surgery.targets.program import parse, parse_shape
from tests.targets.scheduled_programs import computation, program

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


def test_tuples_nest_and_hold_comments():
    outer = parse_shape("((f32[8]{0:T(1,128)}, s32[]), /*index=1*/pred[2,2]{1,0}, ())")
    assert [part.bytes for part in outer[0]] == [512, 4]
    assert (outer[1].dims, outer[2]) == ((2, 2), ())


def test_instructions_are_read_in_order():
    fused = computation("fused", "%p = f32[4]{0} parameter(0)\nROOT %n = f32[4]{0} negate(%p)")
    read = program(
        """
        %x = f32[4]{0} parameter(0), metadata={op_name="x"}
        %c = s32[] constant(-3)
        %k = f32[2]{0} constant({1, 2})
        %f.1 = (f32[4]{0}, /*index=1*/f32[4]{0}) fusion(%x, /*index=1*/%c), \
kind=kLoop, calls=%fused, metadata={op_name="a(%b)"}
        ROOT %g = f32[4]{0} get-tuple-element(%f.1), index=1""",
        fused,
    )
    names = [(each.name, each.opcode, each.operands) for each in read.entry.instructions]
    assert names == [
        ("x", "parameter", ()),
        ("c", "constant", ()),
        ("k", "constant", ()),
        ("f.1", "fusion", ("x", "c")),
        ("g", "get-tuple-element", ("f.1",)),
    ]
    assert read.entry.root.name == "g"
    assert read.entry.named["c"].argument == "-3"
    assert read.entry.named["f.1"].called("calls") == "fused"
    assert [each.opcode for each in read.computations["fused"].instructions] == [
        "parameter",
        "negate",
    ]


def test_computations_that_are_called_have_roles():
    text = (
        "%w = f32[] conditional(%p, %a, %b), branch_computations={%one, %two.1}, "
        'backend_config={"n":"{(}"}'
    )
    read = program(
        f"%p = s32[] parameter(0)\n%a = f32[] parameter(1)\n%b = f32[] parameter(2)\nROOT {text}"
    )
    assert read.entry.root.calls == (
        ("branch_computations", "one"),
        ("branch_computations", "two.1"),
    )


CYCLES = {
    'backend_config={"window":{"estimated_cycles":"8078","x":1}}': 8078,
    'backend_config={"estimated_cycles":"0"}': 0,
    # The compiler's word for: no idea.
    'backend_config={"estimated_cycles":"9223372036854775807"}': None,
    "": None,
}


@pytest.mark.parametrize("text", CYCLES)
def test_estimated_cycles(text):
    read = program(f"%x = f32[4]{{0}} parameter(0)\nROOT %n = f32[4]{{0}} negate(%x), {text}")
    assert read.entry.root.estimated_cycles == CYCLES[text]


def test_aliases_of_outputs_and_arguments():
    header = (
        "input_output_alias={ {0}: (2, {}, may-alias), {1, 0}: (0, {}, must-alias) }, "
        "entry_computation_layout={}"
    )
    assert program("ROOT %x = f32[] parameter(0)", header=header).aliases == {(0,): 2, (1, 0): 0}
    one = program(
        "ROOT %x = f32[] parameter(0)", header="input_output_alias={ {}: (3, {}, may-alias) }"
    )
    assert one.aliases == {(): 3}


@pytest.mark.parametrize("text", ["", "module @m {}", "HloModule m\nENTRY %e () -> f32[] {\n}"])
def test_text_that_is_not_scheduled_is_refused(text):
    with pytest.raises(ValueError, match="no text of a scheduled HLO module"):
        parse(text)


def test_a_module_without_an_entry_is_refused():
    with pytest.raises(ValueError, match="no entry computation"):
        parse("HloModule m, is_scheduled=true\n%f () -> f32[] {\n  ROOT %x = f32[] parameter(0)\n}")


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
