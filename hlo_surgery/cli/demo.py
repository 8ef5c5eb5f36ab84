"""The demo: a decoder LM and an MLP in JAX, each from its dump to a comparison with `vmap`."""

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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


@dataclass
class Cost:
    """Bytes of temporaries that XLA plans for a run, and its seconds in each round."""

    temporaries: int
    rounds: list[float] = field(default_factory=list[float])

    @property
    def seconds(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds)

    def of(self, other: "Cost") -> str:
        """Of the time of another, round by round: the median, the smallest and the largest."""
        shares = [own / its for own, its in zip(self.rounds, other.rounds, strict=True)]
        return f"{statistics.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})"


@dataclass(frozen=True)
class Demonstration:
    """What there is to say of a model's steps, its comparison with `vmap`, and costs by name."""

    name: str
    said: dict[str, str]
    rewriting_seconds: float
    comparisons: tuple[Comparison, ...]
    costs: dict[str, Cost]


def demonstrate(model: DemoModel, folder: Path) -> Demonstration:
    """Dump the model's gradient, rewrite and run it, and hold it against `jit(vmap(grad))`.

    What it is timed against is `vmap` over the whole batch and over one example after another,
    which on CPU is the faster of the two, and so the fair one.
    """
    lowered = jax.jit(jax.grad(model.loss)).lower(model.parameters, *model.batch)
    file = folder / f"{model.name.replace(' ', '_')}.mlir"
    file.write_text(lowered.as_text(debug_info=True))
    original = load(file)
    start = time.perf_counter()
    arguments = len(original.arguments)
    batch = range(arguments - len(model.batch), arguments)
    rewritten = rewrite_module(original, batch=list(batch), statistics=second_moment())
    seconds = time.perf_counter() - start
    functions = {
        "plain": original.jitted,
        "rewritten": rewritten.jitted,
        VMAP_OF_ONE: jax.jit(by_vmap(model, one_by_one)),
        VMAP: jax.jit(by_vmap(model, all_at_once)),
    }
    arrays = [*jax.tree.leaves(model.parameters), *model.batch]
    compiled = {name: function.lower(*arrays).compile() for name, function in functions.items()}
    comparisons = _compare(rewritten, compiled["rewritten"](*arrays), compiled[VMAP](*arrays))
    said = _steps(file, original, rewritten, max(comparisons, key=lambda c: c.share), seconds)
    return Demonstration(model.name, said, seconds, comparisons, _costs(compiled, arrays))


def by_vmap(model: DemoModel, means: Callable[..., Any]) -> Any:
    """Gradient and second moment, of the flat arguments, from all examples' gradients."""
    tree = jax.tree.structure(model.parameters)

    def flat(*arrays: Array) -> list[Array]:
        parameters = jax.tree.unflatten(tree, arrays[: tree.num_leaves])

        def powers(*one: Array) -> Any:
            gradients = jax.tree.leaves(jax.grad(model.loss)(parameters, *one))
            return [*gradients, *(g * g for g in gradients)]

        return means(powers, [array[:, None] for array in arrays[tree.num_leaves :]])

    return flat


def all_at_once(of_one: Callable[..., Any], batch: Sequence[Array]) -> Any:
    """The mean over the examples of what a function makes of one, by `jax.vmap`."""
    return jax.tree.map(lambda x: jnp.mean(x, 0), jax.vmap(of_one)(*batch))


def one_by_one(of_one: Callable[..., Any], batch: Sequence[Array]) -> Any:
    """The same, added up example by example."""
    shapes = jax.eval_shape(of_one, *(x[0] for x in batch))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    total, _ = jax.lax.scan(
        lambda total, one: (jax.tree.map(jnp.add, total, of_one(*one)), None), zeros, tuple(batch)
    )
    return jax.tree.map(lambda x: x / len(batch[0]), total)


def _compare(rewritten: Module, got: Any, want: Any) -> tuple[Comparison, ...]:
    tolerance = relative_tolerance(epsilon(rewritten))
    triples = zip(rewritten.outputs, map(widened, got), map(widened, want), strict=True)
    return tuple(hold("output", p.name, g, w, tolerance * largest(w)) for p, g, w in triples)


def _costs(compiled: dict[str, Any], arrays: Sequence[Any]) -> dict[str, Cost]:
    """Of interleaved runs, the first of which is left out."""
    costs = {n: Cost(c.memory_analysis().temp_size_in_bytes) for n, c in compiled.items()}
    for number in range(ROUNDS + 1):
        for name, function in compiled.items():
            start = time.perf_counter()
            jax.block_until_ready(function(*arrays))
            if number:
                costs[name].rounds.append(time.perf_counter() - start)
    return costs


def _steps(
    file: Path, original: Module, rewritten: Module, worst: Comparison, seconds: float
) -> dict[str, str]:
    plan = rewritten.plan
    assert plan is not None
    taken = Counter(strategy for output in plan.outputs for strategy in output.strategies.values())
    strategies = ", ".join(f"{count} by {strategy}" for strategy, count in taken.items())
    gradients = f"{counted(len(original.outputs), 'gradient')} of {plan.batch_size} examples"
    off = f"{worst.error:.1e} of the largest entry at most, in {worst.name}"
    return {
        "dump": f"{file.name}, {quantity(file.stat().st_size)}B of StableHLO",
        "inspect": f"{len(original.arguments)} arguments, {gradients}",
        "rewrite": f"second moments: {strategies}; {seconds:.2f} s",
        "compare": f"with vmap: off by {off}",
    }


def show_demo(as_json: bool) -> bool:
    """Run the demo and show it; whether every result was equivalent to `vmap`'s."""
    shown: list[Demonstration] = []
    with tempfile.TemporaryDirectory() as folder:
        for model in (mlp(), decoder_lm()):
            with waiting(f"{model.name}: dump, inspect, rewrite, compile, run", as_json):
                shown.append(demonstrate(model, Path(folder)))
            if not as_json:
                print_text(model.name, "bold")
                for step, words in shown[-1].said.items():
                    print_text(f"  {step:9} {words}")
    equivalent = all(c.passes for d in shown for c in d.comparisons)
    verdict = "equivalent" if equivalent else "not equivalent"
    if as_json:
        print_json({"models": [_summary(d) for d in shown], "verdict": verdict})
    else:
        _print_costs(shown)
        print_text(verdict, "green" if equivalent else "red")
    return equivalent


def _print_costs(shown: Sequence[Demonstration]) -> None:
    rows: list[list[str]] = []
    for each in shown:
        plain = each.costs["plain"]
        for name, cost in each.costs.items():
            seconds, bytes_ = cost.seconds, cost.temporaries
            times = [f"{seconds * 1e3:.2f} ms", f"{seconds / plain.seconds:.2f} x"]
            memory = [f"{bytes_ / 1e6:.2f} MB", f"{bytes_ / max(plain.temporaries, 1):.2f} x"]
            rows.append([each.name, name, *times, *memory])
    title = "gradient and second moments"
    print_table(title, ("model", "program", "time", "", "temporaries", ""), rows)
    print_text(
        f"times are medians of {ROUNDS} rounds, in each of which every program ran once; shares "
        "are of the same round, the smallest and the largest in brackets"
    )
    for each in shown:
        name = min((VMAP, VMAP_OF_ONE), key=lambda name: each.costs[name].seconds)
        own, plain, faster = (each.costs[key] for key in ("rewritten", "plain", name))
        print_text(
            f"{each.name}: {own.of(plain)} of plain's time; {own.of(faster)} of that of {name!r}, "
            f"which is the faster, and {own.temporaries / max(faster.temporaries, 1):.2f} of its "
            "temporaries"
        )


def _summary(shown: Demonstration) -> dict[str, object]:
    costs = {
        name: {"seconds": c.seconds, "rounds": c.rounds, "temporaries": c.temporaries}
        for name, c in shown.costs.items()
    }
    own = {"rewriting_seconds": shown.rewriting_seconds, "comparisons": shown.comparisons}
    return {"name": shown.name, **own, "costs": costs}
