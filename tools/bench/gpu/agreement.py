"""Statistics where JAX runs, by each strategy, against vmap: the largest error of any gradient.

python -m tools.bench.gpu.agreement [--small]

In float32 with products of full precision both differ by rounding alone; at the precision that JAX
chooses, and in bfloat16, `vmap` itself has the error beside, against vmap in float32.
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import hlo_surgery as hs
from tools.bench.comparison.methods import METHODS
from tools.bench.gpu.programs import language_model
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


def squares(problem: Problem, strategy: str) -> Function:
    """Gradient and second moment."""
    return hs.grad(
        problem.loss,
        batch_argnums=problem.batch_argnums,
        statistics=hs.second_moment(),
        strategy=strategy,
    )


def each_gradient(problem: Problem) -> Function:
    """All examples' gradients by vmap."""

    def one(params: Any, *example: jax.Array) -> Any:
        return jax.grad(problem.loss)(params, *(leaf[None] for leaf in example))

    return jax.vmap(one, (None, *[0] * len(problem.batch_argnums)))


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
    by_vmap = METHODS["jit(vmap)"](problem, None)[0].function
    found = {f"squares, {name}": (squares(problem, name), by_vmap) for name in STRATEGIES}
    found["vmap squares"] = by_vmap, by_vmap
    for name, statistic, ours in (
        ("norms", hs.norms(), norms(problem)),
        ("clipped_mean", hs.clipped_mean(1.0), clipped_mean(problem)),
    ):
        function = hs.grad(problem.loss, batch_argnums=problem.batch_argnums, statistics=statistic)
        found[name] = (lambda *args, function=function: function(*args)[1]), ours
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
