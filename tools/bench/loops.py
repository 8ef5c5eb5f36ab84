"""Second moments through loops, an LSTM and a scanned transformer, against the plain gradient.

python -m tools.bench.loops [--rounds 9] [--small]
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp

import hlo_surgery as hs
from tools.bench.side_by_side import compile_all, median_seconds, print_table


def lstm_loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """x: [B, T, D]; the last hidden state of an LSTM against y: [B, D]."""
    width = y.shape[-1]

    def step(carry: Any, x_t: jax.Array) -> tuple[Any, None]:
        h, c = carry
        gates = x_t @ params["wx"] + h @ params["wh"] + params["b"]
        i, f, g, o = jnp.split(gates, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    start = jnp.zeros((x.shape[0], width))
    (h, _), _ = jax.lax.scan(step, (start, start), jnp.swapaxes(x, 0, 1))
    return jnp.mean(jnp.sum((h - y) ** 2, -1))


def scanned_lm_loss(params: Any, tokens: jax.Array) -> jax.Array:
    """tokens: [B, L]; pre-LayerNorm decoder whose layers are scanned."""
    x = params["embedding"][tokens[:, :-1]]
    mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))

    def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
        return (
            scale * (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)
        )

    def layer(x: jax.Array, p: Any) -> tuple[jax.Array, None]:
        h = norm(x, p["norm1"])
        q, k, v = (jnp.einsum("bld,dhk->bhlk", h, p[name]) for name in ("q", "k", "v"))
        scores = jnp.where(mask, jnp.einsum("bhlk,bhmk->bhlm", q, k) / q.shape[-1] ** 0.5, -1e30)
        x = x + jnp.einsum("bhlm,bhmk,hkd->bld", jax.nn.softmax(scores), v, p["o"])
        return x + jax.nn.gelu(norm(x, p["norm2"]) @ p["up"]) @ p["down"], None

    x, _ = jax.lax.scan(layer, x, params["layers"])
    logits = jax.nn.log_softmax(x @ params["head"])
    return -jnp.mean(jnp.sum(jnp.take_along_axis(logits, tokens[:, 1:, None], -1), (1, 2)))


def normal(key: jax.Array, *shape: int) -> jax.Array:
    return jax.random.normal(key, shape) / shape[-2] ** 0.5


def lstm_arguments(steps: int, width: int, batch: int) -> tuple[Any, ...]:
    k = jax.random.split(jax.random.key(0), 4)
    params = {
        "wx": normal(k[0], width, 4 * width),
        "wh": normal(k[1], width, 4 * width),
        "b": jnp.zeros(4 * width),
    }
    return (
        params,
        jax.random.normal(k[2], (batch, steps, width)),
        jax.random.normal(k[3], (batch, width)),
    )


def lm_arguments(
    layers: int, width: int, length: int, batch: int, vocabulary: int
) -> tuple[Any, ...]:
    k = jax.random.split(jax.random.key(0), 9)
    heads, size = 4, width // 4
    blocks = {
        name: normal(key, layers, width, heads, size) for name, key in zip("qkv", k, strict=False)
    }
    blocks |= {
        "o": normal(k[3], layers, heads, size, width),
        "up": normal(k[4], layers, width, 4 * width),
    }
    blocks |= {"down": normal(k[5], layers, 4 * width, width)}
    blocks |= {"norm1": jnp.ones((layers, width)), "norm2": jnp.ones((layers, width))}
    outer = {"embedding": normal(k[6], vocabulary, width), "head": normal(k[7], width, vocabulary)}
    return {"layers": blocks, **outer}, jax.random.randint(k[8], (batch, length + 1), 0, vocabulary)


def run(title: str, loss: Any, args: tuple[Any, ...], rounds: int) -> None:
    batch = tuple(range(1, len(args)))

    def by_vmap(params: Any, *data: jax.Array) -> Any:
        gradients = jax.vmap(jax.grad(loss), (None, *[0] * len(data)))(
            params, *(x[:, None] for x in data)
        )
        return jax.tree.map(_both, gradients)

    rewritten = hs.grad(loss, batch_argnums=batch, statistics=hs.second_moment())
    compiled = compile_all(
        {"plain": jax.grad(loss), "rewritten": rewritten, "jit(vmap)": by_vmap}, args
    )
    print_table(title, compiled, median_seconds(compiled, args, rounds))


def _both(g: jax.Array) -> tuple[jax.Array, jax.Array]:
    return g.mean(0), (g * g).mean(0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--small", action="store_true", help="a tenth of the size")
    options = parser.parse_args()
    steps, width, batch = (16, 64, 8) if options.small else (128, 256, 32)
    run(
        f"LSTM, {steps} steps, width {width}, batch {batch}",
        lstm_loss,
        lstm_arguments(steps, width, batch),
        options.rounds,
    )
    layers, width, length = (3, 32, 32) if options.small else (12, 256, 128)
    title = f"transformer scanned over {layers} layers, width {width}, length {length}, batch 8"
    run(title, scanned_lm_loss, lm_arguments(layers, width, length, 8, 512), options.rounds)


if __name__ == "__main__":
    main()
