"""mu**2 and sigma**2 along training and over batch sizes, and the SNR of signs."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tools.experiments.paired.records import Row, rows_of
from tools.experiments.redraw import look
from tools.experiments.sign_snr import BINS, normal_theory
from tools.experiments.training.methods import METHODS

RATIO = "mu² / sigma_eff²"
MEANS = {"mean_squared_mean": ("mu²", "-"), "variance_mean": ("sigma²", "--")}
SHARES = (0.01, 0.05, 0.25, 0.5, 1.0)
Run = tuple[str, int]
"""A method and a batch size."""


def draw_all(folder: Path, out: Path, kind: str) -> None:
    """What there are files for."""
    if rows := rows_of(folder / "moments.csv"):
        _draw_moments(rows, out / f"moments.{kind}")
    if rows := rows_of(folder / "sign_snr.csv"):
        _draw_snr(rows, out / f"sign_snr.{kind}")


def runs(rows: Sequence[Row]) -> list[Run]:
    """In the file's order."""
    return list(dict.fromkeys((row["method"], int(row["batch_size"])) for row in rows))


def along(rows: Sequence[Row], run: Run, kind: str) -> tuple[list[int], list[float]]:
    """Samples and values of one kind over all parameters."""
    own = [row for row in rows if (row["method"], int(row["batch_size"])) == run]
    own = [row for row in own if row["kind"] == kind]
    return [int(row["samples"]) for row in own], [float(row["value"]) for row in own]


def ratios(rows: Sequence[Row], run: Run, kind: str) -> tuple[list[int], list[float]]:
    """With sigma_eff**2 as the method's preconditioner has it; they are logged for B_eff = B."""
    method, batch_size = run
    factor = 1 if method == "adam" else 1 / batch_size
    samples, values = along(rows, run, kind)
    return samples, [factor * value for value in values]


def table(rows: Sequence[Row]) -> str:
    """The ratio of means by share of the run."""
    head = "| run | " + " | ".join(f"{share:.0%}" for share in SHARES) + " |"
    lines = [head, "|---" * (len(SHARES) + 1) + "|"]
    for run in runs(rows):
        samples, values = ratios(rows, run, "ratio_of_means")
        nearest = [
            min(range(len(samples)), key=lambda i, s=share: abs(samples[i] - s * samples[-1]))
            for share in SHARES
        ]
        lines.append(f"| {_title(run)} | {' | '.join(f'{values[i]:.2g}' for i in nearest)} |")
    return "\n".join(lines)


def opposed_table(rows: Sequence[Row]) -> str:
    """Counts with percentages."""
    lines = [
        "| parameters | part | mean surely not zero | mean sign opposed |",
        "|---|---|---|---|",
    ]
    for row in rows:
        of, sure = int(row["of"]), int(row["mean_surely_not_zero"])
        against = int(row["mean_sign_opposed"])
        share = f" ({against / sure:.1%})" if sure else ""
        said = f"{sure} of {of} ({sure / of:.1%}) | {against} of {sure}{share}"
        lines.append(f"| {row['parameters']} | {row['part']} | {said} |")
    return "\n".join(lines)


def _title(run: Run) -> str:
    return f"{METHODS[run[0]].title}, B = {run[1]}"


def _draw_moments(rows: Sequence[Row], file: Path) -> None:
    figure, ((means, both), (over, layers)) = look.panels(2, 2)
    found = runs(rows)
    (other,) = [run for run in found if run[0] != "adam"]
    usual = [("adam", other[1]), other]
    for number, run in enumerate(usual):
        for kind, (name, style) in MEANS.items():
            label = f"{_title(run)}, {name}"
            means.plot(*along(rows, run, kind), style, color=f"C{number}", label=label)
    means.set(title="means of all parameters", xscale="log", yscale="log", xlabel="samples")
    means.legend(fontsize="small")
    _ratio_lines(both, rows, usual)
    _ratio_lines(over, rows, [run for run in found if run[0] == "adam"])
    _layer_lines(layers, rows, [run for run in found if run[0] == "adam"])
    look.save(figure, file)


def _ratio_lines(place: Any, rows: Sequence[Row], of: Sequence[Run]) -> None:
    for number, run in enumerate(of):
        color = f"C{number}"
        place.plot(*ratios(rows, run, "ratio_of_means"), color=color, label=_title(run))
        place.plot(*ratios(rows, run, "ratio_median"), ":", color=color)
    place.axhline(1, color="black", linewidth=0.6)
    place.set(title="ratio of means; dotted: median ratio", xlabel="samples", ylabel=RATIO)
    place.set(xscale="log", yscale="log", ylim=(1e-3, 100))
    place.legend(fontsize="small")


def _layer_lines(place: Any, rows: Sequence[Row], of: Sequence[Run]) -> None:
    """Each layer's median over its parameters, of which the median over training."""
    names = dict.fromkeys(row["layer"] for row in rows if row["layer"])
    for name in names:
        medians = [
            median(float(row["value"]) for row in rows if _is_of(row, run, name)) for run in of
        ]
        place.plot([size for _, size in of], medians, ".-", linewidth=0.8)
    sizes = [size for _, size in of]
    place.set(title="each layer's median, over training", xlabel="batch size", ylabel=RATIO)
    place.set(xscale="log", yscale="log")
    place.set_xticks(sizes, [str(size) for size in sizes])
    place.minorticks_off()


def _is_of(row: Row, run: Run, layer: str) -> bool:
    return (row["method"], int(row["batch_size"]), row["layer"]) == (*run, layer)


def _draw_snr(rows: Sequence[Row], file: Path) -> None:
    times = list(dict.fromkeys(row["parameters"] for row in rows))
    figure, (places,) = look.panels(1, len(times), sharey=True)
    for time, place in zip(times, places, strict=True):
        for part in dict.fromkeys(row["part"] for row in rows):
            own = [row for row in rows if (row["parameters"], row["part"]) == (time, part)]
            x, y = ([float(row[name]) for row in own] for name in ("snr", "snr_of_sign"))
            place.plot(x, y, ".-", label=part)
        place.plot(BINS, normal_theory(BINS), "--", color="black", label="normal, theory")
        place.plot(BINS, BINS, ":", color="grey", label="equal")
        place.set(title=f"{time} parameters" if time == "initial" else f"parameters {time}")
        place.set(xlabel="SNR of g", ylabel="SNR of sign(g)", xscale="log", yscale="log")
        place.legend(fontsize="small")
    look.save(figure, file)
