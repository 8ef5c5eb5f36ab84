"""Live memory along a train step of 1.3 billion parameters, B = 256 over 2x4 TPU v5e, by compiling.

    python -m tools.experiments.memory_along_step [--csv FILE]

needs `pip install '.[tpu,optim]'`, no TPU, and some 10 minutes a program on two slow cores. The
decoder of `examples/decoder`, 24 layers of width 2048 in a scan, each computed again in the
backward pass; texts of 1024; parameters, state and examples split over all chips. A line of the CSV
for each instruction of a program, in its order, a loop's body once: what is live on one chip.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import hlo_surgery as hs
from examples.decoder import ahead, axes, run
from tools.experiments.paired.records import MEASURED, commit, write_rows

TARGET = "tpu:v5e:2x4"
BATCH, LAYERS = 256, 24
PROGRAMS = {
    "Adam": "optax.adam",
    "MicroAdam by surgery": "micro_adam",
    "MicroAdam by vmap, 8 at a time": "MicroAdam by hand",
}
"""By what they are called here, the steps of `ahead`; by vmap over an example of each chip."""
NAMES = ("program", "instruction", "bytes", "commit")


def main(arguments: Sequence[str] | None = None) -> None:
    """Compiles the programs one by one, and writes what is live in each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--csv", type=Path, default=MEASURED / "memory_along_step.csv")
    file: Path = parser.parse_args(arguments).csv
    made = {name: live_bytes(step) for name, step in PROGRAMS.items()}
    rows = [(name, i, live, commit()) for name, each in made.items() for i, live in enumerate(each)]
    write_rows(file, NAMES, rows)


def live_bytes(step: str) -> list[int]:
    """Of a step of `ahead`, at each of its instructions."""
    hs.targets.without_tpu()
    mesh = axes.mesh_over(hs.targets.find_target(TARGET).devices)
    sizes = replace(ahead.SIZES, layers=LAYERS)
    settings = run.Settings(sizes, "fsdp", batch=BATCH, microbatches=1)
    lowered = ahead.lowered(settings, mesh, ahead.STEPS[step](settings))
    return [each.bytes for each in hs.targets.cost_of(lowered.compile(), TARGET).staircase]


if __name__ == "__main__":
    main()
