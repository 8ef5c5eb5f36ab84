"""What rewriting costs: seconds of analysis and rewriting, against ops and XLA's compile time.

python -m tools.bench.rewriting [--rounds 3] [--layers 1 2 4 8] [--depth 12]

First a transformer of `depth` layers in an unrolled Python loop, against the time XLA compiles the
rewritten module for. Then models of growing size without loops, with loops (a scan over time in
each layer) and with nested loops (a scan over blocks of such scans in each layer): the CPU seconds
for 1000 ops show whether the time grows linearly.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import hlo_surgery as hs
from hlo_surgery.passes.ir import mlir

WIDTH, HEADS, VOCABULARY, LENGTH, BATCH, BLOCKS = 64, 4, 128, 32, 8, 3
Model = tuple[Callable[..., jax.Array], Any, jax.Array]


def transformer(layers: int) -> Model:
    """Pre-LayerNorm decoder, its layers unrolled, with biases and learned positions."""
    keys = jax.random.split(jax.random.key(0), layers + 1)
    params = {
        "embedding": normal(keys[0], VOCABULARY, WIDTH),
        "positions": jnp.zeros((LENGTH, WIDTH)),
        "layers": [transformer_parameters(key) for key in keys[1:]],
        "norm": norm_parameters(),
    }
    tokens = jax.random.randint(jax.random.key(1), (BATCH, LENGTH + 1), 0, VOCABULARY)
    return transformer_loss, params, tokens


def transformer_loss(params: Any, tokens: jax.Array) -> jax.Array:
    """tokens: [B, L + 1]; the mean cross-entropy of the next; the embedding is the head too."""
    x = params["embedding"][tokens[:, :-1]] + params["positions"]
    for p in params["layers"]:
        x = x + attention(layer_norm(x, p["norm1"]), p)
        x = (
            x
            + jax.nn.gelu(layer_norm(x, p["norm2"]) @ p["up"] + p["up_bias"]) @ p["down"]
            + p["down_bias"]
        )
    logits = jax.nn.log_softmax(layer_norm(x, params["norm"]) @ params["embedding"].T)
    return -jnp.mean(jnp.take_along_axis(logits, tokens[:, 1:, None], -1))


def attention(x: jax.Array, p: Any) -> jax.Array:
    heads = (*x.shape[:2], HEADS, WIDTH // HEADS)
    q, k, v = (jnp.reshape(x @ p[name] + p[name + "_bias"], heads) for name in ("q", "k", "v"))
    scores = jnp.einsum("blhk,bmhk->bhlm", q, k) / q.shape[-1] ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e30)
    return (
        jnp.einsum("bhlm,bmhk->blhk", jax.nn.softmax(scores), v).reshape(x.shape) @ p["o"]
        + p["o_bias"]
    )


def layer_norm(x: jax.Array, p: Any) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return p["scale"] * centred * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6) + p["bias"]


def transformer_parameters(key: jax.Array) -> dict[str, Any]:
    shapes = dict.fromkeys("qkvo", (WIDTH, WIDTH)) | {
        "up": (WIDTH, 4 * WIDTH),
        "down": (4 * WIDTH, WIDTH),
    }
    keys = jax.random.split(key, len(shapes))
    kernels = {
        name: normal(k, *shape) for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    biases = {f"{name}_bias": jnp.zeros(shape[1]) for name, shape in shapes.items()}
    return {**kernels, **biases, "norm1": norm_parameters(), "norm2": norm_parameters()}


def norm_parameters() -> dict[str, jax.Array]:
    return {"scale": jnp.ones(WIDTH), "bias": jnp.zeros(WIDTH)}


def recurrent(layers: int) -> Model:
    """A stack of gated recurrent layers, each a scan over time."""
    params = [recurrent_parameters(key) for key in jax.random.split(jax.random.key(0), layers)]
    return recurrent_loss, params, jax.random.normal(jax.random.key(1), (BATCH, LENGTH, WIDTH))


def recurrent_loss(params: Any, x: jax.Array) -> jax.Array:
    """x: [B, T, D]."""
    for p in params:
        x = over_time(p, x)
    return jnp.mean(x**2)


def over_time(p: Any, x: jax.Array) -> jax.Array:
    def step(h: jax.Array, x_t: jax.Array) -> tuple[jax.Array, jax.Array]:
        update, candidate = jnp.split(x_t @ p["input"] + h @ p["state"] + p["bias"], 2, -1)
        h = h + jax.nn.sigmoid(update) * (jnp.tanh(candidate) - h)
        return h, h

    _, states = jax.lax.scan(step, jnp.zeros_like(x[:, 0]), jnp.swapaxes(x, 0, 1))
    return jnp.swapaxes(states, 0, 1)


def recurrent_parameters(key: jax.Array) -> dict[str, jax.Array]:
    first, second = jax.random.split(key)
    return {
        "input": normal(first, WIDTH, 2 * WIDTH),
        "state": normal(second, WIDTH, 2 * WIDTH),
        "bias": jnp.zeros(128),
    }


def nested(layers: int) -> Model:
    """Layers that are each a scan over blocks, whose bodies scan over time."""
    keys = jax.random.split(jax.random.key(0), (layers, BLOCKS))
    params = [jax.vmap(recurrent_parameters)(blocks) for blocks in keys]
    return nested_loss, params, jax.random.normal(jax.random.key(1), (BATCH, LENGTH, WIDTH))


def nested_loss(params: Any, x: jax.Array) -> jax.Array:
    """x: [B, T, D]."""

    def block(x: jax.Array, p: Any) -> tuple[jax.Array, None]:
        return x + over_time(p, x), None

    for stacked in params:
        x, _ = jax.lax.scan(block, x, stacked)
    return jnp.mean(x**2)


def normal(key: jax.Array, *shape: int) -> jax.Array:
    return jax.random.normal(key, shape) / shape[0] ** 0.5


def dump(model: Model) -> tuple[hs.Module, int]:
    """The gradient's module, and the number of the batch argument."""
    loss, params, x = model
    text = jax.jit(jax.grad(loss)).lower(params, x).as_text(debug_info=True)
    return hs.load(text), len(jax.tree.leaves(params))


def rewriting(
    module: hs.Module, batch: int, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[hs.Module, float]:
    """The rewritten module, and the median of the seconds it took after a warm-up."""
    seconds: list[float] = []
    rewritten = module
    for _ in range(rounds + 1):
        start = clock()
        rewritten = hs.rewrite_module(module, batch=[batch], statistics=hs.second_moment())
        seconds.append(clock() - start)
    return rewritten, statistics.median(seconds[1:])


def ops(module: hs.Module) -> int:
    """All ops of a module, those in the bodies of loops included."""
    return sum(1 for _ in mlir.nested_operations(module.code.operation))


def compile_seconds(module: hs.Module) -> float:
    """XLA's seconds for the module, with nothing compiled before."""
    jax.clear_caches()
    lowered = module.jitted.lower(
        *(jax.ShapeDtypeStruct(p.shape, p.dtype) for p in module.arguments)
    )
    start = time.perf_counter()
    lowered.compile()
    return time.perf_counter() - start


def against_compiling(depth: int, rounds: int) -> None:
    module, batch = dump(transformer(depth))
    rewritten, seconds = rewriting(module, batch, rounds)
    compiling = statistics.median(compile_seconds(rewritten) for _ in range(rounds))
    plain = statistics.median(compile_seconds(module) for _ in range(rounds))
    print(
        f"transformer of {depth} unrolled layers, {ops(module)} ops, {len(module.outputs)} "
        "gradients"
    )
    print(f"  rewriting            {seconds:6.2f} s   ({ops(rewritten)} ops after it)")
    print(
        f"  compiling, rewritten {compiling:6.2f} s   rewriting is {seconds / compiling:.2f} of it"
    )
    print(f"  compiling, plain     {plain:6.2f} s   rewriting is {seconds / plain:.2f} of it")


def against_ops(layers: Sequence[int], rounds: int) -> None:
    kinds = {"no loops": transformer, "loops": recurrent, "nested loops": nested}
    print(
        f"{'model':14}{'layers':>8}{'ops':>8}{'CPU s':>10}{'s / 1000 ops':>15}"
        f"{'ratio to the first':>20}"
    )
    for kind, make in kinds.items():
        first = 0.0
        for count in layers:
            module, batch = dump(make(count))
            _, seconds = rewriting(module, batch, rounds, time.process_time)
            rate = seconds / ops(module) * 1000
            first = first or rate
            print(
                f"{kind:14}{count:8}{ops(module):8}{seconds:10.2f}{rate:15.3f}{rate / first:20.2f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--depth", type=int, default=12)
    options = parser.parse_args()
    against_compiling(options.depth, options.rounds)
    against_ops(options.layers, options.rounds)


if __name__ == "__main__":
    main()
