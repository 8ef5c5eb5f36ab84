"""What rewriting costs: seconds of analysis and rewriting, against ops and XLA's compile time.

python -m tools.bench.rewriting [--rounds 3] [--layers 1 2 4 8] [--depth 12]

First a transformer of `depth` layers in an unrolled Python loop, against the time XLA compiles the
rewritten module for. Then models of growing size without loops, with loops (a scan over time in
each layer) and with nested loops (a scan over blocks of such scans in each layer): the CPU seconds
for 1000 ops show whether the time grows linearly.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import jax

import hlo_surgery as hs
from hlo_surgery.passes.ir import mlir
from tools.models.families import recurrent, tied_lm
from tools.models.problem import Problem


def dump(problem: Problem) -> tuple[hs.Module, int]:
    """The gradient's module, and the number of the batch argument."""
    text = jax.jit(jax.grad(problem.loss)).lower(*problem.structs).as_text(debug_info=True)
    return hs.load(text), len(jax.tree.leaves(problem.structs[0]))


def rewriting(
    module: hs.Module, batch: int, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[hs.Module, float]:
    """The rewritten module, and the median of the seconds it took after a warm-up."""
    seconds: list[float] = []
    rewritten = module
    for _ in range(rounds + 1):
        start = clock()
        rewritten = hs.rewrite_module(module, batch=[batch], statistics=hs.second_moment())
        seconds.append(clock() - start)
    return rewritten, statistics.median(seconds[1:])


def ops(module: hs.Module) -> int:
    """All ops of a module, those in the bodies of loops included."""
    return sum(1 for _ in mlir.all_operations(module.code))


def compile_seconds(module: hs.Module) -> float:
    """XLA's seconds for the module, with nothing compiled before."""
    jax.clear_caches()
    lowered = module.jitted.lower(
        *(jax.ShapeDtypeStruct(p.shape, p.dtype) for p in module.arguments)
    )
    start = time.perf_counter()
    lowered.compile()
    return time.perf_counter() - start


def against_compiling(depth: int, rounds: int) -> None:
    module, batch = dump(tied_lm.problem(depth=depth))
    rewritten, seconds = rewriting(module, batch, rounds)
    compiling = statistics.median(compile_seconds(rewritten) for _ in range(rounds))
    plain = statistics.median(compile_seconds(module) for _ in range(rounds))
    print(
        f"transformer of {depth} unrolled layers, {ops(module)} ops, {len(module.outputs)} "
        "gradients"
    )
    print(f"  rewriting            {seconds:6.2f} s   ({ops(rewritten)} ops after it)")
    print(
        f"  compiling, rewritten {compiling:6.2f} s   rewriting is {seconds / compiling:.2f} of it"
    )
    print(f"  compiling, plain     {plain:6.2f} s   rewriting is {seconds / plain:.2f} of it")


def against_ops(layers: Sequence[int], rounds: int) -> None:
    kinds = {
        "no loops": tied_lm.problem,
        "loops": recurrent.problem,
        "nested loops": recurrent.nested_problem,
    }
    print(
        f"{'model':14}{'layers':>8}{'ops':>8}{'CPU s':>10}{'s / 1000 ops':>15}"
        f"{'ratio to the first':>20}"
    )
    for kind, make in kinds.items():
        first = 0.0
        for count in layers:
            module, batch = dump(make(depth=count))
            _, seconds = rewriting(module, batch, rounds, time.process_time)
            rate = seconds / ops(module) * 1000
            first = first or rate
            print(
                f"{kind:14}{count:8}{ops(module):8}{seconds:10.2f}{rate:15.3f}{rate / first:20.2f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--depth", type=int, default=12)
    options = parser.parse_args()
    against_compiling(options.depth, options.rounds)
    against_ops(options.layers, options.rounds)


if __name__ == "__main__":
    main()
