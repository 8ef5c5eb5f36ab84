"""What curvlinops and BackPACK find of a model: of each layer's kernel, in JAX's axes."""

import logging
from collections.abc import Callable
from typing import Any

import curvlinops  # pyright: ignore
import numpy as np
import torch  # pyright: ignore
from backpack import backpack, extend, extensions  # pyright: ignore
from torch import nn  # pyright: ignore
from torch.utils.flop_counter import FlopCounterMode  # pyright: ignore

from tools.bench.curvature.peer_models import Model
from tools.bench.curvature.torch_models import Array, batch, kernel_of, network, patches_of

# Threads that wait for others count as CPU, and XLA's do not.
torch.set_num_threads(1)
Found = dict[str, Any]
EXTENSIONS = {
    "sum_grad_squared": extensions.SumGradSquared,
    "diag_ggn_exact": extensions.DiagGGNExact,
}
ENTRIES = 4


def flops(function: Callable[[], Any]) -> int:
    logging.getLogger("torch").setLevel(logging.ERROR)
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


def operator(model: Model, kind: str, **how: Any) -> Any:
    """Of the data and labels that are there, which is linear in what it multiplies."""
    made = network(model)
    loss, data = nn.CrossEntropyLoss(), [batch(model)]
    how = {"check_deterministic": False, **how}
    return getattr(curvlinops, kind)(made, loss, list(made.parameters()), data, **how)


def named(model: Model, by_place: dict[str, Any]) -> Found:
    """By layer what is by the place of the module, in the order of the layers."""
    ordered = sorted(by_place, key=int)
    return {name: by_place[place] for name, place in zip(model.layers, ordered, strict=True)}


def factors(model: Model, form: str) -> Callable[[], Found]:
    """{layer: (left, right)}"""

    def found() -> Found:
        made = operator(model, "KFACLinearOperator", fisher_type="empirical", kfac_approx=form)
        made.compute_kronecker_factors()
        state = made.state_dict()
        lefts = named(model, state["input_covariances"])
        rights = named(model, state["gradient_covariances"])
        return {name: sides(model, name, lefts[name], rights[name], form) for name in model.layers}

    return found


def sides(model: Model, name: str, left: Any, right: Any, form: str) -> tuple[Array, Array]:
    """With as many positions in the factors as ours have."""
    places = model.layers[name] if form == "expand" else 1
    kernel = model.params[name]["w"].shape
    return patches_of(left, kernel) * places, right.numpy() / places


def rotated(model: Model) -> Any:
    made = operator(model, "EKFACLinearOperator", fisher_type="empirical")
    made.compute_eigenvalue_correction()
    return made


def eigenbases(model: Model, made: Any) -> Found:
    """{layer: (P, Q)} of what `rotated` made."""
    state = made.state_dict()
    lefts = named(model, state["input_covariances_eigenvectors"])
    rights = named(model, state["gradient_covariances_eigenvectors"])
    return {
        name: (
            patches_of(lefts[name], model.params[name]["w"].shape, axes=1),
            rights[name].numpy(),
        )
        for name in model.layers
    }


def rotated_squares(model: Model, made: Any) -> Callable[[], Found]:
    """[left, right] of each kernel, in the eigenbases that `made` has."""
    kept = made.state_dict()["corrected_eigenvalues"]

    def found() -> Found:
        kept.clear()
        made.compute_eigenvalue_correction()
        each = named(model, kept)
        # Each has the kernel's first and then the bias', by their places among all parameters.
        return {name: value[min(value)].numpy().T for name, value in each.items()}

    return found


def gradient(model: Model) -> Callable[[], Found]:
    made, loss = network(model), nn.CrossEntropyLoss()
    x, y = batch(model)
    layers = [made[place] for place in places(made)]

    def found() -> Found:
        made.zero_grad()
        loss(made(x), y).backward()
        return {
            each: kernel_of(layer.weight.grad)
            for each, layer in zip(model.layers, layers, strict=True)
        }

    return found


def diagonal(model: Model, name: str) -> Callable[[], Found]:
    made: Any = extend(network(model))
    loss: Any = extend(nn.CrossEntropyLoss())
    x, y = batch(model)
    # BackPACK's squares are of the examples' shares of the mean.
    scale = len(x) if name == "sum_grad_squared" else 1
    layers = [made[place] for place in places(made)]

    def found() -> Found:
        made.zero_grad()
        with backpack(EXTENSIONS[name]()):
            loss(made(x), y).backward()
        pairs = zip(model.layers, layers, strict=True)
        return {each: kernel_of(getattr(layer.weight, name)) * scale for each, layer in pairs}

    return found


def places(made: Any) -> list[int]:
    """Of the modules with weights."""
    return [i for i, part in enumerate(made) if isinstance(part, nn.Linear | nn.Conv2d)]


def some_entries(model: Model, kind: str) -> list[tuple[str, tuple[int, ...], float]]:
    """(layer, place in its kernel, the matrix's diagonal there) by products with unit vectors."""
    made, rng = operator(model, kind), np.random.default_rng(0)
    shapes = [tuple(p.shape) for p in network(model).parameters()]
    starts = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)])
    found: list[tuple[str, tuple[int, ...], float]] = []
    for number, name in enumerate(model.layers):
        shape, start = shapes[2 * number], starts[2 * number]
        for place in rng.choice(int(np.prod(shape)), ENTRIES, replace=False):
            unit = torch.zeros(int(starts[-1]))
            unit[start + place] = 1
            entry = float((made @ unit)[start + place])
            found.append((name, in_jax(np.unravel_index(place, shape)), entry))
    return found


def in_jax(place: tuple[Any, ...]) -> tuple[int, ...]:
    """Of a place in PyTorch's kernel, that in JAX's."""
    axes = (1, 0) if len(place) == 2 else (2, 3, 1, 0)
    return tuple(int(place[axis]) for axis in axes)
