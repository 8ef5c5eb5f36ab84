"""Files of the command line: none that is read is replaced, and arrays are whose they say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cli.test_cli import MLP, MLP_BATCH, MLP_INPUTS, SQUARES, answered, rejected

TWO = """!h = tensor<2xf16>
func.func @main(%a: !h loc("{}"), %b: !h loc("{}")) -> !h {{
  %c = stablehlo.constant dense<2.0> : tensor<2xf16>
  %d = stablehlo.multiply %a, %c : tensor<2xf16>
  %e = stablehlo.add %d, %b : tensor<2xf16>
  return %e : tensor<2xf16>
}}
"""


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


def test_rewrite_does_not_replace_what_stdin_reads(tmp_path):
    module = tmp_path / "module.mlir"
    module.write_bytes(content := Path(MLP).read_bytes())
    program = "from hlo_surgery.cli.commands import main; main()"
    asked = ["rewrite", "-", *MLP_BATCH, *SQUARES, "-o", str(module)]
    with module.open("rb") as stdin:
        done = subprocess.run([sys.executable, "-c", program, *asked], stdin=stdin, check=False)
    assert done.returncode == 2
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
    earlier = json.loads(answered("inspect", once, "--json").stdout)["earlier"]
    assert len(earlier) == 4
    assert all(name.startswith("second_moment/") for name in earlier)
    asked = (*MLP_BATCH, "--statistic", "norms")
    for said in (
        answered("inspect", once).stdout,
        answered("inspect", once, *MLP_BATCH).stdout,
        answered("rewrite", once, *asked, "-o", twice).stdout,
        answered("verify", once, *MLP_BATCH).stdout,
    ):
        assert "rewritten before: statistics of then are second_moment/['hidden']['bias']" in said
    outputs = json.loads(answered("inspect", twice, "--json").stdout)["outputs"]
    assert [len(outputs), outputs[-1]["name"]] == [9, "norms"]
    assert "rewritten before" not in answered("inspect", MLP).stdout


def test_run_does_not_replace_its_inputs(tmp_path):
    inputs = tmp_path / "in.npz"
    inputs.write_bytes(content := Path(MLP_INPUTS).read_bytes())
    assert f"would replace {inputs}" in rejected("run", MLP, "--inputs", inputs, "-o", inputs)
    assert inputs.read_bytes() == content


def run(tmp_path, names, **arrays):
    module, inputs, out = tmp_path / "two.mlir", tmp_path / "in.npz", tmp_path / "out.npz"
    module.write_text(TWO.format(*names))
    np.savez(inputs, **arrays)
    return ("run", module, "--inputs", inputs, "-o", out), out


ONE, OTHER = np.array([1, 2], np.float16), np.array([3, 4], np.float16)


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        (("a", "b"), ("a", "b")),
        (("a", "b"), ("arg0", "b")),
        (("arg1", "arg0"), ("arg1", "arg0")),
        (("arg1", "b"), ("arg0", "b")),
    ],
)
def test_an_array_is_of_the_argument_that_it_names(names, keys, tmp_path):
    asked, out = run(tmp_path, names, **dict(zip(keys, (ONE, OTHER), strict=True)))
    answered(*asked)
    (found,) = np.load(out).values()
    assert found.tolist() == [5, 8]


@pytest.mark.parametrize(
    ("names", "keys", "said"),
    [
        (("a", "b"), ("a", "arg0", "b"), "a and arg0, both for argument 0"),
        (("arg1", "b"), ("arg0", "arg1"), "arg1 and arg0, both for argument 0"),
    ],
)
def test_an_array_that_may_be_of_two_arguments(names, keys, said, tmp_path):
    asked, _ = run(tmp_path, names, **dict(zip(keys, (ONE, OTHER, OTHER), strict=False)))
    assert said in rejected(*asked)
