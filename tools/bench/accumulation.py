"""Statistics of gradients accumulated over microbatches, beside those of the batch at once.

python -m tools.bench.accumulation [--steps 8] [--examples 8] [--width 256] [--rounds 21]

For each statistic: in the steps of a scan over microbatches, of the whole batch at once, and, for
clipped means, by jax-privacy with as many examples at a time.
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import hlo_surgery as hs
from tools.bench.side_by_side import compile_all, median_seconds, print_table
from tools.models.families.mlp import loss_without_biases, problem_without_biases

LAYERS, MAX_NORM = 4, 1.0


def at_once(params: list[Any], x: jax.Array, y: jax.Array) -> Any:
    return jax.grad(loss_without_biases)(params, x, y)


def accumulated(steps: int) -> Callable[..., Any]:
    def gradient(params: list[Any], x: jax.Array, y: jax.Array) -> Any:
        def step(total: Any, part: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, jax.grad(loss_without_biases)(params, *part)), None

        parts = [a.reshape(steps, -1, a.shape[-1]) for a in (x, y)]
        total, _ = lax.scan(step, jax.tree.map(jnp.zeros_like, params), parts)
        return jax.tree.map(lambda g: g / steps, total)

    return gradient


def with_statistic(gradient: Callable[..., Any], statistic: Any) -> Callable[..., Any]:
    return hs.rewrite(gradient, batch_argnums=(1, 2), statistics=statistic)


def by_jax_privacy(microbatch: int) -> dict[str, Callable[..., Any]]:
    """Its clipped mean, where it is installed."""
    try:
        from jax_privacy import clipped_grad  # pyright: ignore
    except ImportError:
        return {}
    how: Any = {"l2_clip_norm": MAX_NORM, "batch_argnums": (1, 2), "microbatch_size": microbatch}
    return {"clipped, jax-privacy": clipped_grad(loss_without_biases, **how)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, number in (("steps", 8), ("examples", 8), ("width", 256), ("rounds", 21)):
        parser.add_argument(f"--{name}", type=int, default=number)
    options = parser.parse_args()
    width, batch = options.width, options.steps * options.examples
    args = problem_without_biases(batch, width, LAYERS).make()
    statistics = {
        "norms": hs.norms(),
        "squares": hs.second_moment(),
        "clipped": hs.clipped_mean(MAX_NORM),
        "weighted": hs.weighted_mean(lambda norms: 1 / (norms + 0.01)),
        "products": hs.inner_products("mean"),
    }
    ways = {"accumulated": accumulated(options.steps), "at once": at_once}
    functions = dict(ways)
    for name, statistic in statistics.items():
        functions |= {f"{name}, {w}": with_statistic(g, statistic) for w, g in ways.items()}
    compiled = compile_all(functions | by_jax_privacy(options.examples), args)
    seconds = median_seconds(compiled, args, options.rounds)
    print_table(f"{options.steps} x {options.examples} examples, width {width}", compiled, seconds)


if __name__ == "__main__":
    main()
