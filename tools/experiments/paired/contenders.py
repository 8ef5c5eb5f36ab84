"""Who is compared: the paper's optimizers, clipped or not, with the rates to begin from."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import hlo_surgery.optimizers as ho
from tools.experiments.training.methods import B1, B2, BASE_RATE, CLIP_NORMS, METHODS

BATCH_SIZE = 16
TUNING = (1001, 1002, 1003)
"""Seeds that choose learning rates, and compare nothing."""


Decay = Callable[[np.ndarray, float], np.ndarray]
DECAYS: dict[str, Decay] = {
    "along the schedule": lambda shares, peak: shares,
    "constant": lambda shares, peak: np.ones_like(shares),
    "as AdamW": lambda shares, peak: peak * shares,
    "none": lambda shares, peak: np.zeros_like(shares),
}
"""Of the usual decay at its peak, how much there is at each step: from the schedule's share of the
peak rate, and that peak over the contender's centre.
"""


@dataclass(frozen=True)
class Contender:
    """A method, clipped or not. `centre`: the middle i of its rates, `BASE_RATE * 10**(i/4)`;
    `settings`: what it takes beside; `group`: how many examples count as one.
    """

    method: str
    centre: int
    clip_norm: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    decay: str = "along the schedule"
    group: int = 1

    def rate(self, i: int, batch_size: int = BATCH_SIZE) -> float:
        """The i-th learning rate from the centre, which its rule moves with the batch size."""
        moved = ho.batch_size_rule(1.0, BATCH_SIZE, batch_size, METHODS[self.method].rule)
        return BASE_RATE * 10 ** (0.25 * (self.centre + round(4 * math.log10(moved)) + i))

    @property
    def title(self) -> str:
        """As the figures call it."""
        return METHODS[self.method].title + (", clipped" if self.clip_norm else "")

    def make(self, rate: Any, weight_decay: Any, seed: int = 0) -> Any:
        """Its optimizer at one rate and decay; the seed is of noise, where it draws some."""
        method = METHODS[self.method]
        given: dict[str, Any] = {name: {"b1": B1, "b2": B2}[name] for name in method.betas}
        given |= {"clip_norm": self.clip_norm} if self.clip_norm else {}
        given |= {"seed": seed} if method.seeded else {}
        return method.make(rate, **{**given, **self.settings}, weight_decay=weight_decay)

    def decays(self, shares: np.ndarray, rate: float, batch_size: int) -> np.ndarray:
        """Of the usual decay at its peak, the share of each step, from the schedule's."""
        return DECAYS[self.decay](shares, rate / self.rate(0, batch_size))


CLIPPED = CLIP_NORMS["small"]
# The centres are the best rates of earlier sweeps with one seed.
CONTENDERS = {
    "adam": Contender("adam", 4),
    "micro_adam": Contender("micro_adam", 5),
    "adam, clipped": Contender("adam", 3, CLIPPED),
    "micro_adam, clipped": Contender("micro_adam", 5, CLIPPED),
    "sign_ema": Contender("sign_ema", 1),
    "sign_sgd": Contender("sign_sgd", 4),
    "micro_sign_sgd": Contender("micro_sign_sgd", 5),
    "micro_adam_var": Contender("micro_adam_var", 5),
    "micro_adam_var, clipped": Contender("micro_adam_var", 5, CLIPPED),
    "micro_adam_msq, clipped": Contender("micro_adam_msq", 5, CLIPPED),
}
