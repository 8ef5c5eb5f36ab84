"""The command's own help and the package's names, which cost no import of JAX."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import hlo_surgery

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
    stub = Path(hlo_surgery.__file__).with_suffix(".pyi").read_text()
    body = ast.parse(stub).body
    found = {
        alias.name: node.module
        for node in body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    listed = next(ast.literal_eval(node.value) for node in body if isinstance(node, ast.Assign))
    assert sorted(found) == sorted(listed) == hlo_surgery.__all__
    for name, module in found.items():
        assert getattr(import_module(module), name) is getattr(hlo_surgery, name), name
