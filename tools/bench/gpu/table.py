"""A decoder LM and an MLP compiled for GPUs that are not here: memory, FLOPs, time at peak rates.

python -m tools.bench.gpu.table [--target gpu:h200] [--devices 8] [--small] [--cublas]

Without autotuning GEMMs are Triton's, in tiles that nobody has timed; --cublas has them be
cuBLAS's. Nothing is run, and no time is measured.
"""

import argparse
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import hlo_surgery as hs
from hlo_surgery.requests.options import roofline
from hlo_surgery.targets.costs import Cost, cost_of
from hlo_surgery.targets.program import parse
from hlo_surgery.targets.target import Target
from hlo_surgery.targets.times import seconds_at_peak
from tools.bench.gpu.programs import Function, functions, problems
from tools.models.problem import Problem

CUBLAS = {"xla_gpu_enable_triton_gemm": False}
HEAD = f"{'':23}{'temporaries':>21}{'GFLOP':>10}{'at peak rates':>23}{'branches':>10}{'kernels':>9}"


def compiled(function: Function, structs: Any, target: Target, options: dict[str, Any]) -> Any:
    """The executable."""
    told = target.compiler_options | options
    return jax.jit(function).lower(*structs).compile(told)


def least_seconds(executable: Any, target: Target) -> float:
    """At peak rates, where each conditional takes the branch that takes least."""
    program = parse(executable.as_text())
    return seconds_at_peak(program, roofline(target.kind), min)


def data_parallel(problem: Problem, target: Target) -> tuple[Any, ...]:
    """Parameters on each device, examples split over them."""
    mesh = Mesh(np.array(target.devices), ("data",))
    params, *batch = problem.structs
    return (_placed(params, mesh, PartitionSpec()), *_placed(batch, mesh, PartitionSpec("data")))


def _placed(tree: Any, mesh: Mesh, spec: PartitionSpec) -> Any:
    place = NamedSharding(mesh, spec)
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), tree
    )


def row(name: str, cost: Cost, plain: Cost, least: float) -> str:
    """`branches`: the time over plain's where conditionals take the branch that takes least."""
    seconds, first = cost.roofline_seconds or 0.0, plain.roofline_seconds or 1.0
    memory = cost.temporary_bytes / max(plain.temporary_bytes, 1)
    return (
        f"{name:23}{cost.temporary_bytes / 1e6:10.1f} MB {memory:5.2f} x"
        f"{(cost.flops or 0) / 1e9:10.1f}{seconds * 1e3:12.3f} ms {seconds / first:5.2f} x"
        f"{least / first:8.2f} x"
        f"{cost.kernels or 0:9}"
    )


def show(problem: Problem, target: Target, options: dict[str, Any]) -> None:
    print(f"\n{problem.title}, one device\n{HEAD}")
    structs, plain = problem.structs_on(target.devices[0]), None
    for name, function in functions(problem, target.name).items():
        executable = compiled(function, structs, target, options)
        cost = cost_of(executable, target)
        plain = plain or cost
        print(row(name, cost, plain, least_seconds(executable, target)), flush=True)


def show_parallel(problem: Problem, target: Target, options: dict[str, Any]) -> None:
    print(f"\n{problem.title}, data parallel over {len(target.devices)}")
    structs = data_parallel(problem, target)
    made = functions(problem, target.name, shards=len(target.devices))
    for name, function in made.items():
        cost = cost_of(compiled(function, structs, target, options), target)
        print(f"{name:23}{cost.collectives}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="gpu:h200", help="without a topology")
    parser.add_argument("--devices", type=int, default=8, help="of the data parallel programs")
    parser.add_argument("--small", action="store_true", help="a tenth of the size")
    parser.add_argument("--cublas", action="store_true", help="GEMMs by cuBLAS")
    given = parser.parse_args()
    options = CUBLAS if given.cublas else {}
    alone = hs.targets.find_target(given.target)
    together = hs.targets.find_target(f"{given.target}:1x1x{given.devices}")
    for problem in problems(given.small):
        show(problem, alone, options)
    for problem in problems(given.small):
        show_parallel(problem, together, options)


if __name__ == "__main__":
    main()
