"""Counts of bundles, digests of programs, and what exactness is held against."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tools.bench.bundles.count import count_of
from tools.bench.bundles.text import read_bundles
from tools.bench.program_digest import digest
from tools.exactness.cases import Case
from tools.exactness.check import EXACT, of_factors
from tools.exactness.wide import in_float64

ROOT = Path(__file__).parent.parent.parent
# 5 rounds; the first 4 copy a block of 64 granules in, and every round but the first runs the 6
# bundles of region 2.
PROGRAM = """
     0   :  { %s9_s0 = smov 0  ;;  %s1_s1 = inlined_call_operand.hbm [index: 0] } \
/* Start region 1 */
   0x1 LB: > { %s10_s0 = sphi %s9_s0, %s11_s0  ;;  %p1_p0 = scmp.lt.s32.totalorder %s10_s0, 4 } \
/* Start region 3 */
   0x2   : > { %20 = dma.hbm_to_vmem [thread:$0]  (%p1_p0), /*hbm=*/%s5_s5, \
/*size_in_granules=*/64, /*vmem=*/%s6_s6
base_bounds: (128, 32) */ }
   0x3   : > { %p2_p1 = scmp.eq.s32.totalorder %s10_s0, 0  ;;  \
%30 = sst [smem:[#allocation7_spill]] %s10_s0 }
   0x4   : > { %407 = sbr.rel (%p2_p1) target = $region4 }
   0x5   :  {}
   0x6   :  {}
   0x7   :  {}
   0x8   :  {}
   0x9   : > { %v1 = vadd.f32 %v2, %v3 } /* Start region 2 */
   0xa   :  {}
   0xb   :  {}
   0xc   :  {}
   0xd   :  {}
   0xe   :  { %v4 = vadd.f32 %v2, %v3 }
   0xf PF: > { %s12_s2 = sld [smem:[#allocation7_spill]] } /* Start/End empty region 4 */
  0x10   : > { %s11_s0 = sadd.s32 1, %s12_s2 }
  0x11   : > { %p3_p2 = scmp.ge.s32.totalorder %s11_s0, LIMIT /* loop exit test */ }
  0x12   :  { %28 = sbr.rel (!%p3_p2) target = $region3 }
  0x13   :  {}
  0x14   :  {}
  0x15   :  {}
  0x16   :  {}
"""


def counted(program):
    return count_of(read_bundles(program))


def test_grids_blocks_and_copies_are_walked():
    """1 bundle before, 22 - 6 in a round of the loop, and 6 more in all but the first."""
    found = counted(PROGRAM.replace("LIMIT", "5"))
    assert found.bundles == 1 + 5 * (22 - 6) + 4 * 6
    assert found.bytes == 4 * 64 * 32


MATMUL = """
from tools.bench.bundles.program_time import compiled_with_bundles, dump_bundles
folder = dump_bundles()
import jax, jax.numpy as jnp
from hlo_surgery.targets.target import find_target, without_tpu
without_tpu()
target = find_target("tpu:v5e")
sharding = jax.sharding.SingleDeviceSharding(target.devices[0])
x = jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16, sharding=sharding)
looped = jax.jit(lambda x, y: jax.lax.fori_loop(0, 3, lambda _, c: jnp.tanh(c @ x), y)).lower(x, x)
_, found = compiled_with_bundles(looped.compile, folder, target)
print(found.cycles, found.bytes, sum(found.without_bundles.values()))
"""


@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="needs libtpu")
def test_a_matmul_takes_what_the_matrix_units_take():
    """2 x 1024^3 FLOPs take four units of 128 x 128 at least 16384 cycles, and each of three rounds
    little more.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "JAX_PLATFORMS": "cpu",
    }
    ran = subprocess.run(
        [sys.executable, "-c", MATMUL], capture_output=True, text=True, env=environment, check=True
    )
    cycles, _, missing = map(float, ran.stdout.split())
    assert 3 * 16384 < cycles < 1.3 * 3 * 16384
    assert missing == 0


PROGRAM_OF_DIGEST = """
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
    filled = PROGRAM_OF_DIGEST.replace("FIRST", first).replace("SECOND", second)
    return filled.replace("RESULT", result)


def test_the_order_of_operations_does_not_count():
    lines = program().splitlines()
    a, b = (next(i for i, line in enumerate(lines) if op in line) for op in ("tanh", "cosine"))
    lines[a], lines[b] = lines[b], lines[a]
    assert "\n".join(lines) != program()
    assert digest("\n".join(lines)) == digest(program())


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
    changed = PROGRAM_OF_DIGEST.replace(old, new, 1)
    assert changed != PROGRAM_OF_DIGEST
    filled = changed.replace("FIRST", "%a").replace("SECOND", "%b").replace("RESULT", "1")
    assert digest(filled) != digest(program())


B = 5


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def loss(w, x):
    """With bfloat16 from which gradients are made, and a constant that is written as its bits."""
    made = jnp.max((x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32), 1)
    return jnp.mean(jnp.tanh(made))


def case_of(function, *arrays):
    text = jax.jit(function).lower(*arrays).as_text()
    return Case(text, list(arrays), {1: 0}, B, [0], "mean", "separable", 0.05)


@pytest.fixture
def case():
    draw = np.random.default_rng(0)
    w, x = draw.normal(size=(7, 4)), draw.normal(size=(B, 7))
    return case_of(jax.grad(loss), w.astype(np.float32), x.astype(np.float32))


def test_factors_of_a_program_with_bfloat16(case):
    verdict = of_factors(case)
    assert verdict.startswith(f"{EXACT}: 1 of 1, positions 1,"), verdict


def test_a_program_in_float64_is_the_same_with_no_narrow_floats(case):
    found = in_float64(case)
    assert "0xFFF0000000000000" in found.text
    assert not any(f"{kind}>" in found.text for kind in ("bf16", "f16", "f32"))
