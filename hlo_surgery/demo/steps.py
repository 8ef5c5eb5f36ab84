"""The demo: one model through every step, from its dump to a comparison with `vmap`."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.demo.models import DemoModel
from hlo_surgery.module import Module, load
from hlo_surgery.rewriting.pipeline import rewrite_module
from hlo_surgery.statistics.elementwise import second_moment
from hlo_surgery.verification.tolerances import (
    Comparison,
    epsilon,
    hold,
    largest,
    relative_tolerance,
    widened,
)

ROUNDS = 7
VMAP, VMAP_OF_ONE = "vmap, all at once", "vmap, one by one"
Means = Callable[[Callable[..., Any], Sequence[jax.Array]], Any]


@dataclass(frozen=True)
class Cost:
    """Seconds of a run, in each round, and bytes of temporaries that XLA plans for it."""

    rounds: tuple[float, ...]
    temporaries: int

    @property
    def seconds(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds)

    def shares(self, other: "Cost") -> list[float]:
        """Of the time of another, round by round, from the smallest on."""
        pairs = zip(self.rounds, other.rounds, strict=True)
        return sorted(own / its for own, its in pairs)


@dataclass(frozen=True)
class Demonstration:
    """A dumped module, the rewritten one, its comparison with `vmap`, and the costs by name."""

    name: str
    original: Module
    rewritten: Module
    rewriting_seconds: float
    comparisons: tuple[Comparison, ...]
    costs: Mapping[str, Cost]


def dump(model: DemoModel, folder: Path) -> Path:
    """The module of the model's gradient, lowered and written as text."""
    lowered = jax.jit(jax.grad(model.loss)).lower(model.parameters, *model.batch)
    file = folder / f"{model.name.replace(' ', '_')}.mlir"
    file.write_text(lowered.as_text(debug_info=True))
    return file


def demonstrate(model: DemoModel, file: Path) -> Demonstration:
    """Rewrite the dumped module, compile and run it, and hold it against `jit(vmap(grad))`.

    What it is timed against is `vmap` over the whole batch and over one example after another,
    which on CPU is the faster of the two, and so the fair one.
    """
    original = load(file)
    start = time.perf_counter()
    batch = range(len(original.arguments) - len(model.batch), len(original.arguments))
    rewritten = rewrite_module(original, batch=list(batch), statistics=second_moment())
    rewriting_seconds = time.perf_counter() - start
    arrays = [*jax.tree.leaves(model.parameters), *model.batch]
    functions = {
        "plain": original.jitted,
        "rewritten": rewritten.jitted,
        VMAP_OF_ONE: jax.jit(by_vmap(model, one_by_one)),
        VMAP: jax.jit(by_vmap(model, all_at_once)),
    }
    compiled = {name: function.lower(*arrays).compile() for name, function in functions.items()}
    comparisons = _compare(rewritten, compiled, arrays)
    return Demonstration(
        model.name, original, rewritten, rewriting_seconds, comparisons, _costs(compiled, arrays)
    )


def by_vmap(model: DemoModel, means: Means) -> Any:
    """Gradient and second moment, of the flat arguments, from all examples' gradients."""
    tree = jax.tree.structure(model.parameters)

    def flat(*arrays: jax.Array) -> list[jax.Array]:
        parameters = jax.tree.unflatten(tree, arrays[: tree.num_leaves])

        def powers(*one: jax.Array) -> Any:
            gradients = jax.tree.leaves(jax.grad(model.loss)(parameters, *one))
            return gradients, [g * g for g in gradients]

        gradients, squares = means(powers, [array[:, None] for array in arrays[tree.num_leaves :]])
        return [*gradients, *squares]

    return flat


def all_at_once(of_one: Callable[..., Any], batch: Sequence[jax.Array]) -> Any:
    """The mean over the examples of what a function makes of one, by `jax.vmap`."""
    return jax.tree.map(lambda x: jnp.mean(x, 0), jax.vmap(of_one)(*batch))


def one_by_one(of_one: Callable[..., Any], batch: Sequence[jax.Array]) -> Any:
    """The same, added up example by example."""
    zeros = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(of_one, *(x[0] for x in batch))
    )

    def step(total: Any, one: Sequence[jax.Array]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, of_one(*one)), None

    total, _ = jax.lax.scan(step, zeros, tuple(batch))
    return jax.tree.map(lambda x: x / len(batch[0]), total)


def _compare(
    rewritten: Module, compiled: Mapping[str, Any], arrays: Sequence[Any]
) -> tuple[Comparison, ...]:
    got, want = (list(map(widened, compiled[name](*arrays))) for name in ("rewritten", VMAP))
    tolerance = relative_tolerance(epsilon(rewritten))
    names = [port.name for port in rewritten.outputs]
    return tuple(
        hold("output", n, g, w, tolerance * largest(w))
        for n, g, w in zip(names, got, want, strict=True)
    )


def _costs(compiled: Mapping[str, Any], arrays: Sequence[Any]) -> dict[str, Cost]:
    """Of interleaved runs, the first of which is left out."""
    times: dict[str, list[float]] = {name: [] for name in compiled}
    for _ in range(ROUNDS + 1):
        for name, function in compiled.items():
            start = time.perf_counter()
            jax.block_until_ready(function(*arrays))
            times[name].append(time.perf_counter() - start)
    temporaries = {
        name: int(c.memory_analysis().temp_size_in_bytes) for name, c in compiled.items()
    }
    return {name: Cost(tuple(t[1:]), temporaries[name]) for name, t in times.items()}
