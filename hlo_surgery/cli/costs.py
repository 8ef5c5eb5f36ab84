"""The commands compile and cost: what XLA makes of a module for a target, and what that takes.

Live memory along a program as a picture: block characters for the terminal, or a PNG file.
"""

import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from hlo_surgery.cli.arguments import File, Json
from hlo_surgery.cli.files import output_file, read_module
from hlo_surgery.cli.output import console, print_json, print_table, print_text, reported
from hlo_surgery.dumps import write_atomically
from hlo_surgery.targets.costs import Cost, cost_of
from hlo_surgery.targets.gpus import BY_CUBLAS
from hlo_surgery.targets.live_memory import Step, highest
from hlo_surgery.targets.target import Compiled, compile_for, find_target
from hlo_surgery.wording import duration, quantity

BLOCKS = " ▁▂▃▄▅▆▇█"
ROWS = 8


def blocks(steps: Sequence[Step], width: int, top: int) -> list[str]:
    """Rows of characters, highest first; each column is the most live in its part of the program.

    >>> blocks([Step("a", 8), Step("b", 16), Step("c", 4)], width=3, top=16)[3:7]
    [' █ ', '██ ', '██ ', '███']
    """
    eighths = [round(8 * ROWS * live / max(top, 1)) for live in highest(steps, width)]
    return [
        "".join(BLOCKS[min(8, max(0, e - 8 * row))] for e in eighths)
        for row in reversed(range(ROWS))
    ]


def check_plots() -> None:
    """Raises ValueError where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise ValueError("a plot needs matplotlib, which is not installed: pip install '.[plots]'")


def write_png(path: str, names: Sequence[str], costs: Sequence[Cost]) -> None:
    """One line a program."""
    figure: Any = import_module("matplotlib.figure").Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, cost in zip(names, costs, strict=True):
        live = [step.bytes / 1e6 for step in cost.staircase]
        axes.plot(live, drawstyle="steps-post", label=name)
    axes.set_title(costs[0].target)
    axes.set_xlabel("instruction, in the order of the program")
    axes.set_ylabel("live memory, MB")
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    axes.legend()
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    write_atomically(Path(path), picture.getvalue())


TargetName = Annotated[
    str | None,
    Option(
        "--target",
        metavar="NAME",
        help="cpu, gpu, tpu, or ahead of time such as tpu:v5e:2x4 or gpu:h200:1x1x8; "
        "else JAX's default.",
    ),
]
MEMORY = {
    "peak memory": "peak_bytes",
    "arguments": "argument_bytes",
    "outputs": "output_bytes",
    "outputs in arguments": "alias_bytes",
    "temporaries": "temporary_bytes",
}
WORK = {
    "FLOPs": "flops",
    "bytes moved": "bytes_accessed",
    "time at peak rates": "roofline_seconds",
    "kernels launched": "kernels",
    "estimated cycles": "estimated_cycles",
    "estimated time": "estimated_seconds",
}
UNITS = {"flops": "", "estimated_cycles": "", "kernels": ""}
# What is known of some devices alone.
KNOWN_OF = {"kernels": "gpu", "estimated_cycles": "tpu", "estimated_seconds": "tpu"}
WIDTH = 72
NOT_TIMED = (
    "without a GPU XLA times no algorithms (xla_gpu_autotune_level=0): GEMMs are Triton's in "
    "default tiles, and memory may differ from what a GPU's own tuning takes"
)

NO_TILES = (
    "XLA finds no tiles for a GEMM by Triton; all are cuBLAS's here (xla_gpu_enable_triton_gemm="
    "false), so that a ratio to a module with Triton's tells little"
)


def compile_module(
    file: File,
    target: TargetName = None,
    out: Annotated[
        str | None,
        Option("-o", "--output", metavar="OUT", help="File for the scheduled HLO; - for stdout."),
    ] = None,
    json: Json = False,
) -> None:
    """Compile a module for a target and show its memory; with -o, write the scheduled HLO."""
    with reported(json):
        out = None if out is None else output_file(out, file, json=json)
        compiled = _compiled(file, target, json)
        cost = _cost(compiled)
        if out is not None and out != "-":
            write_atomically(Path(out), compiled.text.encode())
        if json:
            memory = {name: getattr(cost, name) for name in MEMORY.values()}
            print_json({"file": out, "target": cost.target} | memory)
        elif out == "-":
            sys.stdout.write(compiled.text)
        else:
            print_table(f"memory on {cost.target}", ("", file), _rows(MEMORY, [cost]))
            if out is not None:
                print_text(f"wrote {out}: the scheduled HLO", "green")


def show_cost(
    file: File,
    target: TargetName = None,
    against: Annotated[
        str | None,
        Option(metavar="FILE2", help="Another module, shown beside this one with the ratios."),
    ] = None,
    plot: Annotated[
        str | None,
        Option(metavar="PNG", help="File for a picture of live memory along the program."),
    ] = None,
    json: Json = False,
) -> None:
    """Compile a module for a target, without a run: memory, FLOPs, bytes and estimated time."""
    with reported(json):
        if plot is not None:
            output_file(plot, file, against, alone="a picture")
            check_plots()
        files = [file] if against is None else [file, against]
        costs = [_cost(_compiled(each, target, json)) for each in files]
        if plot is not None:
            write_png(plot, files, costs)
        if json:
            print_json(dict(zip(("file", "cost", "against"), (file, *costs), strict=False)))
        else:
            _print_costs(files, costs)
            _print_memory(files, costs)
            for name, cost in zip(files, costs, strict=True):
                _print_notes(name, cost)


def _compiled(file: str, target: str | None, json: bool) -> Compiled:
    devices = find_target(target)
    module = read_module(file)
    compiled = compile_for(module, devices)
    if not json and BY_CUBLAS.items() <= compiled.options.items():
        print_text(f"{file}: {NO_TILES}", "yellow")
    return compiled


def _cost(compiled: Compiled) -> Cost:
    return cost_of(compiled.executable, compiled.target)


def _rows(fields: Mapping[str, str], costs: Sequence[Cost]) -> Iterator[list[str]]:
    """A row for each field that says something, with the ratio of the first cost to the second."""
    for title, field in fields.items():
        values = [getattr(cost, field) for cost in costs]
        cells = [_shown(cost, field) for cost in costs]
        if any(values) or "unknown" in cells:
            yield [title, *cells, *_ratio(values)]


def _shown(cost: Cost, field: str) -> str:
    """A value with its unit; it is unknown where data decides how often loops run."""
    value = getattr(cost, field)
    if value is None:
        known = cost.target.startswith(KNOWN_OF.get(field, ""))
        return "unknown" if cost.unknown_loops and known else ""
    if field.endswith("_seconds"):
        return duration(value).lstrip("+")
    return quantity(value) + UNITS.get(field, "B")


def _ratio(values: Sequence[float | None]) -> list[str]:
    if len(values) < 2:
        return []
    first, second = values
    return [f"{first / second:.3f} x" if first is not None and second else ""]


def _print_costs(files: Sequence[str], costs: Sequence[Cost]) -> None:
    columns = ("", *files, *(["ratio"] if len(files) > 1 else []))
    rows = [*_rows(MEMORY | WORK, costs), *_counted(costs)]
    print_table(f"cost on {costs[0].target}", columns, rows)


def _counted(costs: Sequence[Cost]) -> Iterator[list[str]]:
    """How often each collective runs, and each kind of what has no estimate."""
    for title, field in (("", "collectives"), ("not in the estimate: ", "without_estimate")):
        counts: list[dict[str, int | None]] = [getattr(cost, field) for cost in costs]
        for kind in sorted({kind for each in counts for kind in each}):
            values = [each.get(kind, 0) for each in counts]
            yield [
                title + kind,
                *("unknown" if n is None else str(n) for n in values),
                *_ratio(values),
            ]


def _print_memory(files: Sequence[str], costs: Sequence[Cost]) -> None:
    """The staircases, on one scale."""
    top = max(step.bytes for cost in costs for step in cost.staircase)
    width = min(WIDTH, console().width)
    for name, cost in zip(files, costs, strict=True):
        most = max(cost.staircase, key=lambda step: step.bytes)
        print_text(
            f"live memory of {name}: at most {quantity(most.bytes)}B, at {most.instruction}", "bold"
        )
        for row in blocks(cost.staircase, width, top):
            print_text(row, "cyan")


def _print_notes(name: str, cost: Cost) -> None:
    """What is not known, and why."""
    notes = list[str]()
    if cost.unknown_loops:
        why = "so that work and time are unknown, too"
        notes.append(f"loops whose trip count is unknown: {cost.unknown_loops}, {why}")
    if cost.target.startswith("gpu:"):
        notes.append(NOT_TIMED)
    if cost.estimated_cycles is None and not (cost.unknown_loops and cost.target.startswith("tpu")):
        notes.append(f"XLA estimates no time for {cost.target}")
    for note in notes:
        print_text(f"{name}: {note}", "yellow")
