"""A train step with Adam against MicroAdam's, with examples' own second moment, on TPU.

python -m tools.bench.train_step [--model tied] [--batches 1 2 4 8] [--loss take] [--layers 12]
[--target tpu:v5e]

Compiled ahead of time; nothing runs. Cycles are counted twice: by the compiler's own estimates, and
by the bundles that its fusions run (`bundles/program_time.py`). The decoder LM has the paper's size
(bfloat16 compute, float32 parameters, layers rematerialised), its head is its embedding or (`lm`) a
matrix of its own; one batch size takes minutes to compile.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import hlo_surgery as hs
from hlo_surgery.targets.target import without_tpu
from tools.bench.bundles.program_time import compiled_with_bundles, dump_bundles
from tools.bench.side_by_side import known_cost
from tools.models.families import mixed_lm, mlp
from tools.models.problem import Problem

MLP_WIDTH, MLP_DEPTH = 1024, 6
Loss = Callable[..., jax.Array]


def moving(decay: float, old: jax.Array, new: jax.Array) -> jax.Array:
    return decay * old + (1 - decay) * new


def moved(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
    return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8)


def adam(p: Any, m: Any, v: Any, gradient: Any, squares: Any) -> tuple[Any, Any, Any]:
    m, v = (
        jax.tree.map(partial(moving, 0.9), m, gradient),
        jax.tree.map(partial(moving, 0.999), v, squares),
    )
    return jax.tree.map(moved, p, m, v), m, v


def train_steps(
    loss: Loss, arguments: int, target: str, methods: list[str]
) -> dict[str, Callable[..., Any]]:
    surgery = hs.grad(
        loss,
        batch_argnums=tuple(range(1, 1 + arguments)),
        statistics=hs.second_moment(),
        target=target,
    )

    def by_adam(p: Any, m: Any, v: Any, *batch: jax.Array) -> Any:
        gradient = jax.grad(loss)(p, *batch)
        return adam(p, m, v, gradient, jax.tree.map(jnp.square, gradient))

    def by_surgery(p: Any, m: Any, v: Any, *batch: jax.Array) -> Any:
        return adam(p, m, v, *surgery(p, *batch))

    def by_vmap(p: Any, m: Any, v: Any, *batch: jax.Array) -> Any:
        def own(*one: jax.Array) -> Any:
            return jax.grad(loss)(p, *(x[None] for x in one))

        gradients = jax.vmap(own)(*batch)
        squares = jax.tree.map(jnp.square, gradients)
        return adam(
            p, m, v, *(jax.tree.map(partial(jnp.mean, axis=0), x) for x in (gradients, squares))
        )

    known = {"Adam": by_adam, "MicroAdam": by_surgery, "MicroAdam by vmap": by_vmap}
    return {name: known[name] for name in methods}


def problem_of(model: str, batch: int, layers: int, labels: str) -> Problem:
    """Of "tied", "lm" or "mlp"."""
    if model == "mlp":
        return mlp.smooth_problem(batch, MLP_WIDTH, MLP_DEPTH)
    return mixed_lm.problem(batch, layers, tied=model == "tied", labels=labels)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=["tied", "lm", "mlp"], default="tied")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument(
        "--loss", choices=["take", "onehot"], default="take", help="how the LM picks the labels"
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--methods", nargs="+", default=["Adam", "MicroAdam"])
    parser.add_argument("--target", default="tpu:v5e")
    options = parser.parse_args()
    folder = dump_bundles()
    without_tpu()
    target = hs.targets.find_target(options.target)
    for size in options.batches:
        problem = problem_of(options.model, size, options.layers, options.loss)
        p, *batch = problem.structs_on(target.devices[0])
        steps = train_steps(problem.loss, len(batch), options.target, options.methods)
        first: Any = None
        for name, step in steps.items():
            start = time.perf_counter()
            lowered = jax.jit(step, donate_argnums=(0, 1, 2)).lower(p, p, p, *batch)
            compiled, bundles = compiled_with_bundles(lowered.compile, folder, target)
            cost = known_cost(compiled, target)
            found = (
                bundles.cycles,
                cost.estimated_cycles or 0,
                cost.peak_bytes,
                cost.flops or 0,
                bundles.bytes,
            )
            first = first or found
            by_bundles, estimated, memory, flops, moved = (
                one / other for one, other in zip(found, first, strict=True)
            )
            print(
                f"batch {size} {name:18} bundles {found[0] / 1e6:9.3f} Mcycles x{by_bundles:.3f}, "
                f"estimate {found[1] / 1e6:9.3f} Mcycles x{estimated:.3f}, "
                f"{found[2] / 2**30:7.3f} GiB x{memory:.3f}, "
                f"{found[3] / 1e12:.3f} TFLOP x{flops:.3f}, fusions move x{moved:.3f}, "
                f"{time.perf_counter() - start:.0f} s, without bundles: {bundles.without_bundles}",
                flush=True,
            )


if __name__ == "__main__":
    main()
