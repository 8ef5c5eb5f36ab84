"""What the first call costs: CPU seconds of rewriting and compiling, against the plain gradient.

python -m tools.bench.rewriting [--rounds 3] [--layers 1 2 4 8]

First models, each in turn: rewriting for second moments, and XLA's compilation of the plain and of
the rewritten module. Then models of growing size without loops, with loops (a scan over time in
each layer) and with nested loops (a scan over blocks of such scans in each layer): the CPU seconds
for 1000 ops show whether the time grows linearly. Last a language model of up to 8,000 ops. CPU
time is of all threads of this process.
"""

import argparse
import math
import statistics
import time
from collections.abc import Sequence
from functools import partial

import jax

import hlo_surgery as hs
from hlo_surgery.passes.ir import mlir
from tools.models.families import lm, lstm, recurrent, resnet, scanned_lm, tied_lm
from tools.models.problem import Problem

MODELS = {
    "language model, 4 layers": lm.problem,
    "language model, 12 layers": partial(lm.problem, depth=12),
    "scanned language model": partial(scanned_lm.problem, 8, 256, 4, 256),
    "ResNet": resnet.problem,
    "LSTM": lstm.problem,
}


def dump(problem: Problem) -> tuple[hs.modules.Module, list[int]]:
    """The gradient's module, and the numbers of the batch arguments."""
    text = jax.jit(jax.grad(problem.loss)).lower(*problem.structs).as_text(debug_info=True)
    params, whole = problem.structs[0], problem.structs
    return hs.modules.load(text), list(
        range(len(jax.tree.leaves(params)), len(jax.tree.leaves(whole)))
    )


def rewriting(
    module: hs.modules.Module, batch: list[int], rounds: int
) -> tuple[hs.modules.Module, float]:
    """The rewritten module, and the median of the CPU seconds it took after a warm-up."""
    seconds: list[float] = []
    rewritten = module
    for _ in range(rounds + 1):
        start = time.process_time()
        rewritten = hs.modules.rewrite_module(module, batch=batch, statistics=hs.second_moment())
        seconds.append(time.process_time() - start)
    return rewritten, statistics.median(seconds[1:])


def ops(module: hs.modules.Module) -> int:
    """All ops of a module, those in the bodies of loops included."""
    return sum(1 for _ in mlir.all_operations(module.code))


def compile_seconds(module: hs.modules.Module) -> float:
    """XLA's CPU seconds for the module, with nothing compiled before."""
    jax.clear_caches()
    lowered = module.jitted.lower(
        *(jax.ShapeDtypeStruct(p.shape, p.dtype) for p in module.arguments)
    )
    start = time.process_time()
    lowered.compile()
    return time.process_time() - start


def first_calls(rounds: int) -> None:
    """Shares of what XLA takes to compile the plain gradient."""
    print(f"{'model':28}{'ops':>8}{'after':>8}{'plain s':>10}", end="")
    print(f"{'rewriting':>12}{'compiling':>12}{'first call':>12}")
    for name, make in MODELS.items():
        module, batch = dump(make())
        rewritten, seconds = rewriting(module, batch, rounds)
        pairs = [(compile_seconds(module), compile_seconds(rewritten)) for _ in range(rounds)]
        plain, compiling = (statistics.median(each) for each in zip(*pairs, strict=True))
        shares = (seconds / plain, compiling / plain, (seconds + compiling) / plain)
        print(f"{name:28}{ops(module):8}{ops(rewritten):8}{plain:10.2f}", end="")
        print("".join(f"{share:12.2f}" for share in shares), flush=True)


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
            _, seconds = rewriting(module, batch, rounds)
            rate = seconds / ops(module) * 1000
            first = first or rate
            print(
                f"{kind:14}{count:8}{ops(module):8}{seconds:10.2f}{rate:15.3f}{rate / first:20.2f}",
                flush=True,
            )


def growth(rounds: int) -> None:
    """A language model of some 500, 2,000 and 8,000 ops; the exponent is that of the ops between a
    model and the first: 1 where the time is linear.
    """
    print(
        f"{'language model':14}{'layers':>8}{'ops':>8}{'CPU s':>10}{'ms an op':>15}{'exponent':>20}"
    )
    sizes: list[tuple[int, float]] = []
    for depth in (1, 6, 24):
        module, batch = dump(lm.problem(depth=depth))
        sizes.append((ops(module), rewriting(module, batch, rounds)[1]))
        (count, seconds), (first, least) = sizes[-1], sizes[0]
        grown = math.log(seconds / least) / math.log(count / first) if count > first else 1
        print(f"{'':14}{depth:8}{count:8}{seconds:10.2f}", end="")
        print(f"{seconds / count * 1000:15.3f}{grown:20.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 2, 4, 8])
    options = parser.parse_args()
    first_calls(options.rounds)
    against_ops(options.layers, options.rounds)
    growth(options.rounds)


if __name__ == "__main__":
    main()
