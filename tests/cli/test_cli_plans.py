"""The plan on terminals of several widths: no line is broken within a word, and nothing is lost."""

import io
import pathlib
import re

import pytest
from rich.console import Console
from typer.testing import CliRunner

import hlo_surgery as hs
from hlo_surgery.cli import plans
from hlo_surgery.cli.commands import main

FIXTURES = pathlib.Path(__file__).parents[2] / "fixtures"
FIXTURE = FIXTURES / "lm_scanned_layers" / "module.mlir"
MLP = str(FIXTURES / "mlp_biases" / "module.mlir")


@pytest.fixture(scope="module")
def plan():
    asked = {"second_moment": hs.second_moment(), "norms": hs.norms()}
    batch = ["batch['tokens']", "batch['targets']"]
    return hs.rewrite_module(FIXTURE, batch=batch, statistics=asked).plan


def printed(plan, width, monkeypatch):
    shown = Console(file=io.StringIO(), width=width)
    monkeypatch.setattr(plans, "console", lambda: shown)
    plans.print_plan(plan)
    return shown.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_words_are_whole_and_lines_fit(plan, width, monkeypatch):
    text = printed(plan, width, monkeypatch)
    assert max(map(len, text.splitlines())) <= width
    for output in plan.outputs:
        assert output.name in text
        for site in output.sites:
            assert re.search(rf"{site.op.split('.')[1]} at {re.escape(site.where)}", text)
        for name in output.predicted:
            assert re.search(rf"{name} \+\S+ \w+, \S+ k?B", text)


@pytest.mark.parametrize("name", ["inspect", "rewrite", "report"])
def test_labels_that_are_not_named_are_told(name, tmp_path):
    """They count as the same for all examples, which is seldom what is meant."""
    out = tmp_path / "out.html"
    more = [] if name == "inspect" else ["--statistic", "norms", "-o", str(out)]
    told = "the same for all examples: labels int32[5]"
    for batch, is_told in (["x"], True), (["x", "labels"], False):
        named = [word for each in batch for word in ("--batch", each)]
        result = CliRunner().invoke(main, [name, MLP, *named, *more])
        assert result.exit_code == 0, result.output
        text = out.read_text() if name == "report" else result.stdout
        assert (told in text) == is_told
