"""Train the language model, log what the examples' gradients say, and go on where it stopped.

    python -m examples.decoder.train --folder decoder_run --steps 100

On eight virtual devices, parameters and layers split among them:

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m examples.decoder.train \\
        --layout fsdp_tensor --model-axis 2

Stop it at any time; the same command goes on from the last checkpoint, to the same numbers. What is
logged is of single examples, and so is not private with `dp_sgd` either.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

import hlo_surgery.optimizers as ho
from examples.decoder import axes, text
from examples.decoder.checkpoints import Checkpoints
from examples.decoder.run import (
    OPTIMIZERS,
    Settings,
    initial,
    place_of_tokens,
    places,
    step_of,
)


class State(NamedTuple):
    """What a checkpoint holds: all that a step changes."""

    params: Any
    optimizer: Any


def train(
    settings: Settings, mesh: Mesh, steps: int, folder: Path | None = None, every: int = 10
) -> Iterator[tuple[int, State, dict[str, float]]]:
    """Each step's number, what it made, and what is logged of it.

    With a folder, the state is kept in it every so many steps, and the last one there is gone on
    with.
    """
    checkpoints = Checkpoints(folder) if folder else None
    with jax.set_mesh(mesh):
        start, state = _begun(settings, mesh, checkpoints)
        step = step_of(settings)
        for number in range(start, steps):
            state, logged = _stepped(settings, mesh, step, number, state)
            if checkpoints and (number + 1) % every == 0:
                checkpoints.save(number + 1, state)
            yield number, state, logged


def _begun(settings: Settings, mesh: Mesh, checkpoints: Checkpoints | None) -> tuple[int, State]:
    """The number of the first step and the state before it."""
    make = partial(_first, settings)
    placed = _places(settings, mesh)
    if checkpoints and (last := checkpoints.last(axes.structs(jax.eval_shape(make), placed))):
        return last
    return 0, jax.jit(make, out_shardings=placed)()


def _first(settings: Settings) -> State:
    return State(*initial(settings))


def _places(settings: Settings, mesh: Mesh) -> State:
    return State(*places(settings, mesh))


def _stepped(
    settings: Settings, mesh: Mesh, step: Any, number: int, state: State
) -> tuple[State, dict[str, float]]:
    length = settings.sizes.length
    tokens = text.batch(number, settings.batch, length, place_of_tokens(mesh))
    params, optimizer, metrics = step(state.params, state.optimizer, tokens)
    logged = {k: float(v) for k, v in _observed(metrics, optimizer).items()}
    return State(params, optimizer), logged


@jax.jit
def _observed(metrics: Any, optimizer: Any) -> dict[str, jax.Array]:
    """The numbers that are logged."""
    means = {f"norm of {name}": jnp.mean(norm) for name, norm in metrics["norms"].items()}
    return {
        "loss": metrics["loss"],
        **means,
        "noise scale": ho.tracked_noise_scale(optimizer).ratio,
    }


def main() -> None:
    """Read the options, and print a line for each step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layout", choices=axes.LAYOUTS, default="data")
    parser.add_argument("--model-axis", type=int, default=1, help='devices along "model"')
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="micro_adam")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where checkpoints are kept")
    options = parser.parse_args()
    settings = Settings(layout=options.layout, optimizer=options.optimizer, seed=options.seed)
    mesh = axes.mesh_over(jax.devices(), options.model_axis)
    for number, _, logged in train(settings, mesh, options.steps, options.folder):
        print(number, *(f"{name} {value:.4g}" for name, value in logged.items()), sep="  ")


if __name__ == "__main__":
    main()
