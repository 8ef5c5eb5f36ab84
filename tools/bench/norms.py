"""Norms, clipped means and second moments of an MLP's gradients, beside what else computes them.

python -m tools.bench.norms [--batch 256] [--rounds 9] [--microbatches 8 32 256]

jax-privacy runs at each of the microbatch sizes given; its best is the one to compare with.
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax

import hlo_surgery as hs
from tools.bench.side_by_side import compile_all, median_seconds, print_table
from tools.models.families import mlp
from tools.models.problem import Problem

WIDTHS = (784, 1024, 1024, 10)
MAX_NORM = 1.0


def with_statistics(problem: Problem, **statistics: Any) -> Callable[..., Any]:
    return hs.grad(problem.loss, batch_argnums=problem.batch_argnums, statistics=statistics)


def only(function: Callable[..., Any]) -> Callable[..., Any]:
    """The statistics without the gradient, as a private step uses them."""
    return lambda *args: function(*args)[1]


def by_surgery(problem: Problem) -> dict[str, Callable[..., Any]]:
    every = {
        "norms": hs.norms(),
        "clipped": hs.clipped_mean(MAX_NORM),
        "squares": hs.second_moment(),
    }
    found = {name: with_statistics(problem, **{name: one}) for name, one in every.items()}
    return found | {"together": with_statistics(problem, **every)}


def by_jax_privacy(problem: Problem, microbatch: int) -> Callable[..., Any]:
    from jax_privacy import clipped_grad  # pyright: ignore

    how: Any = {"l2_clip_norm": MAX_NORM, "batch_argnums": problem.batch_argnums}
    return clipped_grad(problem.loss, microbatch_size=microbatch, **how)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--microbatches", type=int, nargs="*", default=[8, 32, 256])
    options = parser.parse_args()
    problem = mlp.classifier(options.batch, WIDTHS)
    functions = {"plain": jax.grad(problem.loss), **by_surgery(problem)}
    functions["clipped"] = only(functions["clipped"])
    functions |= {f"jax-privacy {m}": by_jax_privacy(problem, m) for m in options.microbatches}
    args = problem.make()
    compiled = compile_all(functions, args)
    seconds = median_seconds(compiled, args, options.rounds)
    print_table(f"{problem.title}, {jax.default_backend()}", compiled, seconds)


if __name__ == "__main__":
    main()
