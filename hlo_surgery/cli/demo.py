"""The demo on the screen: by model what it costs beside others, then the steps, then the verdict.

The demo's models in plain JAX: a decoder LM and an MLP, with random parameters and batch.

The demo: one model through every step, from its dump to a comparison with `vmap` and, where optax
is installed, `micro_grad`.
"""

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hlo_surgery.cli.output import print_json, print_table, print_text, waiting
from hlo_surgery.dumps import counted
from hlo_surgery.module import Module, load
from hlo_surgery.plan import quantity
from hlo_surgery.rewriting.pipeline import rewrite_module
from hlo_surgery.statistics.elementwise import second_moment
from hlo_surgery.statistics.norms import norms
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
    sizes: str
    loss: Callable[..., Array]
    parameters: Any
    batch: tuple[Array, ...]


def mlp() -> DemoModel:
    """Dense layers with biases, mean squared error."""
    rng = np.random.default_rng(0)
    weights = [_normal(rng, MLP_WIDTH, MLP_WIDTH) for _ in range(MLP_LAYERS)]
    parameters = [{"kernel": w, "bias": jnp.zeros(MLP_WIDTH)} for w in weights]
    x, y = (jnp.asarray(rng.normal(size=(ROWS, MLP_WIDTH)), "float32") for _ in range(2))
    sizes = f"{MLP_LAYERS} layers of {MLP_WIDTH}, {ROWS} examples"
    return DemoModel("MLP", sizes, mlp_loss, parameters, (x, y))


def mlp_loss(parameters: Any, x: Array, y: Array) -> Array:
    """The mean over the examples of the squared error."""
    for layer in parameters:
        x = jax.nn.relu(x @ layer["kernel"] + layer["bias"])
    return jnp.mean(jnp.sum((x - y) ** 2, -1))


def decoder_lm() -> DemoModel:
    """Causal attention and gated layers under RMS norms; the embedding is the head as well."""
    rng = np.random.default_rng(1)
    parameters = {
        "embedding": _normal(rng, VOCABULARY, WIDTH),
        "positions": _normal(rng, LENGTH, WIDTH),
        "blocks": [_block_parameters(rng) for _ in range(LAYERS)],
        "final_norm": jnp.ones(WIDTH),
    }
    tokens = jnp.asarray(rng.integers(0, VOCABULARY, (TEXTS, LENGTH + 1)), "int32")
    sizes = f"{LAYERS} layers of {WIDTH}, {TEXTS} texts of {LENGTH} tokens"
    return DemoModel("decoder LM", sizes, lm_loss, parameters, (tokens,))


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


def _block_parameters(rng: np.random.Generator) -> dict[str, Array]:
    shapes = dict.fromkeys(("query", "key", "value", "out"), (WIDTH, WIDTH))
    shapes |= {"gate": (WIDTH, 2 * WIDTH), "up": (WIDTH, 2 * WIDTH), "down": (2 * WIDTH, WIDTH)}
    kernels = {name: _normal(rng, *shape) for name, shape in shapes.items()}
    return {**kernels, "attention_norm": jnp.ones(WIDTH), "mlp_norm": jnp.ones(WIDTH)}


def _normal(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """Drawn by NumPy: of JAX's every shape would be compiled."""
    return jnp.asarray(rng.normal(size=(rows, columns)) / rows**0.5, "float32")


ROUNDS = 7
# After as many seconds a program has run in enough rounds, if these are three.
SECONDS, LEAST_ROUNDS = 0.5, 3
STATISTICS = {"norms": norms(), "second moments": second_moment()}
GRADIENT, OURS, VMAP, MICRO_GRAD = "gradient alone", "hlo-surgery", "vmap", "micro_grad"
# Of which the fastest is shown.
CHUNKS = (1, 8)
Means = Callable[[Callable[..., Any], Sequence[jax.Array]], Any]


@dataclass(frozen=True)
class Cost:
    """Seconds of a run, in each of its rounds, and bytes of temporaries that XLA plans for it."""

    rounds: tuple[float, ...]
    temporaries: int

    @property
    def seconds(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds)

    def shares(self, other: "Cost") -> list[float]:
        """Of the time of another, in each round of both."""
        return [own / its for own, its in zip(self.rounds, other.rounds, strict=False)]


@dataclass(frozen=True)
class Demonstration:
    """A dumped module, the rewritten one, its comparison with `vmap`, and the costs by name."""

    model: DemoModel
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

    It is timed against `vmap` and `micro_grad`, each over the whole batch and in parts: one example
    after another is what suits a CPU, and so the fair one there.
    """
    original = load(file)
    start = time.perf_counter()
    batch = range(len(original.arguments) - len(model.batch), len(original.arguments))
    rewritten = rewrite_module(original, batch=list(batch), statistics=STATISTICS)
    rewriting_seconds = time.perf_counter() - start
    arrays = [*jax.tree.leaves(model.parameters), *model.batch]
    functions = {GRADIENT: original.jitted, OURS: rewritten.jitted} | rivals(model)
    compiled = {name: function.lower(*arrays).compile() for name, function in functions.items()}
    comparisons = _compare(rewritten, compiled, arrays)
    costs = best_of_chunks(_costs(compiled, arrays))
    return Demonstration(model, original, rewritten, rewriting_seconds, comparisons, costs)


def rivals(model: DemoModel) -> dict[str, Any]:
    """What else has these numbers, jitted, by name: without optax, `vmap` in a scan for its own."""
    if find_spec("optax"):
        found = {f"{MICRO_GRAD}, chunks of {n}": by_micro_grad(model, n) for n in CHUNKS}
        found[f"{MICRO_GRAD}, whole batch"] = by_micro_grad(model, None)
    else:
        found = {f"{VMAP} in a scan": by_vmap(model, one_by_one)}
    found[VMAP] = by_vmap(model, all_at_once)
    return {name: jax.jit(function) for name, function in found.items()}


def best_of_chunks(costs: Mapping[str, Cost]) -> dict[str, Cost]:
    """Of those in chunks the fastest alone."""
    chunked = {name: cost for name, cost in costs.items() if ", chunks of " in name}
    fastest = min(chunked, key=lambda name: chunked[name].seconds, default="")
    return {name: c for name, c in costs.items() if name == fastest or name not in chunked}


def of_flat(model: DemoModel) -> tuple[Callable[..., Array], int]:
    """The loss of the flat arguments, and how many of these are parameters."""
    tree = jax.tree.structure(model.parameters)
    count = tree.num_leaves
    return lambda *a: model.loss(jax.tree.unflatten(tree, a[:count]), *a[count:]), count


def norm(gradients: Any) -> Array:
    """Of all of one example's gradients together."""
    return jnp.sqrt(jnp.stack([jnp.sum(g * g) for g in gradients]).sum())


def by_micro_grad(model: DemoModel, chunk: int | None) -> Any:
    """The same, of the flat arguments, by `optax.microbatching.micro_grad`."""
    from optax import microbatching

    loss, count = of_flat(model)
    function: Any = microbatching.micro_grad(
        loss,
        argnums=range(count),
        batch_argnums=range(count, count + len(model.batch)),
        microbatch_size=chunk,
        accumulator=microbatching.AccumulationType.MEAN,
        transform_fn=lambda gradients: (gradients, jax.tree.map(jnp.square, gradients)),
        metrics_fn=norm,
    )

    def flat(*arrays: jax.Array) -> list[jax.Array]:
        (gradients, squares), beside = function(*arrays)
        return [*gradients, beside.metrics, *squares]

    return flat


def by_vmap(model: DemoModel, means: Means) -> Any:
    """Gradient, norms and second moments, of the flat arguments, from all examples' gradients."""
    loss, count = of_flat(model)

    def flat(*arrays: jax.Array) -> list[jax.Array]:
        def powers(*one: jax.Array) -> Any:
            gradients = jax.grad(loss, range(count))(*arrays[:count], *one)
            return (gradients, [g * g for g in gradients]), norm(gradients)

        of_one = [array[:, None] for array in arrays[count:]]
        (gradients, squares), lengths = means(powers, of_one)
        return [*gradients, lengths, *squares]

    return flat


def all_at_once(of_one: Callable[..., Any], batch: Sequence[jax.Array]) -> Any:
    """The mean over the examples of the first of two that a function makes of one, by `jax.vmap`,
    and the second of each.
    """
    first, second = jax.vmap(of_one)(*batch)
    return jax.tree.map(lambda x: jnp.mean(x, 0), first), second


def one_by_one(of_one: Callable[..., Any], batch: Sequence[jax.Array]) -> Any:
    """The same, added up example by example."""
    shapes, _ = jax.eval_shape(of_one, *(x[0] for x in batch))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    def step(total: Any, one: Sequence[jax.Array]) -> tuple[Any, Any]:
        first, second = of_one(*one)
        return jax.tree.map(jnp.add, total, first), second

    total, second = jax.lax.scan(step, zeros, tuple(batch))
    return jax.tree.map(lambda x: x / len(batch[0]), total), second


def _compare(
    rewritten: Module, compiled: Mapping[str, Any], arrays: Sequence[Any]
) -> tuple[Comparison, ...]:
    got, want = (list(map(widened, compiled[name](*arrays))) for name in (OURS, VMAP))
    tolerance = relative_tolerance(epsilon(rewritten))
    names = [port.name for port in rewritten.outputs]
    return tuple(
        hold("output", n, g, w, tolerance * largest(w))
        for n, g, w in zip(names, got, want, strict=True)
    )


def _costs(compiled: Mapping[str, Any], arrays: Sequence[Any]) -> dict[str, Cost]:
    """Of interleaved runs, the first of which is left out; slow programs run in fewer rounds."""
    times: dict[str, list[float]] = {name: [] for name in compiled}
    for _ in range(ROUNDS + 1):
        for name, function in compiled.items():
            if len(times[name]) <= LEAST_ROUNDS or sum(times[name][1:]) < SECONDS:
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
    if not as_json:
        print_text(
            f"The gradient of a batch with {' and '.join(STATISTICS)} of its examples", "bold"
        )
    with tempfile.TemporaryDirectory() as folder:
        for model in (mlp(), decoder_lm()):
            with waiting(f"{model.name}: dump, inspect, rewrite, compile, run", as_json):
                file = dump(model, Path(folder))
                shown.append(demonstrate(model, file))
            if not as_json:
                _print_costs(shown[-1])
                _print_steps(shown[-1], file)
    equivalent = all(c.passes for d in shown for c in d.comparisons)
    verdict = "equivalent" if equivalent else "not equivalent"
    if as_json:
        print_json({"models": [_summary(d) for d in shown], "verdict": verdict})
    else:
        print_text(LEGEND if find_spec("optax") else f"{LEGEND} {WITHOUT_OPTAX}")
        print_text(verdict, "green" if equivalent else "red")
    return equivalent


LEGEND = (
    f"Every program runs once in each of {ROUNDS} rounds, slow ones in fewer. Times are medians, "
    "ratios those to the gradient alone, brackets the middle half of the rounds. Temporaries are "
    "the memory that XLA plans beside arguments and results."
)
WITHOUT_OPTAX = "With optax installed, its micro_grad is timed, too."


def _print_costs(demonstration: Demonstration) -> None:
    costs = demonstration.costs
    gradient, ours = costs[GRADIENT], costs[OURS]
    rows = [
        (
            name,
            f"{cost.seconds * 1e3:.2f} ms",
            f"{cost.seconds / gradient.seconds:.2f} x",
            f"{cost.temporaries / 1e6:.2f} MB",
            f"{cost.temporaries / max(gradient.temporaries, 1):.2f} x",
        )
        for name, cost in costs.items()
    ]
    model = demonstration.model
    columns = ("program", "time", "ratio", "temporaries", "ratio")
    print_table(f"{model.name}, {model.sizes}", columns, rows)
    print_text(f"  {OURS}: {_spread(ours.shares(gradient))} times the gradient's time")
    for kind in (MICRO_GRAD, VMAP):
        if own := {name: cost for name, cost in costs.items() if name.startswith(kind)}:
            print_text(_beside(min(own, key=lambda name: own[name].seconds), costs))


def _beside(name: str, costs: Mapping[str, Cost]) -> str:
    """What a rival takes, as multiples of ours."""
    rival, ours = costs[name], costs[OURS]
    memory = rival.temporaries / max(ours.temporaries, 1)
    time = _spread(rival.shares(ours))
    return f"  {name}: {time} times hlo-surgery's time, {_times(memory)} times its temporaries"


def _spread(shares: list[float]) -> str:
    """The median, and the middle half."""
    least, middle, most = statistics.quantiles(shares, n=4, method="inclusive")
    return f"{_times(middle)} ({_times(least)} to {_times(most)})"


def _times(share: float) -> str:
    return f"{share:.2f}" if share < 10 else f"{share:.0f}"


def _print_steps(demonstration: Demonstration, file: Path) -> None:
    original, plan = demonstration.original, demonstration.rewritten.plan
    assert plan is not None
    taken = Counter(strategy for output in plan.outputs for strategy in output.strategies.values())
    strategies = ", ".join(f"{count} by {strategy}" for strategy, count in taken.items())
    worst = max(demonstration.comparisons, key=lambda c: c.share)
    print_text(f"  dump      {file.name}, {quantity(file.stat().st_size)}B of StableHLO")
    gradients = f"{counted(len(original.outputs), 'gradient')} of {plan.batch_size} examples"
    print_text(f"  inspect   {len(original.arguments)} arguments, {gradients}")
    print_text(f"  rewrite   {strategies}; {demonstration.rewriting_seconds:.2f} s")
    print_text(
        f"  compare   with vmap: off by {worst.error:.1e} of the largest entry at most, in "
        f"{worst.name}"
    )


def _as_plain(cost: Cost) -> dict[str, object]:
    return {"seconds": cost.seconds, "rounds": cost.rounds, "temporaries": cost.temporaries}


def _summary(demonstration: Demonstration) -> dict[str, object]:
    return {
        "name": demonstration.model.name,
        "rewriting_seconds": demonstration.rewriting_seconds,
        "comparisons": demonstration.comparisons,
        "costs": {name: _as_plain(cost) for name, cost in demonstration.costs.items()},
    }
