"""The whole set: all runs, then all tables and figures. An interrupted one goes on where it ended.

python -m tools.experiments.all [--out build/experiments] [--workers 2] [--size tiny]

`docs/findings/rerun.md` says how long it takes. CSV files and figures are put into --out; those of
the findings are copies of such a folder's.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from tools.experiments import critical_batch_size, moments
from tools.experiments.paired import batch_sizes, groups, language_model, sweeps, synthetic
from tools.experiments.redraw import __main__ as redraw
from tools.experiments.runs import OUT

FEW = ["--seeds", "2"]
# To see that everything runs: a part of each set, on a model of 16 positions.
TINY = {
    "language_model": [*FEW, "--contenders", "adam", "micro_adam"],
    "batch_sizes": ["--seeds", "1", "--contenders", "adam"],
    "sweeps": [*FEW, "--only", "tokens"],
    "synthetic": [*FEW, "--steps", "8"],
    "critical_batch_size": FEW,
    "moments": ["--examples", "64"],
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Makes what is not there; a file of the synthetic problem that is there is taken as whole."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes at once")
    parser.add_argument(
        "--size", choices=("small", "tiny"), default="small", help="tiny: a trial, of no worth"
    )
    asked = parser.parse_args(arguments)
    out, few = asked.out, TINY if asked.size == "tiny" else {}
    size = ["--size", asked.size]

    def trained(name: str, *more: str) -> list[str]:
        """The arguments of runs side by side."""
        return [*size, "--workers", str(asked.workers), *more, *few.get(name, [])]

    csv = ["--csv", str(out / "language_model.csv")]
    language_model.main(trained("language_model", *csv))
    batch_sizes.main(trained("batch_sizes", *csv))
    batch_sizes.main(trained("batch_sizes", *csv, "--factor", "0.25", "--seeds", "1"))
    sweeps.main(trained("sweeps", "--out", str(out)))
    for made in (synthetic, groups):
        file = out / f"{made.__name__.split('.')[-1]}.csv"
        if not file.exists():
            made.main(["--csv", str(file), *few.get("synthetic", [])])
    logs = ["--out", str(out), *size]
    scales = ["--csv", str(out / "critical_batch_size.csv"), *few.get("critical_batch_size", [])]
    critical_batch_size.main([*logs, *scales])
    moments.main([*logs, "--csv", str(out), *few.get("moments", [])])
    redraw.main(["--runs", str(out), "--out", str(out / "figures")])


if __name__ == "__main__":
    main()
