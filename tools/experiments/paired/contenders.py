"""Who is compared: the paper's optimizers, clipped or not, with the rates to begin from."""

import math
from dataclasses import dataclass
from typing import Any

import hlo_surgery.optimizers as ho
from tools.experiments.training.methods import B1, B2, BASE_RATE, CLIP_NORMS, METHODS

BATCH_SIZE = 16
TUNING = (1001, 1002, 1003)
"""Seeds that choose learning rates, and compare nothing."""


@dataclass(frozen=True)
class Contender:
    """A method, clipped or not. `centre`: the middle i of its rates, `BASE_RATE * 10**(i/4)`."""

    method: str
    centre: int
    clip_norm: float | None = None

    def rate(self, i: int, batch_size: int = BATCH_SIZE) -> float:
        """The i-th learning rate from the centre, which its rule moves with the batch size."""
        moved = ho.batch_size_rule(1.0, BATCH_SIZE, batch_size, METHODS[self.method].rule)
        return BASE_RATE * 10 ** (0.25 * (self.centre + round(4 * math.log10(moved)) + i))

    @property
    def title(self) -> str:
        """As the figures call it."""
        return METHODS[self.method].title + (", clipped" if self.clip_norm else "")

    def make(self, rate: Any, weight_decay: Any) -> Any:
        """Its optimizer at one rate and decay."""
        method = METHODS[self.method]
        betas = {name: {"b1": B1, "b2": B2}[name] for name in method.betas}
        clip = {"clip_norm": self.clip_norm} if self.clip_norm else {}
        return method.make(rate, **betas, **clip, weight_decay=weight_decay)


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
