"""Hold the analysis by owners against that by example axes: which gradients each accepts, and why.

    python -m tools.compare_analyses moves claims fixtures
    python -m tools.compare_analyses random --count 300 --seed 1
    python -m tools.compare_analyses corpus --folder ../corpus
    python -m tools.compare_analyses tests -- tests/test_near_misses.py

Each difference is settled by the mixed second difference: what only the new one accepts must not
mix, but in what it lists as a constant. Cases that pass `on_mixing="contribution"` are left out.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.fast_compiles import FAST_COMPILES  # isort: skip
import os

os.environ.setdefault("XLA_FLAGS", FAST_COMPILES)

from tools.analyses import cases
from tools.analyses.answers import Pair, asked
from tools.analyses.cases import Case
from tools.analyses.mixed_difference import mixed_difference
from tools.analyses.recorded import recorded

KINDS = (
    "both accept",
    "accept, other constants",
    "both refuse",
    "only the old accepts",
    "only the new accepts",
)


def all_cases(options: argparse.Namespace) -> Iterator[Case]:
    """The cases of the sources that were asked for."""
    for name in options.sources:
        match name:
            case "moves":
                yield from cases.moves()
            case "claims":
                yield from cases.claims()
            case "fixtures":
                yield from cases.fixtures()
            case "random":
                yield from cases.drawn(options.count, options.seed)
            case "corpus":
                yield from cases.folder(options.folder, "grad.mlir", "examples_along")
            case "tests":
                yield from recorded(options.arguments)
            case _:
                raise SystemExit(f"no source of cases is called {name}")


def described(pair: Pair, settled: bool) -> str:
    """A case on which the two differ."""
    lines = [f"{pair.kind}: {pair.case.origin}: {pair.case.name}"]
    lines += [f"    old: {pair.old.why}"] if pair.old.why else []
    lines += [f"    new: {pair.new.why}"] if pair.new.why else []
    only_old, only_new = pair.old.data - pair.new.data, pair.new.data - pair.old.data
    lines += [f"    constants of the old alone: {sorted(only_old)}"] if only_old else []
    lines += [f"    constants of the new alone: {sorted(only_new)}"] if only_new else []
    if settled and pair.kind.startswith("only"):
        lines.append(f"    mixed second difference: {mixed_difference(pair.case):.1e}")
    return "\n".join(lines)


def table(counts: Counter[tuple[str, str]]) -> str:
    """How many cases of each origin are of each kind."""
    origins = dict.fromkeys(origin for origin, _ in counts)
    cells = [[origin, *(str(counts[origin, kind]) for kind in KINDS)] for origin in origins]
    rows = [["", *KINDS], *cells]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ([c.ljust(w) for c, w in zip(row, widths, strict=True)] for row in rows)
    return "\n".join("  ".join(row) for row in lines)


def main() -> None:
    """Ask, and print where they differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="+")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--settle", action="store_true")
    here = sys.argv[1:]
    end = here.index("--") if "--" in here else len(here)
    options = parser.parse_args(here[:end], argparse.Namespace(arguments=here[end + 1 :]))
    counts, seconds = Counter[tuple[str, str]](), [0.0, 0.0]
    for case in all_cases(options):
        if case.contribution:
            continue
        pair = asked(case)
        counts[case.origin, pair.kind] += 1
        seconds = [seconds[0] + pair.old.seconds, seconds[1] + pair.new.seconds]
        if pair.kind not in ("both accept", "both refuse"):
            print(described(pair, options.settle), flush=True)
    print(table(counts))
    print(f"seconds: old {seconds[0]:.2f}, new {seconds[1]:.2f}")


if __name__ == "__main__":
    main()
