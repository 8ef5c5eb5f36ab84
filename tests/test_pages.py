"""README and pages: Python blocks run, commands run, and both print what stands below them.

A ```text block is what the ```python block before it prints. In a ```console block, lines behind
`$ ` are commands, run in a copy of the repository's fixtures, and the others are what they print;
`...` stands for lines left out. The blocks of a page run one after another, each page for itself.
"""

import math
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hlo_surgery as hs
import hlo_surgery.attribution as ha
import hlo_surgery.optimizers as ho
from hlo_surgery import estimators
from hlo_surgery.cli.asking import statistics, usage
from hlo_surgery.cli.commands import main

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
# Whose blocks are parts of files to change, or have a test of their own.
APART = {"architecture.md", "soundness.md", "howto.md", "frameworks.md", "torch.md"}
PAGES = [README, *(p for p in sorted((ROOT / "docs").rglob("*.md")) if p.name not in APART)]
FIRST = (README, ROOT / "docs" / "start.md")
EACH = [p if p in FIRST else pytest.param(p, marks=pytest.mark.slow) for p in PAGES]


def blocks(page):
    """The kind and the text of each block of code."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def programs(page):
    """Each Python block with what it must print."""
    shown = [("", ""), *blocks(page), ("", "")]
    return [
        (code, text if kind == "text" else "")
        for (k, code), (kind, text) in pairwise(shown)
        if k == "python"
    ]


def commands(page):
    """Each command with the lines it must print."""
    sessions = "".join(text for kind, text in blocks(page) if kind == "console")
    parts = re.split(r"^\$ ", sessions, flags=re.MULTILINE)
    return [(part.splitlines()[0], part.splitlines()[1:]) for part in parts[1:]]


@pytest.mark.parametrize("page", EACH, ids=lambda page: page.stem)
def test_python_blocks_print_what_is_shown(page, capsys):
    namespace = {"__name__": "page"}
    for code, shown in programs(page):
        exec(compile(code, "example.py", "exec"), namespace)
        assert capsys.readouterr().out == shown


@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)], ids=lambda page: page.stem)
def test_commands_print_what_is_shown(page, tmp_path, monkeypatch):
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    monkeypatch.chdir(tmp_path)
    for line, shown in commands(page):
        program, *arguments = shlex.split(line)
        assert program == "hlo-surgery"
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code in (0, 1), result.output
        printed = [row.rstrip() for row in result.output.splitlines()]
        assert_shown([row.rstrip() for row in shown], printed)


def test_there_is_something_to_run():
    """Nobody has taken the blocks for prose."""
    assert sum(len(programs(page)) for page in PAGES) > 30
    shown = {shlex.split(line)[1] for page in PAGES for line, _ in commands(page)}
    assert shown >= {"inspect", "rewrite", "run", "verify", "statistics", "compile"}


def assert_shown(shown, printed):
    """The shown lines are printed in this order, with nothing left out but at `...`."""
    place, skipping = 0, False
    for line in shown:
        if line == "...":
            skipping = True
            continue
        found = [i for i in range(place, len(printed)) if agrees(line, printed[i])]
        assert found, f"{line!r} is not printed, but {printed[place:]}"
        assert skipping or found[0] == place, (
            f"{printed[place]!r} is printed where {line!r} is shown"
        )
        place, skipping = found[0] + 1, False
    assert skipping or place == len(printed), f"{printed[place:]} is not shown"


def agrees(line, other):
    """Word by word, numbers up to another platform's rounding; rulers follow their cells."""
    words, others = line.split(), other.split()
    return len(words) == len(others) and all(map(same_word, words, others))


def same_word(word, other):
    if set(word) | set(other) <= set("┏━┳┓┡╇┩└─┴┘"):
        return True
    try:
        return math.isclose(float(word), float(other), rel_tol=1e-3, abs_tol=1e-6)
    except ValueError:
        return word == other


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= 90


def test_the_first_screen_is_a_sentence_four_lines_and_the_picture():
    first = README.read_text().splitlines()[:10]
    code = [line for line in first if line.startswith("    ")]
    assert len(code) == 4
    assert "# was: jax.grad(loss)" in code[0]
    assert "docs/pictures/quick_start.png" in first[-1]


def test_the_readme_and_the_citation_name_the_paper():
    for page in (README, ROOT / "CITATION.cff"):
        assert "2510.00236" in page.read_text()


def test_the_readme_has_the_two_commands():
    lines = [line.split(" #")[0].rstrip() for line in README.read_text().splitlines()]
    assert "    pip install '.[optim]' && hlo-surgery demo" in lines
    assert '    pip install -e ".[dev]" && pytest' in lines


def test_the_public_names_of_pages_exist():
    text = "".join(page.read_text() for page in PAGES)
    assert set(re.findall(r"\bhs\.(\w+)", text)) <= set(dir(hs))
    assert set(re.findall(r"\bha\.(\w+)", text)) <= set(ha.__all__)
    assert set(re.findall(r"\bho\.(\w+)", text)) <= set(ho.__all__)


def test_the_table_has_each_statistic_as_it_is_called():
    text = (ROOT / "docs" / "statistics.md").read_text()
    rows = re.findall(r"^\| `(\w+\(.*?\))` \|", text, re.MULTILINE)
    calls = {name: usage(name, maker).replace("'", '"') for name, maker in statistics().items()}
    assert sorted(rows) == sorted(call if "(" in call else f"{call}()" for call in calls.values())


def test_the_reference_has_every_public_name():
    """And each is documented once."""
    text = (ROOT / "docs" / "api.md").read_text()
    named = re.findall(r"^\.\. auto\w+:: hlo_surgery\.([\w.]+)$", text, re.MULTILINE)
    public = [name for name in vars(estimators) if is_function_of_estimators(name)]
    of = ("attribution", "curvature", "modules", "optimizers", "targets")
    rooms = {name: getattr(hs, name) for name in of}
    named_apart = [
        f"{room}.{name}"
        for room, it in rooms.items()
        for name in it.__all__
        if name not in hs.__all__
    ]
    expected = [*hs.__all__, *named_apart]
    assert sorted(named) == sorted([*expected, *(f"estimators.{name}" for name in public)])


def is_function_of_estimators(name):
    made = getattr(getattr(estimators, name), "__module__", "") == estimators.__name__
    return made and name != "EMAState" and not name.startswith("_")


def test_every_command_is_shown_somewhere():
    known = {command.name or command.callback.__name__ for command in main.registered_commands}
    text = "".join(page.read_text() for page in PAGES)
    named = set(re.findall(r"(?:\$|&&|^ {4}) ?hlo-surgery ([a-z]+)", text, re.MULTILINE))
    assert named == known


def test_the_oldest_jax_named_is_that_of_the_package():
    named = re.search(r"JAX (\d+\.\d+\.\d+) or later", README.read_text())
    assert named
    assert f'"jax>={named[1]}"' in (ROOT / "pyproject.toml").read_text()
