"""Who is compared: the paper's optimizers, clipped or not, with the rates to begin from.

And the sweeps: each has lines of them, at levels of one setting. `DESIGN.md` says why.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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


Run = tuple[str, int]
"""A contender's name and a batch size."""


class Cell(NamedTuple):
    """What is run on a line at a level."""

    name: str
    contender: Contender
    batch_size: int = BATCH_SIZE

    @property
    def run(self) -> Run:
        """What two sweeps may have both."""
        return self.name, self.batch_size


Line = Mapping[str, Cell]
"""By level."""


@dataclass(frozen=True)
class Sweep:
    """`usual`: the level that the others are held against; lines are held against the first.
    `file`: of its runs, which those of another processor are kept apart from.
    """

    title: str
    usual: str
    lines: Mapping[str, Line]
    file: str = "sweeps"

    @property
    def levels(self) -> list[str]:
        """Of each line."""
        return list(next(iter(self.lines.values())))

    @property
    def cells(self) -> dict[tuple[str, str], Cell]:
        """By line and level."""
        return {
            (title, level): cell
            for title, line in self.lines.items()
            for level, cell in line.items()
        }


def _usual(name: str, batch_size: int = BATCH_SIZE) -> Cell:
    return Cell(name, CONTENDERS[name], batch_size)


def _of_b2(name: str) -> Line:
    def at(b2: float) -> Cell:
        contender = Contender(name, CONTENDERS[name].centre, settings={"b2": b2})
        return Cell(f"{name}, b2 = {b2:g}", contender)

    return {"0.9": at(0.9), "0.95": _usual(name), "0.99": at(0.99), "0.999": at(0.999)}


def _of_clipping(name: str) -> Line:
    def at(norm: float) -> Cell:
        contender = Contender(name, CONTENDERS[name].centre, norm)
        return Cell(f"{name}, clipped at {norm:g}", contender)

    others = {f"{norm:g}": at(norm) for norm in (2.5, 0.25, 0.025)}
    return {"none": _usual(name), **others, f"{CLIPPED:g}": _usual(f"{name}, clipped")}


def _of_decay(name: str) -> Line:
    def by(rule: str) -> Cell:
        contender = Contender(name, CONTENDERS[name].centre, decay=rule)
        return Cell(f"{name}, decay {rule}", contender)

    others = {rule: by(rule) for rule in ("constant", "as AdamW", "none")}
    return {"along the schedule": _usual(name), **others}


def _of_groups(name: str) -> Line:
    """The more examples in a group, the nearer the rates are to those of its mean."""
    centres = {4: 5, 16: 4}

    def of(m: int) -> Cell:
        return Cell(f"{name}, m = {m}", Contender(name, centres[m], group=m))

    return {"m = 1": _usual(name), "m = 4": of(4), "m = 16": of(16)}


def _of_tokens() -> dict[str, Line]:
    name, centre = "micro_adam_by_tokens", CONTENDERS["micro_adam"].centre
    own = Contender(name, centre), Contender(name, centre, CLIPPED)
    proxy = {"not clipped": Cell(name, own[0]), "clipped": Cell(f"{name}, clipped", own[1])}
    usual = {"not clipped": _usual("micro_adam"), "clipped": _usual("micro_adam, clipped")}
    return {"MicroAdam": usual, "by tokens": proxy}


# More noise makes v larger, and with it the rates that are needed: the centres.
NOISES = (0.0, 0.03, 0.3)
MAX_NORM = 1.0


def _private_adam() -> Line:
    def under(noise: float, centre: int) -> Cell:
        settings = {"max_norm": MAX_NORM, "noise": noise}
        return Cell(
            f"private_adam, s = {noise:g}", Contender("private_adam", centre, None, settings)
        )

    return {f"s = {s:g}": under(s, i) for s, i in zip(NOISES, (4, 5, 7), strict=True)}


def _private_micro_adam(pays: bool, centres: Sequence[int]) -> Line:
    """Whether the squares pay for their noise; where there is none, both are the same run."""

    def under(noise: float, centre: int) -> Cell:
        own = 2**0.5 * noise if pays else noise
        noises = {"noise": own, "noise_of_squares": own if pays else 0.0}
        settings = {"max_norm": MAX_NORM, **noises}
        name = f"private_micro_adam, s = {noise:g}" + (", paid" if pays and noise else "")
        return Cell(name, Contender("private_micro_adam", centre, None, settings))

    return {f"s = {s:g}": under(s, i) for s, i in zip(NOISES, centres, strict=True)}


def _over_batch_sizes(name: str) -> Line:
    return {f"B = {size}": _usual(name, size) for size in (BATCH_SIZE, 64)}


def _of_update(against: str, usual: str, others: Sequence[tuple[str, float, int]]) -> Sweep:
    """A contender, whose steps are bounded, and its kinds: bounded or as the paper has it, clipped
    to a norm, with a centre of rates; on the first line the method that all are held against.
    """
    method = CONTENDERS[usual].method

    def of(kind: str, norm: float, centre: int) -> tuple[str, Cell]:
        level, settings = (
            f"{kind}, clipped at {norm:g}",
            {"max_ratio": None} if kind == PAPERS else {},
        )
        return level, Cell(f"{method}, {level}", Contender(method, centre, norm, settings))

    levels = {BOUNDED: _usual(usual)} | dict(of(*other) for other in others)
    first = dict.fromkeys(levels, _usual(against))
    lines = {CONTENDERS[against].title: first, CONTENDERS[usual].title: levels}
    return Sweep("update", BOUNDED, lines, "updates")


def _titled(names: Sequence[str]) -> list[tuple[str, str]]:
    return [(CONTENDERS[name].title, name) for name in names]


TWO = _titled(("adam", "micro_adam"))
THREE = [*TWO, *_titled(("micro_adam_var",))]
AT_64 = _titled(
    ("adam, clipped", "micro_adam, clipped", "micro_adam_msq, clipped", "adam", "micro_adam")
)
PRIVATE = {
    "Adam": _private_adam(),
    "MicroAdam, squares without noise": _private_micro_adam(False, (5, 5, 5)),
    "MicroAdam, squares paid for": _private_micro_adam(True, (5, 8, 10)),
}
BOUNDED, PAPERS = "bounded", "the paper's"
UPDATES = {
    "msq_update": _of_update(
        "adam, clipped",
        "micro_adam_msq, clipped",
        [
            (BOUNDED, 2.5e-3, 3),
            (PAPERS, 2.5e-2, 2),
            (PAPERS, 2.5e-3, 5),
            (PAPERS, CLIPPED, 5),
            (PAPERS, 2.5e-5, 5),
        ],
    ),
    "var_update": _of_update(
        "micro_adam, clipped",
        "micro_adam_var, clipped",
        [(PAPERS, 0.25, 5), (PAPERS, CLIPPED, 5)],
    ),
}
SWEEPS = UPDATES | {
    "b2": Sweep("b2", "0.95", {title: _of_b2(name) for title, name in TWO}),
    "clipping": Sweep(
        "gradients clipped to a norm of",
        "none",
        {title: _of_clipping(name) for title, name in THREE},
    ),
    "decay": Sweep(
        "weight decay", "along the schedule", {title: _of_decay(name) for title, name in TWO}
    ),
    "tokens": Sweep("", "not clipped", _of_tokens()),
    "groups": Sweep(
        "groups of m examples",
        "m = 1",
        {title: _of_groups(name) for title, name in _titled(("micro_adam", "micro_sign_sgd"))},
    ),
    "batch_64": Sweep(
        "batch size",
        f"B = {BATCH_SIZE}",
        {title: _over_batch_sizes(name) for title, name in AT_64},
    ),
    "private": Sweep("noise multiplier", "s = 0", PRIVATE),
}
ALL = CONTENDERS | {
    cell.name: cell.contender for sweep in SWEEPS.values() for cell in sweep.cells.values()
}
"""Contenders by name, of the paired set and of the sweeps."""
