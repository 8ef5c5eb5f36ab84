"""Gradient and second moment of one dense layer where JAX runs, by each strategy, as predicted.

python -m tools.bench.gpu.dense_sites [--calls 5] [--small]

Microseconds that the GPU computes. Each beside `vmap` and the plain gradient, which includes the
forward pass; `predicted` is what the plan reckons a strategy takes beside the plain gradient,
`took` what it took.
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import hlo_surgery as hs
from tools.bench.gpu.device_time import device_seconds
from tools.bench.methods import by_vmap, predicted, with_statistics
from tools.bench.side_by_side import compile_all
from tools.models.layers import Keys
from tools.models.problem import Problem

STRATEGIES = ("auto", "square", "lift", "loop", "fused")
SIZES = (
    (16, 512, 512, 8192),
    (256, 16, 1024, 1024),
    (64, 128, 1024, 1024),
    (8, 2048, 1024, 4096),
    (1024, 1, 1024, 1024),
    (16, 512, 512, 512),
    (256, 64, 512, 512),
    (4, 1024, 4096, 4096),
    (64, 512, 768, 3072),
)
SMALL = ((4, 16, 32, 64), (16, 1, 32, 32))
"""Examples, positions, features and outputs."""


def loss(w: jax.Array, x: jax.Array, scale: jax.Array) -> jax.Array:
    """x, scale: [B, T, D], [B, T, F]. What the layer's outputs get backward differs by example."""
    return jnp.mean(jnp.sum(jnp.tanh(x @ w).astype(jnp.float32) * scale, (1, 2)))


def dense_site(batch: int, positions: int, features: int, outputs: int) -> Problem:
    """In bfloat16, or in float32 where each example has one position, as MLPs do."""
    dtype = jnp.float32 if positions == 1 else jnp.bfloat16

    def make() -> tuple[Any, ...]:
        keys = Keys()
        x = keys.normal(batch, positions, features).astype(dtype)
        scale = keys.normal(batch, positions, outputs).astype(dtype)
        return keys.dense(features, outputs).astype(dtype), x, scale

    shape = f"{features} x {outputs}, {positions} positions, {jnp.dtype(dtype)}"
    return Problem("dense", loss, make, batch, shape=shape)


def methods(problem: Problem) -> tuple[dict[str, Callable[..., Any]], dict[str, float]]:
    """Functions by name, and what the plan predicts of those that it can."""
    functions = {"plain": jax.grad(problem.loss), "jit(vmap)": by_vmap(problem)}
    seconds: dict[str, float] = {}
    for strategy in STRATEGIES:
        function = with_statistics(problem, hs.second_moment(), strategy=strategy)
        try:
            seconds[strategy] = predicted(function, problem)
        except ValueError:  # It does not apply.
            continue
        functions[strategy] = function
    return functions, seconds


def run(problem: Problem, calls: int) -> None:
    print(f"\n{problem.title}", flush=True)
    arguments = problem.make()
    functions, told = methods(problem)
    compiled = compile_all(functions, arguments)
    seconds = {name: device_seconds(one, arguments, calls) for name, one in compiled.items()}
    plain = seconds["plain"]
    for name, took in seconds.items():
        beside = f"{(took - plain) * 1e6:10.1f} us took" if name != "plain" else ""
        said = f"{told[name] * 1e6:10.1f} us predicted" if name in told else ""
        print(f"{name:12}{took * 1e6:10.1f} us{took / plain:7.2f} x{beside}{said}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=5, help="in a row")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    for sizes in SMALL if options.small else SIZES:
        run(dense_site(*sizes), options.calls)


if __name__ == "__main__":
    main()
