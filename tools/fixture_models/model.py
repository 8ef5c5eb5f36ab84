"""What a fixture is made of: a loss, the shapes it is fed, and what is known of its gradients."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax

EXAMPLES = 5
"""The batch size. No other dimension is 5, except in the one model that is about that."""

Parameters = Any
"""A pytree of arrays; in `Model.parameters` a pytree of `Weight`."""

Verdict = Literal["separable", "separable given data", "not separable"]


@dataclass(frozen=True)
class Weight:
    """A parameter: normal, scaled by the root of its fan-in if of more than one dimension."""

    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class Input:
    """An argument beside the parameters: normal floats, or integers in [0, below). `axis` carries
    the examples.
    """

    shape: tuple[int, ...]
    axis: int | None = 0
    below: int | None = None


@dataclass(frozen=True)
class Model:
    """One fixture.

    `loss(parameters, *arguments)` takes the arguments in the order of `inputs`, whose values are
    pytrees of `Input`.

    `example_loss(parameters, *arguments of example b alone, *arguments of the whole batch)` is the
    loss whose gradient is example b's; without it, that is `loss` on a batch of one.

    `gradient(parameters, *arguments)` is what is lowered; without it, `jax.grad(loss)`.

    `mixing` is the function in whose lines the examples meet, where the verdict is "not separable".
    """

    structure: str
    why: str
    loss: Callable[..., jax.Array]
    parameters: Parameters
    inputs: Mapping[str, Any]
    verdict: Verdict = "separable"
    loss_reduction: Literal["mean", "sum"] = "mean"
    low_precision: bool = False
    example_loss: Callable[..., jax.Array] | None = None
    gradient: Callable[..., Parameters] | None = None
    mixing: Callable[..., Any] | None = None
