"""Loss curves over batch sizes, and how far each is from that of the usual batch size."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tools.experiments.paired.batch_sizes import SIZES, scaled
from tools.experiments.paired.language_model import best_rates
from tools.experiments.paired.records import Record
from tools.experiments.paired.variants import BATCH_SIZE, CONTENDERS, TUNING
from tools.experiments.redraw import look
from tools.experiments.training.methods import METHODS

FIGURES = {
    "batch_sizes": ("adam", "micro_adam", "micro_adam_msq, clipped", "micro_adam_var"),
    "batch_sizes_clipped": ("micro_adam, clipped", "micro_adam_var, clipped"),
}
QUARTER = 0.25
Curves = Mapping[int, Mapping[int, np.ndarray]]
"""By batch size and seed."""


def draw_all(records: Sequence[Record], out: Path, kind: str) -> None:
    """At the rates that the rules give, and at a quarter of them; figures that have runs."""
    for title, names in FIGURES.items():
        for factor, suffix in ((1.0, ""), (QUARTER, "_quarter")):
            by_name = {name: curves(records, name, factor) for name in names}
            if any(len(found) > 1 for found in by_name.values()):
                _draw(by_name, out / f"{title}{suffix}.{kind}")


def curves(records: Sequence[Record], name: str, factor: float = 1.0) -> Curves:
    """Of one contender at the rates by its rule, of the seeds that tuned nothing."""
    best = best_rates(records).get(name)
    if best is None:
        return {}
    own = [r for r in records if r.method == name and r.seed not in TUNING]
    at = {size: scaled(name, best, size, factor) for size in SIZES}
    found = {
        size: {r.seed: np.array(r.curve) for r in own if (r.batch_size, r.learning_rate) == one}
        for size, rate in at.items()
        if (one := (size, rate))
    }
    return {size: by_seed for size, by_seed in found.items() if by_seed}


def table(records: Sequence[Record]) -> str:
    """The training loss of the last 1/32 of the samples, by batch size, and the spread over it."""
    head = "| contender | of its rate | seeds | " + " | ".join(f"B = {size}" for size in SIZES)
    lines = [head + " | spread |", "|---" * (len(SIZES) + 4) + "|"]
    for name in dict.fromkeys(name for names in FIGURES.values() for name in names):
        for factor in (1.0, QUARTER):
            found = curves(records, name, factor)
            lines += [_row(name, factor, found)] if len(found) > 1 else []
    return "\n".join(lines) if len(lines) > 2 else "(no runs over batch sizes yet)"


def _row(name: str, factor: float, found: Curves) -> str:
    seeds = sorted(set[int].intersection(*(set(by_seed) for by_seed in found.values())))
    means = {size: np.mean([found[size][s][-2:].mean() for s in seeds]) for size in found}
    cells = [f"{means[size]:.2f}" if size in means else "" for size in SIZES]
    spread = max(means.values()) - min(means.values())
    title = CONTENDERS[name].title
    return f"| {title} | {factor:g} | {len(seeds)} | {' | '.join(cells)} | {spread:.2f} |"


def _draw(by_name: Mapping[str, Curves], file: Path) -> None:
    figure, (losses, differences) = look.panels(2, len(by_name), sharex=True)
    for (name, found), above, below in zip(by_name.items(), losses, differences, strict=True):
        rule = {"sqrt": "lr ~ sqrt(B)", "linear": "lr ~ B"}[METHODS[CONTENDERS[name].method].rule]
        above.set_title(f"{CONTENDERS[name].title}, {rule}")
        each = {size: list(by_seed.values()) for size, by_seed in found.items()}
        # All batch sizes see the same samples, whose ups and downs a band would show.
        _lines(above, each, band=False)
        usual = found.get(BATCH_SIZE, {})
        _lines(below, {size: _between(by_seed, usual) for size, by_seed in found.items()})
    if losses[0].get_lines():
        losses[0].legend(fontsize="small")
    losses[0].set_ylabel("training loss, nats a byte")
    differences[0].set_ylabel(f"less that of B = {BATCH_SIZE}, seed by seed")
    figure.supxlabel("share of the samples")
    look.save(figure, file)


def _between(ours: Mapping[int, np.ndarray], usual: Mapping[int, np.ndarray]) -> list[np.ndarray]:
    return [ours[seed] - usual[seed] for seed in sorted(ours.keys() & usual.keys())]


def _lines(place: Any, by_size: Mapping[int, Sequence[np.ndarray]], *, band: bool = True) -> None:
    for number, size in enumerate(SIZES):
        if each := by_size.get(size):
            look.curve(place, each, band=band, label=f"B = {size}", color=f"C{number}")
    look.fit(place, [curve for each in by_size.values() for curve in each])
