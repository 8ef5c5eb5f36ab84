"""What the command line says is in its own words, fits the terminal, and costs no import of JAX."""

import ast
import inspect
import io
import pathlib
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from rich.console import Console
from rich.status import Status
from typer.testing import CliRunner

import hlo_surgery
import hlo_surgery as hs
from hlo_surgery.cli import plans
from hlo_surgery.cli.commands import main
from hlo_surgery.cli.output import SPELLED, console
from hlo_surgery.requests.options import PlanningOptions
from tests.cli.test_cli import MLP, MLP_BATCH, answered, command, rejected

W, X = jax.ShapeDtypeStruct((3,), jnp.float32), jax.ShapeDtypeStruct((4, 3), jnp.float32)


def dumped(tmp_path, function, debug_info=True):
    file = tmp_path / "module.mlir"
    file.write_text(jax.jit(function).lower(W, X).as_text(debug_info=debug_info))
    return file


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--loss-reduction", "total"), "error: --loss-reduction is 'total'; it is one of"),
        (("--on-mixing", "ignore"), "error: --on-mixing is 'ignore'"),
        (("--strategy", "ghost"), "error: --strategy ghost does not apply to second_moment"),
        (("--strategy", "fast"), "error: --strategy is 'fast'"),
        (("--shards", "0"), "error: --shards is 0"),
        (("--memory-budget", "0"), "error: --memory-budget is 0"),
        (("--is-real", "x"), "error: --is-real must hold"),
        (("--gradient", "0", "--gradient", "0"), "error: --gradient names output"),
    ],
)
def test_an_error_names_options(wrong, said):
    assert rejected("plan", MLP, *MLP_BATCH, *wrong).startswith(said)


def test_every_keyword_has_its_option():
    keywords = (
        inspect.signature(hs.modules.rewrite_module).parameters.keys()
        | PlanningOptions.__annotations__.keys()
    )
    # A module is called by others, so that no call of it is measured.
    assert keywords - {"module", "planning", "autotune"} <= SPELLED.keys()
    shown = answered("verify", "--help").stdout
    assert all(option in shown for option in SPELLED.values() if option != "--segments")


@pytest.mark.parametrize("given", [["inspect"], ["plan", "--batch", "x"], ["diff", "--batch", "x"]])
def test_names_say_nothing_to_a_terminal(tmp_path, given):
    file = dumped(tmp_path, lambda w, x: {"NAME": jax.grad(lambda w: jnp.mean(x @ w))(w)})
    text = file.read_text().replace("NAME", r"\1B[31m").replace(__file__, r"\1B[31m")
    file.write_text(text)
    result = command(given[0], file, *given[1:])
    assert result.exit_code == 0
    assert "\x1b" not in result.output
    assert r"\x1b[31m" in result.output


FIXTURE = pathlib.Path(__file__).parents[2] / "fixtures" / "lm_scanned_layers" / "module.mlir"


@pytest.fixture(scope="module")
def plan():
    asked = {"second_moment": hs.second_moment(), "norms": hs.norms()}
    batch = ["batch['tokens']", "batch['targets']"]
    return hs.modules.rewrite_module(FIXTURE, batch=batch, statistics=asked).plan


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


@pytest.mark.parametrize("name", ["plan", "rewrite", "report"])
def test_labels_that_are_not_named_are_told(name, tmp_path):
    """They count as the same for all examples, which is seldom what is meant."""
    out = tmp_path / "out.html"
    more = [] if name == "plan" else ["--statistic", "norms", "-o", str(out)]
    told = "the same for all examples: labels int32[5]"
    for batch, is_told in (["x"], True), (["x", "labels"], False):
        named = [word for each in batch for word in ("--batch", each)]
        result = CliRunner().invoke(main, [name, MLP, *named, *more])
        assert result.exit_code == 0, result.output
        text = out.read_text() if name == "report" else result.stdout
        assert (told in text) == is_told


@pytest.mark.parametrize("columns", ["70", "120"])
def test_a_pipe_is_as_wide_as_columns_says(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    for arguments in ["inspect", MLP], ["plan", MLP, *MLP_BATCH], ["statistics"]:
        lines = answered(*arguments).stdout.splitlines()
        assert max(map(len, lines)) <= int(columns)
    monkeypatch.delenv("COLUMNS")
    assert max(map(len, answered("statistics").stdout.splitlines())) > 120


def test_commands_and_options_that_are_meant_are_told():
    assert "Did you mean 'verify'" in rejected("verfy")
    assert "--statistic" in rejected("verify", MLP, *MLP_BATCH, "--statistics", "norms")
    assert "--batch" in rejected("plan", MLP, "--batches", "x")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["verify"], ["rewriting ...", "running the original on copies", "comparing ..."]),
        (
            ["report", "-o", "page.html"],
            ["compiling what is original", "compiling what is rewritten", "drawing the page"],
        ),
    ],
)
def test_what_is_being_done_shows_on_a_terminal(arguments, said, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    name, *more = arguments
    quiet = answered(name, MLP, *MLP_BATCH, *more)
    assert not any(words in quiet.stderr for words in said)
    shown = Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)
    on_stdout = lambda stderr=False: shown if stderr else console()  # noqa: E731
    monkeypatch.setattr("hlo_surgery.cli.output.console", on_stdout)
    told, update = [], Status.update
    monkeypatch.setattr(
        Status, "update", lambda self, x, **k: told.append(x) or update(self, x, **k)
    )
    loud = answered(name, MLP, *MLP_BATCH, *more)
    # What passes too fast to be drawn is told to it all the same.
    assert all(words in "".join([shown.file.getvalue(), *told]) for words in said)
    assert loud.stdout == quiet.stdout
    before = len(shown.file.getvalue())
    answered(name, MLP, *MLP_BATCH, *more, "--json")
    assert len(shown.file.getvalue()) == before


STARTED = """
import sys
from hlo_surgery.cli import main
sys.argv = ["hlo-surgery", *{words!r}]
try:
    main()
finally:
    print("jax" in sys.modules, "numpy" in sys.modules)
"""


@pytest.mark.parametrize("words", [["--help"], ["--version"], [], ["no-such-command"]])
def test_help_imports_no_jax(words):
    program = STARTED.format(words=words)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.endswith("False False\n"), done.stderr
    assert done.returncode == (0 if "--" in "".join(words) else 2)


def test_names_for_type_checkers_are_those_at_run_time():
    body = ast.parse(Path(hlo_surgery.__file__).with_suffix(".pyi").read_text()).body
    listed = next(ast.literal_eval(node.value) for node in body if isinstance(node, ast.Assign))
    assert sorted(listed) == hlo_surgery.__all__
    assert len(listed) <= 40


def test_what_is_shown_is_what_is_public():
    shown = {name for name in dir(hlo_surgery) if not name.startswith("__")}
    rooms = {"attribution", "curvature", "estimators", "modules", "optimizers", "targets", "torch"}
    rooms -= {name for name in ("torch",) if find_spec(name) is None}
    assert shown == {*hlo_surgery.__all__, *rooms}
    assert {n for n, it in inspect.getmembers(hlo_surgery) if inspect.ismodule(it)} == rooms
    with pytest.raises(AttributeError, match="no attribute 'rewrite_module'"):
        _ = hlo_surgery.rewrite_module
