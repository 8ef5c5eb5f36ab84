"""Curvature and projections of language models beside the plain gradient: FLOPs, memory, time.

python -m tools.bench.curvature [--target cpu] [--rounds 5] [--small] [--update]
    [--models lm ...] [--only plain ...]

The Fisher diagonal and the Kronecker factors are of a loss whose labels are drawn from the model.
On a target that is not here, programs are compiled, and the time is the compiler's estimate for
TPU, and that at peak rates for GPU. Of
factors at every tenth step the first number is of the step's own backward pass, with the data's
labels, and the second of one pass more, with drawn labels. With --update each is a step of Adam.
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import hlo_surgery as hs
from hlo_surgery.targets.costs import Cost
from hlo_surgery.targets.target import Target, without_tpu
from tools.bench.side_by_side import known_cost, median_seconds
from tools.models.families import lm, scanned_lm
from tools.models.layers import cross_entropy
from tools.models.problem import Problem

MODELS = {
    "lm": (lm, 8, 256, 4, 256),
    "wide lm": (lm, 16, 512, 4, 128),
    "scanned lm": (scanned_lm, 8, 256, 12, 128),
}
SMALL = {"lm": (lm, 2, 32, 2, 16), "scanned lm": (scanned_lm, 2, 32, 3, 16)}


def sampled(family: Any) -> Callable[..., jax.Array]:
    """The model's loss on labels of its own."""

    def loss(params: Any, tokens: jax.Array, key: jax.Array) -> jax.Array:
        scores = family.scores(params, tokens)
        return jnp.mean(cross_entropy(scores, hs.curvature.sampled_labels(key, scores)))

    return loss


def programs(family: Any, target: str) -> dict[str, Callable[..., Any]]:
    """What is compiled, each of (params, tokens, key)."""

    def asking(statistic: Any) -> Callable[..., Any]:
        return hs.grad(sampled(family), batch_argnums=1, statistics=statistic, target=target)

    return {
        "plain": jax.grad(sampled(family)),
        "Fisher diagonal": asking(hs.second_moment()),
        "projected(16)": asking(hs.projected(16)),
        "projected(64)": asking(hs.projected(64)),
        "factors, expand": asking(hs.kronecker_factors()),
        "factors, reduce": asking(hs.kronecker_factors("reduce")),
    }


def with_update(program: Callable[..., Any]) -> Callable[..., Any]:
    """A step of Adam by the gradient, and what else is returned; of (state, tokens, key)."""
    optimizer = optax.adam(1e-3)

    def step(state: Any, tokens: jax.Array, key: jax.Array) -> Any:
        params, moments = state
        found = program(params, tokens, key)
        gradient, rest = found if isinstance(found, tuple) else (found, None)
        updates, moments = optimizer.update(gradient, moments, params)
        return (optax.apply_updates(params, updates), moments), rest

    return step


def with_moments(params: Any, *rest: Any) -> Any:
    """The arguments of a step from those of a gradient."""
    return (params, optax.adam(1e-3).init(params)), *rest


def measured(problem: Problem, family: Any, target: Target, options: argparse.Namespace) -> None:
    """Print a row for each program, with ratios to the plain gradient, or to the plain step."""
    key = jax.random.key(0)
    here = target.name == "cpu"
    args = (*problem.make(), key)
    structs: Any = (*problem.structs_on(target.devices[0]), key_on(target))
    chosen = {
        name: program
        for name, program in programs(family, target.name).items()
        if not options.only or name in options.only
    }
    if options.update:
        chosen = {name: with_update(program) for name, program in chosen.items()}
        args, structs = (
            with_moments(*args),
            on_first(jax.eval_shape(with_moments, *structs), target),
        )
    compiled = {name: jax.jit(f).lower(*structs).compile() for name, f in chosen.items()}
    seconds = median_seconds(compiled, args, options.rounds) if here else {}
    first: Any = None
    print(f"{problem.title} on {target.name}")
    for name, program in compiled.items():
        cost = known_cost(program, target)
        time, unit = (seconds[name], "s") if here else estimated_time(cost)
        found = cost.flops or 0, cost.peak_bytes, time
        first = first or found
        ratios = [one / other for one, other in zip(found, first, strict=True)]
        print(
            f"  {name:16} {found[0] / 1e9:8.2f} GFLOP x{ratios[0]:.3f}  "
            f"{found[1] / 2**20:7.1f} MiB x{ratios[1]:.3f}  {time:.4g} {unit} x{ratios[2]:.3f}",
            flush=True,
        )
        if name.startswith("factors"):
            shown = [f"x{1 + (r - 1) / 10:.3f} or x{1 + r / 10:.3f}" for r in ratios[::2]]
            print(f"    at every tenth step: FLOP {shown[0]}, time {shown[1]}")


def estimated_time(cost: Cost) -> tuple[float, str]:
    """What is known of the time where nothing runs, and its unit."""
    if cost.estimated_cycles is not None:
        return cost.estimated_cycles, "cycles"
    return cost.roofline_seconds or 0, "s at peak rates"


def key_on(target: Target) -> Any:
    return on_first(jax.eval_shape(lambda: jax.random.key(0)), target)


def on_first(structs: Any, target: Target) -> Any:
    """Of arrays on the target's first device."""
    sharding = jax.sharding.SingleDeviceSharding(target.devices[0])
    return jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding), structs
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="sizes that take seconds")
    parser.add_argument("--update", action="store_true", help="steps of Adam, not gradients alone")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[])
    parser.add_argument(
        "--only", nargs="+", default=[], help="programs, of which plain is the first"
    )
    options = parser.parse_args()
    if options.target != "cpu":
        without_tpu()
    target = hs.targets.find_target(options.target)
    for name, (family, *sizes) in (SMALL if options.small else MODELS).items():
        if not options.models or name in options.models:
            measured(family.problem(*sizes), family, target, options)


if __name__ == "__main__":
    main()
