"""Whether tests see bugs in what proves examples apart: each is planted in a copy of the tree.

python -m tools.planted_bugs [FILE ...]    of passes/, such as owners/loops.py; else all

The bugs are those of `soundness_bugs/`, each of which accepts what is unsound; each core has one
at a time. A bug takes seconds if it is killed, minutes if it survives. Exits with 1 if one
survives, with 2 if one can no longer be planted.
"""

import argparse
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
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

from tools.soundness_bugs import BUGS, Bug, tests_of

ROOT = Path(__file__).parent.parent
LIMIT = 600  # seconds for the tests of one bug
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
        bad = next((code for code in codes if code != pytest.ExitCode.OK), None)
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


def planted(trees: SimpleQueue[Path], bug: Bug) -> str:
    """The test that kills a bug in a tree that nobody is at; the tree is as it was before."""
    tree = trees.get()
    path = tree / "passes" / bug.file
    text = path.read_text()
    path.write_text(text.replace(bug.old, bug.new))
    try:
        return killer(tree, tests_of(bug))
    finally:
        path.write_text(text)
        trees.put(tree)


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
    table, survived = Table("file", "accepts", "killed by"), 0
    cores, trees = os.cpu_count() or 1, SimpleQueue[Path]()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(cores) as pool:
        for number in range(cores):
            trees.put(copied(folder, number))
        for bug, found in zip(bugs, pool.map(partial(planted, trees), bugs), strict=True):
            survived += "::" not in found  # a process that died or took too long tells nothing
            console.print(f"{bug.file}: {bug.accepts}: {found or 'survived'}", markup=False)
            table.add_row(bug.file, bug.accepts, escape(found) or "[red]survived")
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
