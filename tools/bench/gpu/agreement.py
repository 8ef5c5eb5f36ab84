"""Statistics where JAX runs, by each strategy, against vmap: the largest error of any gradient.

python -m tools.bench.gpu.agreement [--small]

In float32 with products of full precision both differ by rounding alone; at the precision that JAX
chooses, and in bfloat16, `vmap` itself has the error beside, against vmap in float32.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import hlo_surgery as hs
from tools.bench.gpu.programs import language_model
from tools.bench.methods import by_vmap, each_gradient, only, with_statistics
from tools.models.families import mlp
from tools.models.problem import Problem

Function = Callable[..., Any]
STRATEGIES = ("auto", "square", "lift", "loop", "fused")
FULL, OWN = "highest", "default"


def wide(tree: Any) -> Any:
    """With floats in float32."""

    def own(leaf: jax.Array) -> jax.Array:
        return leaf.astype(jnp.float32) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(own, tree)


def error(found: Any, wanted: Any) -> float:
    """The largest of all leaves' errors, each in norm over the norm of what is wanted."""

    def of_leaf(a: jax.Array, b: jax.Array) -> float:
        return float(jnp.linalg.norm(a.astype(jnp.float32) - b) / jnp.linalg.norm(b))

    return max(jax.tree.leaves(jax.tree.map(of_leaf, found, wanted)))


def norms(problem: Problem) -> Function:
    def function(*args: Any) -> Any:
        leaves = jax.tree.leaves(each_gradient(problem)(*args))
        return jnp.sqrt(sum(jnp.sum(jnp.square(leaf).reshape(len(leaf), -1), 1) for leaf in leaves))

    return function


def clipped_mean(problem: Problem) -> Function:
    def function(*args: Any) -> Any:
        weights = jnp.minimum(1.0, 1.0 / norms(problem)(*args)) / problem.batch
        return jax.tree.map(
            lambda leaf: jnp.tensordot(weights, leaf, 1), each_gradient(problem)(*args)
        )

    return function


def compared(problem: Problem) -> dict[str, tuple[Function, Function]]:
    """By name what surgery computes, and what vmap does."""
    theirs = by_vmap(problem)
    squares = partial(with_statistics, problem, hs.second_moment())
    found = {f"squares, {name}": (squares(strategy=name), theirs) for name in STRATEGIES}
    found["vmap squares"] = theirs, theirs
    for name, statistic, ours in (
        ("norms", hs.norms(), norms(problem)),
        ("clipped_mean", hs.clipped_mean(1.0), clipped_mean(problem)),
    ):
        found[name] = only(with_statistics(problem, statistic)), ours
        by_kernel = with_statistics(problem, statistic, strategy="fused")
        found[f"{name}, fused"] = only(by_kernel), ours
        found[f"vmap {name}"] = ours, ours
    return found


def row(name: str, pair: tuple[Function, Function], args: Any) -> str:
    ours, theirs = pair
    with jax.default_matmul_precision(FULL):
        wanted = jax.jit(theirs)(*wide(args))
        full = error(jax.jit(ours)(*wide(args)), wanted)
    with jax.default_matmul_precision(OWN):
        own = error(jax.jit(ours)(*wide(args)), wanted)
    return f"{name:20}{full:12.1e}{own:12.1e}{error(jax.jit(ours)(*args), wanted):12.1e}"


def run(problem: Problem) -> None:
    print(f"\n{problem.title}\n{'':20}{'float32':>12}{'at default':>12}{'own dtype':>12}")
    arguments = problem.make()
    for name, pair in compared(problem).items():
        try:
            print(row(name, pair, arguments), flush=True)
        except ValueError as reason:
            print(f"{name:20}{reason}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true")
    small = parser.parse_args().small
    run(language_model(8, 32, 1, 32, 128) if small else language_model(8, 128, 2, 128, 512))
    run(mlp.problem_without_biases(32, 64, 3) if small else mlp.problem_without_biases(64, 256, 3))


if __name__ == "__main__":
    main()
