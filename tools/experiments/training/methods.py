"""The optimizers compared, each with the paper's settings, schedule and rule for the batch size."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import optax

import hlo_surgery.optimizers as ho
from tools.experiments.training.by_tokens import micro_adam_by_tokens
from tools.experiments.training.model import SIZES, Size
from tools.experiments.training.private import private_adam, private_micro_adam

B1, B2 = 0.9, 0.95
BASE_RATE = 2 / 1024
"""The paper's base learning rate."""
WARMUP = 1000 / SIZES["paper"].steps(64)
"""The paper's 1000 steps of its K at B = 64; as a share of K, as many samples at any batch size."""
MAX_RATIO = 32.0
"""Of MicroAdamVar and MicroAdamMSQ, and not the paper's: the kept runs were made with it."""
DECAY = 8
"""Weight decay is omega = 8 / K a step at the schedule's peak, whatever that is, and follows it.

This is what Nanodo, the paper's codebase, means by decay that is independent of the learning rate.
A constant omega instead, while the cosine takes the learning rate to zero, ends with all weights
near zero and an even guess.
"""


@dataclass(frozen=True)
class Method:
    """`make` takes the schedule first; `rule` is the batch size's: lr ~ B or lr ~ sqrt(B).
    `seeded`: it draws noise, and takes a `seed`.
    """

    title: str
    make: Callable[..., Any]
    rule: Literal["linear", "sqrt"] = "linear"
    betas: tuple[str, ...] = ("b1", "b2")
    seeded: bool = False


METHODS = {
    "sign_ema": Method("SignEMA", ho.sign_ema, betas=("b1",)),
    "sign_sgd": Method("SignSGD", ho.sign_sgd, betas=("b1",)),
    "micro_sign_sgd": Method("MicroSignSGD", ho.micro_sign_sgd, betas=("b1",)),
    "adam": Method("Adam", ho.adam, rule="sqrt"),
    "micro_adam": Method("MicroAdam", ho.micro_adam),
    "micro_adam_var": Method("MicroAdamVar", partial(ho.micro_adam_var, max_ratio=MAX_RATIO)),
    "micro_adam_msq": Method("MicroAdamMSQ", partial(ho.micro_adam_msq, max_ratio=MAX_RATIO)),
    "micro_adam_by_tokens": Method("MicroAdam by tokens", micro_adam_by_tokens),
    "private_adam": Method("private Adam", private_adam, rule="sqrt", seeded=True),
    "private_micro_adam": Method("private MicroAdam", private_micro_adam, seeded=True),
}
SIGNS = ("sign_ema", "sign_sgd", "micro_sign_sgd")
ADAMS = ("adam", "micro_adam", "micro_adam_var", "micro_adam_msq")
RATES: dict[str, dict[str, float]] = {
    # The best of adam_family.py --grid 2 4 6, at B = 16.
    "small": {
        method: BASE_RATE * 10 ** (1.0 if method in ("adam", "micro_adam_msq") else 1.5)
        for method in ADAMS
    },
    # The base learning rate is for B = 1024; these are for B = 64, by the rules.
    "paper": {
        method: BASE_RATE * (64 / 1024) ** (0.5 if method == "adam" else 1) for method in ADAMS
    },
}
RATES["tiny"] = RATES["small"]
CLIP_NORMS = {
    "paper": 1e-2,
    # As long an element on average, with 1600 times fewer of them: MicroAdamMSQ's eps of 1e-6 is
    # meant for elements of about 7e-7. With 1e-2 they would be 27 times eps, and so would be the
    # steps where its v is zero.
    "small": 2.5e-4,
}
"""Every gradient is longer than this, so that all are scaled to it."""


@dataclass(frozen=True)
class Run:
    """One training run; what it does follows from these values and the text."""

    size: Size
    method: str
    learning_rate: float
    batch_size: int
    seed: int = 0
    clip_norm: float | None = None
    tracks_moments: bool = False

    @property
    def steps(self) -> int:
        return self.size.steps(self.batch_size)

    @property
    def title(self) -> str:
        return METHODS[self.method].title + (
            f", clipped at {self.clip_norm:g}" if self.clip_norm else ""
        )

    @property
    def name(self) -> str:
        """Of the run's folder."""
        words = [
            self.size.name,
            self.method,
            f"lr{self.learning_rate:.3g}",
            f"B{self.batch_size}",
            f"seed{self.seed}",
        ]
        words += [f"clip{self.clip_norm:g}"] if self.clip_norm else []
        words += ["moments"] if self.tracks_moments else []
        return "-".join(words)

    def optimizer(self) -> Any:
        shape = optax.warmup_cosine_decay_schedule(
            0.0, 1.0, max(1, round(WARMUP * self.steps)), self.steps
        )
        betas = {name: {"b1": B1, "b2": B2}[name] for name in METHODS[self.method].betas}
        clip = {"clip_norm": self.clip_norm} if self.clip_norm else {}
        decay = _scaled(shape, DECAY / self.steps)
        made = METHODS[self.method].make(
            _scaled(shape, self.learning_rate), **betas, **clip, weight_decay=decay
        )
        return optax.chain(ho.track_moments(B2), made) if self.tracks_moments else made


def _scaled(shape: Callable[[Any], Any], factor: float) -> Callable[[Any], Any]:
    return lambda count: factor * shape(count)
