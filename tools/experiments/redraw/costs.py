"""Time and memory of surgery beside `vmap`: along a step, of MLPs over their sizes, of workloads.

The numbers are those of `tools/RESULTS.md` and `tools/RESULTS_OF_WORKLOADS.md`, which say on which
commits and machine they were measured. Nothing is measured here.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.experiments.paired.records import MEASURED, Row, rows_of
from tools.experiments.redraw import look

USUAL = {"batch": "64", "width": "256", "depth": "4"}


def draw_all(out: Path, kind: str) -> None:
    """All figures."""
    _draw_memory(rows_of(MEASURED / "memory_along_step.csv"), out / f"memory_along_step.{kind}")
    _draw_sizes(rows_of(MEASURED / "surgery_and_vmap.csv"), out / f"surgery_and_vmap.{kind}")
    _draw_workloads(rows_of(MEASURED / "workloads.csv"), out / f"workloads.{kind}")


def _draw_memory(rows: Sequence[Row], file: Path) -> None:
    """What is live on a chip at each instruction, in the order of each program."""
    figure, ((place,),) = look.panels(1, 1)
    for name in dict.fromkeys(row["program"] for row in rows):
        live = [int(row["bytes"]) / 1e9 for row in rows if row["program"] == name]
        share = [i / len(live) for i in range(len(live))]
        label = f"{name}: {max(live):.1f} GB at most"
        place.plot(share, live, drawstyle="steps-post", linewidth=1, label=label)
    place.set(xlabel="share of the program's instructions", ylabel="live memory of a chip, GB")
    place.set_ylim(0, None)
    figure.legend(loc="outside lower center", fontsize="small")
    look.save(figure, file)


def _middle(row: Row) -> float:
    return (float(row["time_least"]) + float(row["time_most"])) / 2


def _draw_sizes(rows: Sequence[Row], file: Path) -> None:
    """A panel for each size that varies, with the others as usual; the range of two runs."""
    figure, (places,) = look.panels(1, 3, sharey=True)
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for size, place in zip(USUAL, places, strict=True):
        others = {name: usual for name, usual in USUAL.items() if name != size}
        along = [row for row in rows if others.items() <= row.items()]
        for number, method in enumerate(methods):
            own = sorted(
                (row for row in along if row["method"] == method), key=lambda row: int(row[size])
            )
            _with_range(place, [int(row[size]) for row in own], own, f"C{number}", method)
        ticks = sorted({int(row[size]) for row in along})
        place.set(xscale="log", yscale="log", xlabel=size)
        place.set_xticks(ticks, [str(tick) for tick in ticks])
        place.minorticks_off()
    places[0].set_ylabel("time / that of the gradient alone")
    places[0].legend(fontsize="small")
    look.save(figure, file)


def _with_range(place: Any, x: Sequence[float], rows: Sequence[Row], color: str, name: str) -> None:
    low = [_middle(row) - float(row["time_least"]) for row in rows]
    times = [_middle(row) for row in rows]
    place.errorbar(x, times, [low, low], fmt="o-", color=color, label=name, capsize=3, markersize=4)


def _draw_workloads(rows: Sequence[Row], file: Path) -> None:
    """Bars of time and memory, of MicroAdam's step over Adam's."""
    figure, ((time, memory),) = look.panels(1, 2, sharey=True)
    names = list(dict.fromkeys(row["workload"] for row in rows))
    kinds = list(dict.fromkeys((row["where"], row["method"]) for row in rows))
    for number, kind in enumerate(kinds):
        own = [row for row in rows if (row["where"], row["method"]) == kind]
        y = [names.index(row["workload"]) + 0.27 * (number - 1) for row in own]
        low = [_middle(row) - float(row["time_least"]) for row in own]
        label = f"{kind[1]}, {kind[0]}"
        time.barh(y, [_middle(row) for row in own], 0.25, xerr=low, label=label)
        memory.barh(y, [float(row["memory"]) for row in own], 0.25, label=label)
    for place, title in ((time, "time"), (memory, "memory")):
        place.axvline(1, color="black", linewidth=0.6)
        place.set(title=f"{title} of MicroAdam's step / Adam's")
        place.set_yticks(range(len(names)), names)
    time.invert_yaxis()
    figure.legend(*time.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    look.save(figure, file)
