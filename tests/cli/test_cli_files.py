"""Files of the command line, of which none that is read is replaced; its options, and its start."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hlo_surgery as hs
from hlo_surgery.cli.output import SPELLED
from hlo_surgery.dumps import write_atomically
from hlo_surgery.requests.options import PlanningOptions
from tests.cli.test_cli import MLP, MLP_BATCH, SQUARES, answered, rejected


def named_as(way, module):
    """Another name of a file."""
    link = module.parent / "link.mlir"
    if way == "symlink":
        link.symlink_to(module)
    if way == "hard link":
        os.link(module, link)
    return {"itself": module, "relative": Path(os.path.relpath(module))}.get(way, link)


@pytest.mark.parametrize("name", ["run", "compile", "cost", "report", "rewrite"])
@pytest.mark.parametrize("way", ["itself", "relative", "symlink", "hard link"])
def test_no_command_replaces_its_module(name, way, tmp_path):
    module = tmp_path / "module.mlir"
    module.write_bytes(content := Path(MLP).read_bytes())
    out = named_as(way, module)
    asked = (*MLP_BATCH, *SQUARES) if name in ("report", "rewrite") else ()
    said = rejected(name, module, "--plot" if name == "cost" else "-o", out, *asked)
    assert f"would replace {module}" in said
    assert module.read_bytes() == content


def test_rewrite_replaces_its_module_if_told_to(tmp_path):
    module = tmp_path / "module.mlir"
    module.write_bytes(Path(MLP).read_bytes())
    answered("rewrite", module, *MLP_BATCH, *SQUARES, "-o", module, "--force")
    assert len(json.loads(answered("inspect", module, "--json").stdout)["outputs"]) == 8


@pytest.mark.parametrize("suffix", [".mlir", ".mlirbc", ".jax_export"])
def test_a_module_that_was_rewritten_before_is_known(suffix, tmp_path):
    """Its statistics are none of its gradients, though they are a tree like the parameters."""
    once, twice = (tmp_path / f"{name}{suffix}" for name in ("once", "twice"))
    answered("rewrite", MLP, *MLP_BATCH, *SQUARES, "-o", once)
    answered("rewrite", once, *MLP_BATCH, "--statistic", "norms", "-o", twice)
    outputs = json.loads(answered("inspect", twice, "--json").stdout)["outputs"]
    assert [len(outputs), outputs[-1]["name"]] == [9, "norms"]


def test_nothing_is_left_of_what_is_cut_short(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"old")

    def killed(*_):
        raise SystemExit

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(SystemExit):
        write_atomically(tmp_path / "file", b"new")
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


# A module is called by others, so that no call of it is measured; the others are for Python alone.
OF_PYTHON = {"module", "planning", "autotune", "memory_budget", "reuse_gradient", "shards"}


def test_every_other_keyword_has_its_option():
    keywords = (
        inspect.signature(hs.modules.rewrite_module).parameters.keys()
        | PlanningOptions.__annotations__.keys()
    )
    assert keywords - OF_PYTHON <= SPELLED.keys()
    shown = answered("verify", "--help").stdout
    assert all(option in shown for option in SPELLED.values())


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
