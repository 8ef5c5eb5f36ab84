"""Of the language model's runs: curves, differences from one contender, and the rates tried."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tools.experiments.paired.claims import CLAIMS, BySeed, Claim, curves_between
from tools.experiments.paired.records import Record
from tools.experiments.paired.variants import BATCH_SIZE, CONTENDERS, TUNING
from tools.experiments.redraw import look

FIGURES = {
    "sign_placement": ("sign_ema", "sign_sgd", "micro_sign_sgd"),
    "adam_family": ("adam", "micro_adam", "micro_adam_var"),
    "adam_family_clipped": (
        "adam, clipped",
        "micro_adam, clipped",
        "micro_adam_var, clipped",
        "micro_adam_msq, clipped",
    ),
}
"""By file the contenders; differences are from the first."""

CLAIMED = {
    "claims_of_signs": CLAIMS[:2],
    "claims_of_adam": CLAIMS[2:4],
    "claims_clipped": CLAIMS[4:7],
    "claims_of_clipping": CLAIMS[7:],
}
"""By file the claims, by what they share: one of these takes part of the runs alone."""


def draw_all(records: Sequence[Record], found: Mapping[str, BySeed], out: Path, kind: str) -> None:
    """A figure for each group of contenders, and for each of claims."""
    for title, names in FIGURES.items():
        _draw(records, found, names, out / f"{title}.{kind}")
    for title, claims in CLAIMED.items():
        _draw_claims(found, claims, out / f"{title}.{kind}")


def _draw(
    records: Sequence[Record], found: Mapping[str, BySeed], names: Sequence[str], file: Path
) -> None:
    figure, ((losses, differences, rates),) = look.panels(1, 3)
    runs = {name: list(found.get(name, {}).values()) for name in names}
    _curves(losses, {name: [run.curve for run in each] for name, each in runs.items()})
    losses.set_title("training loss")
    _curves(differences, {name: curves_between(found, name, names[0]) for name in names})
    differences.set_title(f"less that of {CONTENDERS[names[0]].title}, seed by seed")
    if losses.get_lines():
        losses.legend(fontsize="small")
    for number, name in enumerate(names):
        _rates(rates, [r for r in records if r.method == name], f"C{number}")
    rates.set(title="each tuning seed, and their mean", ylabel="held-out loss")
    if not any(len(line.get_xdata()) for line in rates.get_lines()):
        rates.text(0.5, 0.5, "no tuning runs yet", ha="center", transform=rates.transAxes)
    look.save(figure, file)


def _curves(place: Any, by_name: Mapping[str, Sequence[Any]]) -> None:
    """The mean of each contender's seeds with its 95 % band; of those that have runs."""
    for number, (name, each) in enumerate(by_name.items()):
        if each:
            label = f"{CONTENDERS[name].title} ({look.seeds(each)})"
            look.curve(place, each, label=label, color=f"C{number}")
    look.fit(place, [curve for each in by_name.values() for curve in each])
    place.set(xlabel="share of the run", ylabel="nats a byte")


def _rates(place: Any, records: Sequence[Record], color: str) -> None:
    """Each tuning seed a point, and a line through the means."""
    own = [r for r in records if r.seed in TUNING and r.batch_size == BATCH_SIZE]
    rates = sorted({record.learning_rate for record in own})
    means = [np.mean([r.loss for r in own if r.learning_rate == rate]) for rate in rates]
    place.plot([r.learning_rate for r in own], [r.loss for r in own], ".", color=color, alpha=0.6)
    place.plot(rates, means, color=color, linewidth=1)
    written = [x for line in place.get_lines() for x in np.asarray(line.get_xdata())]
    look.rate_ticks(place, written)


def _draw_claims(found: Mapping[str, BySeed], claims: Sequence[Claim], file: Path) -> None:
    """For each claim the difference of training losses along the run: mean, and 95 % band."""
    figure, places = look.panels(1, len(claims), sharex=True)
    for (ours, theirs), place in zip(claims, places.flat, strict=True):
        each = curves_between(found, ours, theirs)
        titles = CONTENDERS[ours].title, CONTENDERS[theirs].title
        if each:
            look.curve(place, each)
            look.fit(place, [*each, np.zeros(len(each[0]))])
        place.axhline(0, color="black", linewidth=0.6)
        title = f"{titles[0]}\nless {titles[1]} ({look.seeds(each)})"
        place.set_title(title, fontsize="small")
    figure.supxlabel("share of the run")
    figure.supylabel("difference of training losses,\nnats a byte")
    look.save(figure, file)
