"""The demo on the screen: each step in a line, time and temporaries side by side, the verdict.

The demo's models in plain JAX: a decoder LM and an MLP, with random parameters and batch.

The demo: one model through every step, from its dump to a comparison with `vmap`.
"""

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from hlo_surgery.cli.output import print_json, print_table, print_text, waiting
from hlo_surgery.dumps import counted
from hlo_surgery.module import Module, load
from hlo_surgery.plan import quantity
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

LAYERS, WIDTH, HEADS, VOCABULARY, LENGTH, TEXTS = 2, 64, 4, 256, 32, 16
MLP_LAYERS, MLP_WIDTH, ROWS = 3, 256, 64


@dataclass(frozen=True)
class DemoModel:
    """A mean loss of (parameters, *batch), and arguments; examples lie along batch axes 0."""

    name: str
    loss: Callable[..., Array]
    parameters: Any
    batch: tuple[Array, ...]


def mlp() -> DemoModel:
    """Dense layers with biases, mean squared error."""
    keys = jax.random.split(jax.random.key(0), MLP_LAYERS + 2)
    weights = [_normal(key, MLP_WIDTH, MLP_WIDTH) for key in keys[2:]]
    parameters = [{"kernel": w, "bias": jnp.zeros(MLP_WIDTH)} for w in weights]
    x, y = (jax.random.normal(key, (ROWS, MLP_WIDTH)) for key in keys[:2])
    return DemoModel("MLP", mlp_loss, parameters, (x, y))


def mlp_loss(parameters: Any, x: Array, y: Array) -> Array:
    """The mean over the examples of the squared error."""
    for layer in parameters:
        x = jax.nn.relu(x @ layer["kernel"] + layer["bias"])
    return jnp.mean(jnp.sum((x - y) ** 2, -1))


def decoder_lm() -> DemoModel:
    """Causal attention and gated layers under RMS norms; the embedding is the head as well."""
    keys = jax.random.split(jax.random.key(1), LAYERS + 3)
    parameters = {
        "embedding": _normal(keys[0], VOCABULARY, WIDTH),
        "positions": _normal(keys[1], LENGTH, WIDTH),
        "blocks": [_block_parameters(key) for key in keys[3:]],
        "final_norm": jnp.ones(WIDTH),
    }
    tokens = jax.random.randint(keys[2], (TEXTS, LENGTH + 1), 0, VOCABULARY)
    return DemoModel("decoder LM", lm_loss, parameters, (tokens,))


def lm_loss(parameters: Any, tokens: Array) -> Array:
    """The mean cross-entropy of the next token, over examples and positions."""
    x = parameters["embedding"][tokens[:, :-1]] + parameters["positions"]
    for block in parameters["blocks"]:
        x = x + _attention(_rms_norm(x, block["attention_norm"]), block)
        y = _rms_norm(x, block["mlp_norm"])
        x = x + (jax.nn.silu(y @ block["gate"]) * (y @ block["up"])) @ block["down"]
    logits = _rms_norm(x, parameters["final_norm"]) @ parameters["embedding"].T
    taken = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1)
    return -jnp.mean(taken)


def _attention(x: Array, block: Any) -> Array:
    heads = (*x.shape[:2], HEADS, WIDTH // HEADS)
    query, key, value = (jnp.reshape(x @ block[name], heads) for name in ("query", "key", "value"))
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / (WIDTH // HEADS) ** 0.5
    causal = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
    return jnp.reshape(jnp.einsum("bhqk,bkhd->bqhd", weights, value), x.shape) @ block["out"]


def _rms_norm(x: Array, scale: Array) -> Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def _block_parameters(key: Array) -> dict[str, Array]:
    shapes = dict.fromkeys(("query", "key", "value", "out"), (WIDTH, WIDTH))
    shapes |= {"gate": (WIDTH, 2 * WIDTH), "up": (WIDTH, 2 * WIDTH), "down": (2 * WIDTH, WIDTH)}
    keys = jax.random.split(key, len(shapes))
    kernels = {
        name: _normal(k, *shape) for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    return {**kernels, "attention_norm": jnp.ones(WIDTH), "mlp_norm": jnp.ones(WIDTH)}


def _normal(key: Array, rows: int, columns: int) -> Array:
    return jax.random.normal(key, (rows, columns)) / rows**0.5


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


def show_demo(as_json: bool) -> bool:
    """Run the demo and show it; whether every result was equivalent to `vmap`'s."""
    shown: list[Demonstration] = []
    with tempfile.TemporaryDirectory() as folder:
        for model in (mlp(), decoder_lm()):
            with waiting(f"{model.name}: dump, inspect, rewrite, compile, run", as_json):
                file = dump(model, Path(folder))
                shown.append(demonstrate(model, file))
            if not as_json:
                _print_steps(shown[-1], file)
    equivalent = all(c.passes for d in shown for c in d.comparisons)
    verdict = "equivalent" if equivalent else "not equivalent"
    if as_json:
        print_json({"models": [_summary(d) for d in shown], "verdict": verdict})
    else:
        _print_costs(shown)
        print_text(verdict, "green" if equivalent else "red")
    return equivalent


def _print_steps(demonstration: Demonstration, file: Path) -> None:
    original, plan = demonstration.original, demonstration.rewritten.plan
    assert plan is not None
    taken = Counter(strategy for output in plan.outputs for strategy in output.strategies.values())
    strategies = ", ".join(f"{count} by {strategy}" for strategy, count in taken.items())
    worst = max(demonstration.comparisons, key=lambda c: c.share)
    print_text(demonstration.name, "bold")
    print_text(f"  dump      {file.name}, {quantity(file.stat().st_size)}B of StableHLO")
    gradients = f"{counted(len(original.outputs), 'gradient')} of {plan.batch_size} examples"
    print_text(f"  inspect   {len(original.arguments)} arguments, {gradients}")
    print_text(f"  rewrite   second moments: {strategies}; {demonstration.rewriting_seconds:.2f} s")
    print_text(
        f"  compare   with vmap: off by {worst.error:.1e} of the largest entry at most, in "
        f"{worst.name}"
    )


def _print_costs(shown: list[Demonstration]) -> None:
    rows: list[list[str]] = []
    for demonstration in shown:
        plain = demonstration.costs["plain"]
        for name, cost in demonstration.costs.items():
            time, memory = (
                cost.seconds / plain.seconds,
                cost.temporaries / max(plain.temporaries, 1),
            )
            costs = [
                f"{cost.seconds * 1e3:.2f} ms",
                f"{time:.2f} x",
                f"{cost.temporaries / 1e6:.2f} MB",
                f"{memory:.2f} x",
            ]
            rows.append([demonstration.name, name, *costs])
    title = "gradient and second moments"
    print_table(title, ("model", "program", "time", "", "temporaries", ""), rows)
    print_text(
        f"times are medians of {ROUNDS} rounds, in each of which every program ran once; shares "
        "are of the same round, the smallest and the largest in brackets"
    )
    for demonstration in shown:
        print_text(_beside_others(demonstration))


def _beside_others(demonstration: Demonstration) -> str:
    """What rewriting costs, and buys beside the faster of the two ways to use `vmap`."""
    costs = demonstration.costs
    name = min((VMAP, VMAP_OF_ONE), key=lambda name: costs[name].seconds)
    own, plain, faster = costs["rewritten"], costs["plain"], costs[name]
    memory = own.temporaries / max(faster.temporaries, 1)
    return (
        f"{demonstration.name}: {_spread(own.shares(plain))} of plain's time; "
        f"{_spread(own.shares(faster))} of that of {name!r}, which is the faster, and "
        f"{memory:.2f} of its temporaries"
    )


def _spread(shares: list[float]) -> str:
    """The median, and the smallest and largest, of what is sorted."""
    return f"{statistics.median(shares):.2f} ({shares[0]:.2f} to {shares[-1]:.2f})"


def _as_plain(cost: Cost) -> dict[str, object]:
    return {"seconds": cost.seconds, "rounds": cost.rounds, "temporaries": cost.temporaries}


def _summary(demonstration: Demonstration) -> dict[str, object]:
    return {
        "name": demonstration.name,
        "rewriting_seconds": demonstration.rewriting_seconds,
        "comparisons": demonstration.comparisons,
        "costs": {name: _as_plain(cost) for name, cost in demonstration.costs.items()},
    }
