"""The second count: programs of bundles by hand, and a compiled matmul against its units."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.bench.bundles.count import count_of
from tools.bench.bundles.text import read_bundles

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


def test_a_branch_on_data_is_an_error():
    with pytest.raises(ValueError, match="a branch depends on data"):
        counted(PROGRAM.replace("LIMIT", "%s7_s7"))


def test_a_branch_to_bundles_that_are_not_there_is_an_error():
    """As of a fusion whose regions lie in another one's program."""
    with pytest.raises(ValueError, match="leads to bundles that are not there"):
        counted(PROGRAM.replace("LIMIT", "5").replace("$region4", "$region2912"))


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
