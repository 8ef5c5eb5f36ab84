"""Digests of programs: alike for the same graph however it is written, and for no other."""

import pytest

from tools.bench.program_digest import digest

PROGRAM = """
func.func @main(%x: tensor<4xf32>, %n: tensor<i32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %a = stablehlo.tanh %x : tensor<4xf32>
  %b = stablehlo.cosine %x : tensor<4xf32>
  %r:3 = stablehlo.while(%i = %zero, %s = FIRST, %t = SECOND)
    : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  cond {
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %j = stablehlo.add %i, %one : tensor<i32>
    %u = stablehlo.multiply %s, %x : tensor<4xf32>
    %v = stablehlo.add %t, %x : tensor<4xf32>
    stablehlo.return %j, %u, %v : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  }
  return %r#RESULT, %a : tensor<4xf32>, tensor<4xf32>
}
"""


def program(first="%a", second="%b", result="1"):
    filled = PROGRAM.replace("FIRST", first).replace("SECOND", second)
    return filled.replace("RESULT", result)


def test_the_order_of_operations_does_not_count():
    lines = program().splitlines()
    a, b = (next(i for i, line in enumerate(lines) if op in line) for op in ("tanh", "cosine"))
    lines[a], lines[b] = lines[b], lines[a]
    assert "\n".join(lines) != program()
    assert digest("\n".join(lines)) == digest(program())


def test_the_order_of_a_loops_states_does_not_count():
    swapped = (
        program("%b", "%a", "2").replace("multiply %s", "add %s").replace("add %t", "multiply %t")
    )
    assert digest(swapped) == digest(program())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("multiply %s", "subtract %s"),
        ("FIRST", "%x"),
        ("dense<1>", "dense<2>"),
        ("LT", "LE"),
        ("r#RESULT", "r#2"),
        ("cosine", "sine"),
    ],
)
def test_another_program_has_another_digest(old, new):
    changed = PROGRAM.replace(old, new, 1)
    assert changed != PROGRAM
    filled = changed.replace("FIRST", "%a").replace("SECOND", "%b").replace("RESULT", "1")
    assert digest(filled) != digest(program())


def test_what_devices_compute_on_their_parts_counts():
    def parts(op):
        return f"""
sdy.mesh @mesh = <["data"=2]>
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
  %r = sdy.manual_computation(%x) in_shardings=[<@mesh, [{{"data"}}]>]
    out_shardings=[<@mesh, [{{"data"}}]>] manual_axes={{"data"}} (%y: tensor<2xf32>) {{
    %z = stablehlo.{op} %y : tensor<2xf32>
    sdy.return %z : tensor<2xf32>
  }} : (tensor<4xf32>) -> tensor<4xf32>
  return %r : tensor<4xf32>
}}
"""

    assert digest(parts("sine")) == digest(parts("sine"))
    assert digest(parts("sine")) != digest(parts("cosine"))
