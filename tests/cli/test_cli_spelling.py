"""What the command line says is in its own words, fits the terminal, and costs no import of JAX."""

import inspect
import subprocess
import sys

import pytest

import hlo_surgery as hs
from hlo_surgery.cli.output import SPELLED
from hlo_surgery.requests.options import PlanningOptions
from tests.cli.test_cli import answered


def test_every_keyword_has_its_option():
    keywords = (
        inspect.signature(hs.modules.rewrite_module).parameters.keys()
        | PlanningOptions.__annotations__.keys()
    )
    # A module is called by others, so that no call of it is measured.
    assert keywords - {"module", "planning", "autotune", "segments"} <= SPELLED.keys()
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
