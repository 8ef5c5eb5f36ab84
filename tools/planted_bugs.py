"""Whether tests see bugs in what proves examples apart: each is planted in a copy of the tree.

python -m tools.planted_bugs [FILE ...]    of passes/, such as owners/loops.py; else all

The bugs are those of `soundness_bugs/`, each of which accepts what is unsound; each core has one
at a time. What kills a bug is put on record in `soundness_bugs/killers.csv` and comes first the
next time: a bug takes seconds if it is killed again, minutes if it is new or survives. Exits with
1 if one survives, with 2 if one can no longer be planted.
"""

import argparse
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tools.soundness_bugs import BUGS, Bug
from tools.soundness_bugs.killers import (
    Killer,
    Killers,
    read_killers,
    tests_in_order,
    write_killers,
)

ROOT = Path(__file__).parent.parent
LIMIT = 600  # seconds for the tests of one bug
# A killer on record may have another name by now: pytest calls that a wrong use of it.
PASSED = (pytest.ExitCode.OK, pytest.ExitCode.USAGE_ERROR)
# What every test imports and no bug is in is imported once, and forked.
FORKS = multiprocessing.get_context("forkserver")
IMPORTED = ["hypothesis", "jax", "jax.export", "numpy", "optax", "pytest", "rich"]


def chosen() -> list[Bug]:
    """The bugs of the files that were named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", metavar="FILE")
    files: list[str] = parser.parse_args().files
    known = {bug.file for bug in BUGS}
    if not known.issuperset(files):
        parser.error(f"bugs are planted in {', '.join(sorted(known))}")
    return [bug for bug in BUGS if not files or bug.file in files]


class _FirstFailure:
    """A plugin of pytest: the test that fails, or the file that cannot be collected."""

    name = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.pytest_collectreport(report)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid


def _test(tree: str, tests: Sequence[str], answer: Connection) -> None:
    """In a process of its own: the tests of a tree, until one fails."""
    os.chdir(tree)
    sys.dont_write_bytecode = True
    sys.path.insert(0, tree)
    import hlo_surgery

    assert hlo_surgery.__file__.startswith(tree), "the planted code is not what is tested"
    failure = _FirstFailure()
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        # One after the other, since to collect all takes longer than most need to fail.
        codes = (_exit_code(test, failure) for test in tests)
        bad = next((code for code in codes if code not in PASSED), None)
    answer.send(failure.name or ("" if bad is None else f"pytest: {bad!r}"))


def _exit_code(test: str, failure: _FirstFailure) -> int:
    # The slow ones too, of which a file may have no others.
    options = ["-x", "-n", "0", "-p", "no:cacheprovider", "-m", ""]
    return pytest.main([*options, test], plugins=[failure])


def killer(tree: Path, tests: Sequence[str]) -> str:
    """The test of these files that fails on a tree; empty where none does."""
    ours, theirs = FORKS.Pipe()
    process = FORKS.Process(target=_test, args=(str(tree), tests, theirs))
    process.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(LIMIT) else "out of time"
    except EOFError:
        return "the process died"
    finally:
        process.kill()
        process.join()


def planted(trees: SimpleQueue[Path], bug: Bug, tests: Sequence[str]) -> str:
    """The test that kills a bug in a tree that nobody is at; the tree is as it was before."""
    tree = trees.get()
    path = tree / "passes" / bug.file
    text = path.read_text()
    path.write_text(text.replace(bug.old, bug.new))
    try:
        return killer(tree, tests)
    finally:
        path.write_text(text)
        trees.put(tree)


def put_on_record(trees: SimpleQueue[Path], killers: Killers, bug: Bug) -> Killer:
    """What kills a bug; what is no test is off the record."""
    start = time.monotonic()
    test = planted(trees, bug, tests_in_order(bug, killers))
    found = Killer(test, time.monotonic() - start)
    if found.is_test:
        killers[bug] = found
    else:
        killers.pop(bug, None)
    return found


def misfits(bugs: list[Bug]) -> list[Bug]:
    """Bugs whose old text is not in its file, or more than once."""
    return [bug for bug in bugs if (ROOT / "passes" / bug.file).read_text().count(bug.old) != 1]


def copied(folder: str, number: int) -> Path:
    tree = Path(folder).resolve() / f"tree{number}"
    ignored = shutil.ignore_patterns(".git", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=ignored)
    subprocess.run([tree / "tools" / "link_compiler"], check=True)
    return tree


def plant_all(bugs: list[Bug], console: Console) -> int:
    """Say what killed each, then all in a table; how many survived."""
    table, survived = Table("file", "accepts", "killed by", "seconds"), 0
    cores, trees, killers = os.cpu_count() or 1, SimpleQueue[Path](), read_killers()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(cores) as pool:
        for number in range(cores):
            trees.put(copied(folder, number))
        all_found = pool.map(partial(put_on_record, trees, killers), bugs)
        for bug, found in zip(bugs, all_found, strict=True):
            survived += not found.is_test  # a process that died or took too long tells nothing
            said = found.test or "survived"
            console.print(f"{bug.file}: {bug.accepts}: {said}, {found.seconds:.0f} s", markup=False)
            table.add_row(bug.file, bug.accepts, escape(said), f"{found.seconds:.0f}")
            write_killers(killers)
    console.print(table, f"{len(bugs) - survived} of {len(bugs)} killed")
    return survived


def main() -> None:
    bugs, console = chosen(), Console()
    if stale := misfits(bugs):
        for bug in stale:
            console.print(f"{bug.file}: not there exactly once: {bug.old}", markup=False)
        sys.exit(2)
    FORKS.set_forkserver_preload(IMPORTED)
    sys.exit(1 if plant_all(bugs, console) else 0)


if __name__ == "__main__":
    main()
