"""The whole set: all runs, then all tables and figures. An interrupted one goes on where it ended.

python -m tools.experiments.all [--out build/experiments] [--workers 2]

`tools/experiments/FINDINGS.md` says how long it takes. CSV files and figures are put into --out;
those of the findings are copies of such a folder's.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from tools.experiments import moments
from tools.experiments.paired import batch_sizes, groups, language_model, synthetic
from tools.experiments.redraw import __main__ as redraw
from tools.experiments.runs import OUT


def main(arguments: Sequence[str] | None = None) -> None:
    """Makes what is not there; a file of the synthetic problem that is there is taken as whole."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes at once")
    asked = parser.parse_args(arguments)
    out = asked.out
    trained = ["--csv", str(out / "language_model.csv"), "--workers", str(asked.workers)]
    language_model.main(trained)
    batch_sizes.main(trained)
    batch_sizes.main([*trained, "--factor", "0.25", "--seeds", "1"])
    if not (out / "synthetic.csv").exists():
        synthetic.main(["--csv", str(out / "synthetic.csv")])
    if not (out / "groups.csv").exists():
        groups.main(["--csv", str(out / "groups.csv")])
    moments.main(["--out", str(out), "--csv", str(out)])
    redraw.main(["--runs", str(out), "--out", str(out / "figures")])


if __name__ == "__main__":
    main()
