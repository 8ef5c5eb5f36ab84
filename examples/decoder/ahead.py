"""Steps compiled for TPUs that are not here: what each takes of a chip's memory, and what it sends.

    python -m examples.decoder.ahead --target tpu:v5e:4x4 --model-axis 4

needs `pip install '.[tpu]'`, and prints a row for each step: bytes of arguments, outputs,
temporaries and all together on one chip, as XLA plans them (outputs take the memory of arguments,
and on TPU the parts count gaps twice), and how many collectives the program has and runs.
"""

import argparse
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import optax
from jax.sharding import Mesh

import hlo_surgery as hs
import hlo_surgery.optimizers as ho
from examples.decoder import axes, model, run
from examples.decoder.by_hand import micro_adam_by_hand

SIZES = model.Sizes(layers=12, width=2048, heads=16, hidden=5632, vocabulary=32768, length=1024)
COLLECTIVE = re.compile(
    r"\b(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)
RATE = 1e-3


def plain(settings: run.Settings) -> tuple[Any, Any]:
    """The step as one would write it without this library, and its optimizer."""
    optimizer, loss = optax.adam(RATE), run.loss_of(settings)

    def step(params: Any, state: Any, tokens: jax.Array) -> tuple[Any, Any, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(params, tokens)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    return jax.jit(step, donate_argnums=(0, 1)), optimizer


def with_statistics(optimizer: Any, **asked: Any) -> Callable[[run.Settings], tuple[Any, Any]]:
    """The library's step with an optimizer, and the statistics that are logged."""

    def made(settings: run.Settings) -> tuple[Any, Any]:
        return hs.train_step(run.loss_of(settings), optimizer, **asked), optimizer

    return made


PRIVATE = ho.dp_sgd(0.1, max_norm=1.0, noise_multiplier=1.0, seed=0)
STEPS: dict[str, Callable[[run.Settings], tuple[Any, Any]]] = {
    "optax.adam": plain,
    "micro_adam": with_statistics(ho.micro_adam(RATE)),
    "micro_adam, norms": with_statistics(ho.micro_adam(RATE), statistics=run.LOGGED),
    "dp_sgd": with_statistics(PRIVATE),
    "MicroAdam by hand": micro_adam_by_hand,
    "MicroAdam and norms by hand": partial(micro_adam_by_hand, norms=True),
}


def lowered(settings: run.Settings, mesh: Mesh, made: tuple[Any, Any]) -> Any:
    """A step lowered for the devices of a mesh, from shapes alone."""
    step, optimizer = made
    layout = axes.LAYOUTS[settings.layout]
    key = jax.random.key(0)
    params = jax.eval_shape(lambda: model.init(key, settings.sizes))
    state = jax.eval_shape(optimizer.init, params)
    placed = axes.shardings(mesh, layout, model.AXES)
    tokens = jax.ShapeDtypeStruct((settings.batch, settings.sizes.length + 1), "int32")
    arguments = (
        axes.structs(params, placed),
        axes.structs(state, axes.shardings_of_state(state, params, placed)),
        axes.structs(tokens, run.place_of_tokens(mesh)),
    )
    with jax.set_mesh(mesh):
        return step.lower(*arguments)


def row(name: str, executable: Any, target: str) -> str:
    """A line of the table, in Markdown."""
    memory, cost = executable.memory_analysis(), hs.targets.cost_of(executable, target)
    sizes = (
        memory.argument_size_in_bytes,
        memory.output_size_in_bytes,
        memory.temp_size_in_bytes,
        cost.peak_bytes,
    )
    written = Counter(COLLECTIVE.findall(executable.as_text()))
    cells = [name, *(f"{size / 1e6:,.1f}" for size in sizes), listed(written)]
    return f"| {' | '.join([*cells, listed(cost.collectives)])} |"


def listed(counts: Mapping[str, int | None]) -> str:
    """How often each kind of collective occurs."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="tpu:v5e:4x4")
    parser.add_argument("--layout", choices=axes.LAYOUTS, default="fsdp_tensor")
    parser.add_argument("--model-axis", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=2)
    parser.add_argument("--texts", type=int, default=4, help='for each device along "data"')
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    return parser.parse_args(arguments)


def setting(options: argparse.Namespace) -> tuple[run.Settings, Mesh]:
    """What is trained, and the mesh of the target's devices."""
    hs.targets.without_tpu()
    mesh = axes.mesh_over(hs.targets.find_target(options.target).devices, options.model_axis)
    batch = options.texts * mesh.shape["data"]
    settings = run.Settings(SIZES, options.layout, batch=batch, microbatches=options.microbatches)
    return settings, mesh


def main() -> None:
    """Read the options, and print the table."""
    options = options_of()
    settings, mesh = setting(options)
    print("| step | arguments | outputs | temporaries | peak | collectives | as they run |")
    print("|---|---|---|---|---|---|---|")
    for name in options.steps:
        executable = lowered(settings, mesh, STEPS[name](settings)).compile()
        print(row(name, executable, options.target), flush=True)


if __name__ == "__main__":
    main()
