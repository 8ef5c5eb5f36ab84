"""Norms, clipped means and second moments of an MLP's gradients, beside what else computes them.

python -m tools.bench.norms [--batch 256] [--rounds 9] [--microbatches 8 32 256]

jax-privacy runs at each of the microbatch sizes given; its best is the one to compare with.
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import hlo_surgery as hs
from tools.bench.side_by_side import compile_all, median_seconds, print_table

WIDTHS = (784, 1024, 1024, 10)
MAX_NORM = 1.0


def loss(params: list[Any], x: jax.Array, y: jax.Array) -> jax.Array:
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    logits = x @ w + b
    return jnp.mean(jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, y[:, None], 1)[:, 0])


def with_statistics(**statistics: Any) -> Callable[..., Any]:
    return hs.grad(loss, batch_argnums=(1, 2), statistics=statistics)


def only(function: Callable[..., Any]) -> Callable[..., Any]:
    """The statistics without the gradient, as a private step uses them."""
    return lambda *args: function(*args)[1]


def by_jax_privacy(microbatch: int) -> Callable[..., Any]:
    from jax_privacy import clipped_grad  # pyright: ignore

    return clipped_grad(
        loss, l2_clip_norm=MAX_NORM, batch_argnums=(1, 2), microbatch_size=microbatch
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--microbatches", type=int, nargs="*", default=[8, 32, 256])
    options = parser.parse_args()
    keys = jax.random.split(jax.random.key(0), len(WIDTHS) + 1)
    shapes = zip(keys, WIDTHS, WIDTHS[1:], strict=False)
    params = [(jax.random.normal(k, (m, n)) / m**0.5, jnp.zeros(n)) for k, m, n in shapes]
    args = (
        params,
        jax.random.normal(keys[-2], (options.batch, WIDTHS[0])),
        jnp.arange(options.batch) % WIDTHS[-1],
    )
    functions = {
        "plain": jax.grad(loss),
        "norms": with_statistics(norms=hs.norms()),
        "clipped": only(with_statistics(clipped=hs.clipped_mean(MAX_NORM))),
        "squares": with_statistics(squares=hs.second_moment()),
        "together": with_statistics(
            norms=hs.norms(), clipped=hs.clipped_mean(MAX_NORM), squares=hs.second_moment()
        ),
        **{f"jax-privacy {m}": by_jax_privacy(m) for m in options.microbatches},
    }
    compiled = compile_all(functions, args)
    seconds = median_seconds(compiled, args, options.rounds)
    title = f"MLP {'-'.join(map(str, WIDTHS))}, batch {options.batch}, {jax.default_backend()}"
    print_table(title, compiled, seconds)


if __name__ == "__main__":
    main()
