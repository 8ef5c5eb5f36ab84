"""What planning can be told: the keywords that everything which plans takes, checked."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, SupportsIndex, TypedDict

from hlo_surgery.passes.strategies.choice import STRATEGIES
from hlo_surgery.planning.rooflines import Roofline, roofline

WAYS = ("auto", *(strategy.name for strategy in STRATEGIES))


class PlanningOptions(TypedDict, total=False):
    """The keywords of `PlanningChoices`."""

    strategy: str
    memory_budget: int | None
    target: str | None
    reuse_gradient: bool | None
    shards: int | None


@dataclass(frozen=True)
class PlanningChoices:
    """How statistics are to be computed; none of it changes what they are.

    `strategy`: one of WAYS. `memory_budget`: bytes of temporaries that the statistics of one
    gradient may take; by default what suits the target. `target`: the device to plan and lower for,
    as in `hlo_surgery.planning.rooflines`; by default JAX's own. `reuse_gradient`: take gradients
    from the tensors that hold each example's (True), or leave the module's own ops and bits
    (False); by default where that is cheaper. `shards`: over how many devices the examples lie; a
    loop over them then goes over each device's own. By default what the arguments and the mesh in
    use tell, else 1. Raises ValueError for wrong values.
    """

    strategy: str = "auto"
    memory_budget: int | None = None
    target: str | None = None
    reuse_gradient: bool | None = None
    shards: int | None = None

    def __post_init__(self) -> None:
        if self.strategy not in WAYS:
            raise ValueError(
                f"strategy is {self.strategy!r}; it is one of {', '.join(map(repr, WAYS))}"
            )
        _check_count(
            "memory_budget", self.memory_budget, "a positive number of bytes, such as 64_000_000"
        )
        _check_count("shards", self.shards, "the number of devices that the examples lie on")
        if not isinstance(self.reuse_gradient, bool | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"reuse_gradient is {self.reuse_gradient!r}; it is True, False or None")
        if not isinstance(self.target, str | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"target is {self.target!r}; it is a name, such as 'tpu:v5e', or None")
        _ = self.device

    @property
    def platform(self) -> str | None:
        """What the target is called where JAX lowers for it; None for JAX's default."""
        return (
            None
            if self.target is None
            else {"cpu": "cpu", "gpu": "cuda"}.get(self.device.name.split(":")[0], "tpu")
        )

    @property
    def device(self) -> Roofline:
        """What the target computes and moves."""
        return roofline(self.target)


def check_keywords(function: Callable[..., Any], keywords: Mapping[str, Any]) -> None:
    """Raises TypeError for keywords that neither the function nor planning has, and says which
    there are.
    """
    planning = list(PlanningOptions.__annotations__)
    unknown = [name for name in keywords if name not in planning]
    if unknown:
        own = [n for n, p in signature(function).parameters.items() if p.kind != p.VAR_KEYWORD]
        raise TypeError(
            f"{function.__name__} has no keyword {unknown[0]!r}; there are "
            f"{', '.join([*own, *planning])}"
        )


def _check_count(name: str, count: object, what: str) -> None:
    """Raises TypeError for what is no integer, ValueError for one below 1."""
    if count is None:
        return
    if isinstance(count, bool) or not isinstance(count, SupportsIndex):
        raise TypeError(f"{name} is {count!r}; it is an integer: {what}")
    if operator.index(count) < 1:
        raise ValueError(f"{name} is {count}; it is {what}")
