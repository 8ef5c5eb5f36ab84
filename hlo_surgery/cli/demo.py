"""The demo: a decoder LM and an MLP, from the dump of a gradient to a comparison with `vmap` and,
where optax is installed, `micro_grad`; by model what each costs, then the verdict.
"""

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hlo_surgery.cli.output import print_json, print_table, print_text
from hlo_surgery.module import Module, load
from hlo_surgery.rewriting.autotune import timed
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
from hlo_surgery.wording import counted

LAYERS, WIDTH, HEADS, VOCABULARY, LENGTH, TEXTS = 2, 64, 4, 256, 32, 16
MLP_LAYERS, MLP_WIDTH, ROWS = 3, 256, 64


class DemoModel(NamedTuple):
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
# After as many seconds a program has run in enough rounds.
SECONDS = 0.5
STATISTICS = {"norms": norms(), "second moments": second_moment()}
GRADIENT, OURS, VMAP, MICRO_GRAD = "gradient alone", "hlo-surgery", "vmap", "micro_grad"
CHUNKS = {"chunks of 1": 1, "chunks of 8": 8, "whole batch": None}
LEGEND = (
    f"Every program runs once in each of {ROUNDS} rounds, slow ones in fewer. Times are medians, "
    "and so are ratios of times in one round to the gradient alone, brackets their middle half. "
    "Temporaries are the memory that XLA plans beside arguments and results."
)
# A compiled function, with its arguments.
Program = partial[Any]
WITHOUT_OPTAX = "With optax installed, its micro_grad is timed, too."


@dataclass(frozen=True)
class Cost:
    """Seconds of a run, in each of its rounds, their median, and bytes of temporaries that XLA
    plans for it.
    """

    seconds: float
    rounds: Sequence[float]
    temporaries: int


@dataclass(frozen=True)
class Demonstration:
    """A model, what was made of its dumped gradient and how it compares with `vmap`, and costs by
    name.
    """

    name: str
    sizes: str
    rewritten: str
    rewriting_seconds: float
    comparisons: tuple[Comparison, ...]
    costs: Mapping[str, Cost]


def show_demo(as_json: bool) -> bool:
    """Run the demo and show it; whether every result was equivalent to `vmap`'s."""
    shown: list[Demonstration] = []
    if not as_json:
        print_text(
            f"The gradient of a batch with {' and '.join(STATISTICS)} of its examples", "bold"
        )
    for model in (mlp(), decoder_lm()):
        shown.append(demonstrate(model))
        if not as_json:
            _print_demonstration(shown[-1])
    equivalent = all(c.passes for d in shown for c in d.comparisons)
    verdict = "equivalent" if equivalent else "not equivalent"
    if as_json:
        print_json({"models": shown, "verdict": verdict})
    else:
        print_text(LEGEND if find_spec("optax") else f"{LEGEND} {WITHOUT_OPTAX}")
        print_text(verdict, "green" if equivalent else "red")
    return equivalent


def demonstrate(model: DemoModel) -> Demonstration:
    """Dump the model's gradient, rewrite the dump, compile and run it, and hold it against
    `jit(vmap(grad))`.

    It is timed against `vmap` and `micro_grad`, this over the whole batch and in parts: one example
    after another is what suits a CPU, and so the fair one there.
    """
    original = _dumped(model)
    start = time.perf_counter()
    batch = range(len(original.arguments) - len(model.batch), len(original.arguments))
    rewritten = rewrite_module(original, batch=list(batch), statistics=STATISTICS)
    seconds = time.perf_counter() - start
    whole = (model.parameters, *model.batch)
    flat = jax.tree.leaves(whole)
    programs = {GRADIENT: _compiled(original.jitted, flat), OURS: _compiled(rewritten.jitted, flat)}
    programs |= {name: _compiled(jax.jit(f), whole) for name, f in rivals(model).items()}
    comparisons = _compare(rewritten, programs)
    return Demonstration(
        model.name, model.sizes, _said(rewritten), seconds, comparisons, _costs(programs)
    )


def _compiled(function: Any, arguments: Sequence[Any]) -> Program:
    return partial(function.lower(*arguments).compile(), *arguments)


def _dumped(model: DemoModel) -> Module:
    """The module of the model's gradient, lowered, written as text and read again."""
    lowered = jax.jit(jax.grad(model.loss)).lower(model.parameters, *model.batch)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "gradient.mlir")
        file.write_text(lowered.as_text(debug_info=True))
        return load(file)


def _said(rewritten: Module) -> str:
    """How many gradients there are, and which strategies make their statistics."""
    plan = rewritten.plan
    assert plan is not None
    taken = Counter(strategy for output in plan.outputs for strategy in output.strategies.values())
    strategies = ", ".join(f"{count} by {strategy}" for strategy, count in taken.items())
    gradients = counted(len(plan.outputs), "gradient")
    return f"{gradients} of {plan.batch_size} examples, statistics {strategies}"


def rivals(model: DemoModel) -> dict[str, Any]:
    """What else has these numbers, by name."""
    found = {VMAP: by_vmap(model.loss)}
    if find_spec("optax"):
        chunked = {f"{MICRO_GRAD}, {name}": by_micro_grad(model, n) for name, n in CHUNKS.items()}
        found = chunked | found
    return found


def norm(gradient: Any) -> Array:
    """Of all of one example's gradient."""
    return jnp.sqrt(jnp.stack([jnp.sum(g * g) for g in jax.tree.leaves(gradient)]).sum())


def squared(gradient: Any) -> Any:
    """Of every element."""
    return jax.tree.map(jnp.square, gradient)


def by_micro_grad(model: DemoModel, chunk: int | None) -> Any:
    """Gradient, norms and second moments by `optax.microbatching.micro_grad`."""
    from optax import microbatching

    function: Any = microbatching.micro_grad(
        model.loss,
        batch_argnums=range(1, 1 + len(model.batch)),
        microbatch_size=chunk,
        accumulator=microbatching.AccumulationType.MEAN,
        transform_fn=lambda gradient: (gradient, squared(gradient)),
        metrics_fn=norm,
    )

    def found(*arguments: Any) -> Any:
        (gradient, squares), beside = function(*arguments)
        return gradient, beside.metrics, squares

    return found


def by_vmap(loss: Callable[..., Array]) -> Any:
    """The same from all examples' gradients."""

    def found(parameters: Any, *batch: Array) -> Any:
        each = jax.vmap(lambda *one: jax.grad(loss)(parameters, *one))(*(x[:, None] for x in batch))
        gradient, squares = (
            jax.tree.map(lambda g: jnp.mean(g, 0), x) for x in (each, squared(each))
        )
        return gradient, jax.vmap(norm)(each), squares

    return found


def _compare(rewritten: Module, programs: Mapping[str, Program]) -> tuple[Comparison, ...]:
    got, want = (list(map(widened, jax.tree.leaves(programs[name]()))) for name in (OURS, VMAP))
    tolerance = relative_tolerance(epsilon(rewritten))
    triples = zip(rewritten.outputs, got, want, strict=True)
    return tuple(hold("output", p.name, g, w, tolerance * largest(w)) for p, g, w in triples)


def _costs(programs: Mapping[str, Any]) -> dict[str, Cost]:
    """Of interleaved runs; slow programs run in fewer rounds."""
    times = timed(programs, ROUNDS, SECONDS)
    planned = {n: int(f.func.memory_analysis().temp_size_in_bytes) for n, f in programs.items()}
    return {n: Cost(statistics.median(x), x, planned[n]) for n, x in times.items()}


def _print_demonstration(shown: Demonstration) -> None:
    columns = ("program", "time", "ratio", "temporaries", "ratio")
    gradient = shown.costs[GRADIENT]
    rows = (_row(name, cost, gradient) for name, cost in shown.costs.items())
    print_table(f"{shown.name}, {shown.sizes}", columns, rows)
    worst = max(shown.comparisons, key=lambda c: c.share)
    print_text(f"  {shown.rewritten}; rewritten in {shown.rewriting_seconds:.2f} s")
    print_text(
        f"  off by {worst.error:.1e} of the largest entry of vmap's at most, in {worst.name}"
    )


def _row(name: str, cost: Cost, gradient: Cost) -> Sequence[str]:
    shares = [own / its for own, its in zip(cost.rounds, gradient.rounds, strict=False)]
    least, middle, most = statistics.quantiles(shares, n=4, method="inclusive")
    return (
        name,
        f"{cost.seconds * 1e3:.2f} ms",
        f"{middle:.2f} x ({least:.2f} to {most:.2f})",
        f"{cost.temporaries / 1e6:.2f} MB",
        f"{cost.temporaries / max(gradient.temporaries, 1):.2f} x",
    )
