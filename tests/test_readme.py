"""README: its Python blocks run, its commands run, and both print what stands below them.

A ```text block is what the ```python block before it prints. In a ```console block, lines behind
`$ ` are commands, run in a copy of the repository's fixtures, and the others are what they print;
`...` stands for lines left out.
"""

import math
import re
import shlex
from itertools import pairwise
from pathlib import Path

from typer.testing import CliRunner

import hlo_surgery as hs
from hlo_surgery.cli.commands import main
from hlo_surgery.cli.statistics import statistics, usage
from hlo_surgery.required_jax import OLDEST

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def programs():
    """Each Python block with what it must print."""
    shown = [("", ""), *BLOCKS, ("", "")]
    return [
        (code, text if kind == "text" else "")
        for (k, code), (kind, text) in pairwise(shown)
        if k == "python"
    ]


def commands():
    """Each command with the lines it must print."""
    sessions = "".join(text for kind, text in BLOCKS if kind == "console")
    parts = re.split(r"^\$ ", sessions, flags=re.MULTILINE)
    return [(part.splitlines()[0], part.splitlines()[1:]) for part in parts[1:]]


def test_python_blocks_print_what_is_shown(capsys):
    assert len(programs()) >= 3
    namespace = {}
    for code, shown in programs():
        exec(compile(code, "example.py", "exec"), namespace)
        assert capsys.readouterr().out == shown


def test_commands_print_what_is_shown(tmp_path, monkeypatch):
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    monkeypatch.chdir(tmp_path)
    assert {shlex.split(line)[1] for line, _ in commands()} >= {
        "inspect",
        "rewrite",
        "run",
        "verify",
    }
    for line, shown in commands():
        program, *arguments = shlex.split(line)
        assert program == "hlo-surgery"
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code in (0, 1), result.output
        printed = [row.rstrip() for row in result.output.splitlines()]
        assert_shown([row.rstrip() for row in shown], printed)


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
    """Word by word, numbers up to what another platform's rounding moves; the rulers of tables
    follow their cells.
    """
    words, others = line.split(), other.split()
    return len(words) == len(others) and all(map(same_word, words, others))


def same_word(word, other):
    if set(word) | set(other) <= set("┏━┳┓┡╇┩└─┴┘"):
        return True
    try:
        return math.isclose(float(word), float(other), rel_tol=1e-3, abs_tol=1e-6)
    except ValueError:
        return word == other


def test_the_public_names_in_the_readme_exist():
    named = set(re.findall(r"\bhs\.(\w+)", README))
    assert named >= {"grad", "value_and_grad", "rewrite", "rewrite_module", "Refusal"}
    assert named <= set(hs.__all__)


def test_the_table_has_each_statistic_as_it_is_called():
    rows = re.findall(r"^\| `(\w+\(.*?\))` \|", README, re.MULTILINE)
    calls = {name: usage(name, maker).replace("'", '"') for name, maker in statistics().items()}
    assert sorted(rows) == sorted(call if "(" in call else f"{call}()" for call in calls.values())
    others = {
        "Module",
        "Refusal",
        "explain",
        "grad",
        "load",
        "rewrite",
        "rewrite_module",
        "value_and_grad",
    }
    others |= {
        "constant",
        "fold_squared_sums",
        "per_example_call",
        "train_step",
        "optimize",
        "compile_for",
        "cost",
        "cost_of",
        "find_target",
        "without_tpu",
    }
    assert set(calls) == set(hs.__all__) - others


def test_every_command_of_the_readme_exists():
    known = {command.name or command.callback.__name__ for command in main.registered_commands}
    named = set(re.findall(r"(?:\$|&&) hlo-surgery ([a-z]+)", README))
    assert named <= known
    assert known <= named


def test_the_oldest_jax_named_is_that_of_the_package():
    named = re.search(r"JAX (\d+\.\d+\.\d+) or later", README)
    assert named
    assert f'"jax>={named[1]}"' in (ROOT / "pyproject.toml").read_text()
    assert named[1] == ".".join(map(str, OLDEST))
