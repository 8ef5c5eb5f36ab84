"""What planning can be told: the keywords that everything which plans takes, checked."""

from dataclasses import dataclass
from typing import TypedDict

from hlo_surgery.rooflines import Roofline, roofline

STRATEGIES = ("auto", "square", "ghost", "segments", "lift", "loop")


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

    `strategy`: one of STRATEGIES. `memory_budget`: bytes of temporaries that the statistics of one gradient may take;
    by default what suits the target. `target`: the device to plan and lower for, as in `hlo_surgery.rooflines`; by
    default JAX's own. `reuse_gradient`: take gradients from the tensors that hold each example's (True), or leave the
    module's own ops and bits (False); by default where that is cheaper. `shards`: over how many devices the examples
    lie; a loop over them then goes over each device's own. By default what the arguments and the mesh in use tell,
    else 1. Raises ValueError for wrong values.
    """

    strategy: str = "auto"
    memory_budget: int | None = None
    target: str | None = None
    reuse_gradient: bool | None = None
    shards: int | None = None

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(f"strategy is {self.strategy!r}; it is one of {', '.join(map(repr, STRATEGIES))}")
        if self.memory_budget is not None and self.memory_budget <= 0:
            raise ValueError(f"memory_budget is {self.memory_budget}; it is a positive number of bytes")
        if self.shards is not None and self.shards < 1:
            raise ValueError(f"shards is {self.shards}; it is the number of devices that the examples lie on")
        _ = self.device

    @property
    def platform(self) -> str | None:
        """What the target is called where JAX lowers for it; None for JAX's default."""
        return None if self.target is None else {"cpu": "cpu", "gpu": "cuda"}.get(self.device.name, "tpu")

    @property
    def device(self) -> Roofline:
        """What the target computes and moves."""
        return roofline(self.target)
