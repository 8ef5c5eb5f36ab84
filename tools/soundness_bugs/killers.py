"""Which test killed a bug in the last run: it comes first in the next, which takes seconds then.

`killers.csv` is written by `tools/planted_bugs.py`, bug by bug, in the order of the bugs.
"""

import csv
from collections import Counter
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tools.soundness_bugs import BUGS, Bug, tests_of

KILLERS = Path(__file__).parent / "killers.csv"


class Killer(NamedTuple):
    """A test, as pytest names it, and how long it and those before it took to kill a bug."""

    test: str
    seconds: float

    @property
    def is_test(self) -> bool:
        return "::" in self.test


Killers: TypeAlias = dict[Bug, Killer]


def read_killers() -> Killers:
    """The killers on record; a bug that is new has none."""
    if not KILLERS.exists():
        return {}
    with KILLERS.open(newline="") as file:
        rows = {(row["file"], row["accepts"]): row for row in csv.DictReader(file)}
    known = {bug: rows[bug.file, bug.accepts] for bug in BUGS if (bug.file, bug.accepts) in rows}
    return {bug: Killer(row["killed by"], float(row["seconds"])) for bug, row in known.items()}


def write_killers(killers: Killers) -> None:
    """Put on record what killed each bug."""
    in_order = [(bug, killers[bug]) for bug in BUGS if bug in killers]
    with KILLERS.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["file", "accepts", "killed by", "seconds"])
        for bug, (test, seconds) in in_order:
            rows.writerow([bug.file, bug.accepts, test, f"{seconds:.0f}"])


def tests_in_order(bug: Bug, killers: Killers) -> list[str]:
    """The test that killed it, then files of its name or that killed bugs of its file, then all."""
    own = [killers[bug].test] if bug in killers else []
    others = Counter(
        killer.test.split("::")[0]
        for other, killer in tuple(killers.items())
        if other.file == bug.file
    )
    namesakes = [test for test in tests_of(bug) if Path(bug.file).stem in test]
    neighbours = [test for test, _ in others.most_common()]
    return list(dict.fromkeys([*own, *namesakes, *neighbours, *tests_of(bug)]))
