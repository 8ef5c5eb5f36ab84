"""The tables of the pages from CSV files alone, and the one command that makes all of them."""

import pytest

from tools.experiments import all as everything
from tools.experiments.paired.records import MEASURED
from tools.experiments.redraw import pages


def test_the_pages_have_the_tables_of_the_runs_that_are_kept():
    """`python -m tools.experiments.redraw` writes them."""
    written = {page.name: page.read_text() for page in pages.FINDINGS.glob("*.md")}
    assert len(written) == 3
    assert {name: pages.filled(text, MEASURED) for name, text in written.items()} == written
    used = [name for text in written.values() for _, name, _ in pages.BLOCK.findall(text)]
    assert sorted(used) == sorted(pages.TABLES)


@pytest.mark.experiments
def test_the_whole_set_runs_and_is_not_run_again(tmp_path):
    """A part of each set, at a size of no worth; every kind of run, file and figure."""
    everything.main(["--out", str(tmp_path), "--size", "tiny", "--workers", "2"])
    files = {file.name: file.read_bytes() for file in tmp_path.glob("*.csv")}
    assert set(files) == {f"{name}.csv" for name in (*pages.RUNS, *pages.MEASURED)}
    drawn = {file.stem for file in (tmp_path / "figures").glob("*.svg")}
    assert {"batch_sizes", "batch_sizes_quarter", "sweep_tokens", "critical_batch_size"} <= drawn
    everything.main(["--out", str(tmp_path), "--size", "tiny", "--workers", "2"])
    assert {file.name: file.read_bytes() for file in tmp_path.glob("*.csv")} == files
