"""The problems of the GPU tables run where JAX runs: milliseconds and GB, beside what is predicted.

python -m tools.bench.gpu.measured [--rounds 21] [--calls 10] [--small]

Against plain, vmap and jax-privacy. Milliseconds are of a call among as many in a row, as steps of
a training loop are. `at peak` is counted in the program as it was compiled here.
"""

import argparse
from typing import Any

import jax

from hlo_surgery.targets.costs import cost_of
from tools.bench.gpu.programs import Function, functions, problems
from tools.bench.side_by_side import Compiled, compile_all, median_seconds
from tools.models.problem import Problem


def by_jax_privacy(problem: Problem) -> dict[str, Function]:
    """Clipped means in microbatches of each size that divides the batch, and all at once."""
    try:
        from jax_privacy import clipped_grad  # pyright: ignore
    except ImportError:
        return {}
    how: Any = {"batch_argnums": problem.batch_argnums, "normalize_by": problem.batch}
    sizes = [size for size in (1, 4, 16, 64) if problem.batch % size == 0]
    return {
        f"jax-privacy, {m}": clipped_grad(problem.loss, l2_clip_norm=1.0, microbatch_size=m, **how)
        for m in dict.fromkeys([*sizes, problem.batch])
    }


def print_row(name: str, compiled: Compiled, seconds: float, plain: float) -> None:
    cost = cost_of(compiled)
    peak = (cost.roofline_seconds or 0.0) * 1e3
    print(
        f"{name:28}{seconds * 1e3:10.3f} ms {seconds / plain:6.2f} x"
        f"{cost.temporary_bytes / 1e9:10.4f} GB{peak:10.3f} ms at peak",
        flush=True,
    )


def run(problem: Problem, rounds: int, calls: int) -> None:
    print(f"\n{problem.title}", flush=True)
    arguments = problem.make()
    compiled = compile_all(functions(problem, None) | by_jax_privacy(problem), arguments)
    seconds = median_seconds(compiled, arguments, rounds, calls=calls)
    for name, each in compiled.items():
        print_row(name, each, seconds[name], seconds["plain"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--calls", type=int, default=10, help="in a row, in each round")
    parser.add_argument("--small", action="store_true", help="a tenth of the size")
    options = parser.parse_args()
    print(jax.devices())
    for problem in problems(options.small):
        run(problem, options.rounds, options.calls)


if __name__ == "__main__":
    main()
