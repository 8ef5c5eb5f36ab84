"""A run: what it trains, where that lies, and its step."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import optax
from jax.sharding import Mesh, NamedSharding

import hlo_surgery as hs
import hlo_surgery.optimizers as ho
from examples.decoder import axes, model
from examples.decoder.microbatches import by_microbatch

# Norms of the examples' gradients in each group of parameters: a few numbers an example.
LOGGED = {"norms": hs.norms(per=model.GROUPS)}


@dataclass(frozen=True)
class Settings:
    """What a run is. `batch` is the number of texts in a step, over all devices.

    The seed is that of the parameters, and of the noise of `dp_sgd`, for which it must be a secret.
    """

    sizes: model.Sizes = field(default_factory=model.Sizes)
    layout: str = "data"
    optimizer: str = "micro_adam"
    batch: int = 16
    microbatches: int = 2
    seed: int = 0


OPTIMIZERS: dict[str, Callable[[Settings], Any]] = {
    "adam": lambda settings: optax.adam(3e-3),
    "micro_adam": lambda settings: ho.micro_adam(3e-3),
    "dp_sgd": lambda settings: ho.dp_sgd(
        0.5, max_norm=1.0, noise_multiplier=0.5, seed=settings.seed
    ),
}


def optimizer_of(settings: Settings) -> Any:
    """The optimizer, and before it what keeps the noise scale."""
    return optax.chain(ho.track_noise_scale(0.95), OPTIMIZERS[settings.optimizer](settings))


def loss_of(settings: Settings) -> Callable[..., Any]:
    """The mean loss of (parameters, tokens)."""
    layout = axes.LAYOUTS[settings.layout]
    return by_microbatch(partial(model.mean_loss, layout), settings.microbatches)


def step_of(settings: Settings) -> Any:
    """The train step, with the norms that are logged."""
    return hs.train_step(loss_of(settings), optimizer_of(settings), statistics=LOGGED)


def initial(settings: Settings) -> tuple[Any, Any]:
    """The parameters and the optimizer's state before the first step."""
    params = model.init(jax.random.key(settings.seed), settings.sizes)
    return params, optimizer_of(settings).init(params)


def places(settings: Settings, mesh: Mesh) -> tuple[Any, Any]:
    """The shardings of both."""
    params, state = jax.eval_shape(partial(initial, settings))
    placed = axes.shardings(mesh, axes.LAYOUTS[settings.layout], model.AXES)
    return placed, axes.shardings_of_state(state, params, placed)


def place_of_tokens(mesh: Mesh) -> NamedSharding:
    """Texts lie along the devices of "data"."""
    return NamedSharding(mesh, axes.P("data"))
