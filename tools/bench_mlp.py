"""Second moments of an MLP's per-example gradients: plain gradient, rewritten, and jit(vmap), side by side.

python tools/bench_mlp.py [--width 512] [--depth 4] [--batch 256] [--rounds 15]
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
from side_by_side import compile_all, median_seconds, print_table

import hlo_surgery as hs


def loss(params: list[Any], x: jax.Array, y: jax.Array) -> jax.Array:
    for w, b in params:
        x = jax.nn.relu(x @ w + b)
    return jnp.mean(jnp.sum((x - y) ** 2, -1))


def by_vmap(params: list[Any], x: jax.Array, y: jax.Array) -> Any:
    gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(params, x[:, None], y[:, None])
    return jax.tree.map(_both, gradients)


def _both(g: jax.Array) -> tuple[jax.Array, jax.Array]:
    return g.mean(0), (g * g).mean(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("width", 512), ("depth", 4), ("batch", 256), ("rounds", 15)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    keys = jax.random.split(jax.random.key(0), options.depth + 2)
    width = options.width
    params = [(jax.random.normal(k, (width, width)) / width**0.5, jnp.zeros(width)) for k in keys[2:]]
    x, y = (jax.random.normal(k, (options.batch, width)) for k in keys[:2])
    rewritten = hs.grad(loss, batch_argnums=(1, 2), statistics=hs.second_moment())
    compiled = compile_all({"plain": jax.grad(loss), "rewritten": rewritten, "jit(vmap)": by_vmap}, (params, x, y))
    seconds = median_seconds(compiled, (params, x, y), options.rounds)
    print_table(f"MLP {width} x {options.depth}, batch {options.batch}, {jax.default_backend()}", compiled, seconds)


if __name__ == "__main__":
    main()
