"""Files of the command line: none that is read is replaced, and arrays are whose they say."""

from pathlib import Path

import ml_dtypes
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


@pytest.mark.parametrize("name", ["run", "compile", "cost", "report"])
@pytest.mark.parametrize("link", [False, True])
def test_no_command_replaces_its_module(name, link, tmp_path):
    module = out = tmp_path / "module.mlir"
    module.write_bytes(content := Path(MLP).read_bytes())
    if link:
        out = tmp_path / "link"
        out.symlink_to(module)
    asked = {"report": (*MLP_BATCH, *SQUARES)}.get(name, ())
    said = rejected(name, module, "--plot" if name == "cost" else "-o", out, *asked)
    assert f"would replace {module}" in said
    assert module.read_bytes() == content


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


@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, [("x", np.float16)]])
def test_raw_bytes_are_no_float16(kind, tmp_path):
    """npz keeps of bfloat16 that it is raw bytes; NumPy's own floats it knows."""
    asked, _ = run(tmp_path, ("a", "b"), a=ONE.astype(kind), b=OTHER)
    assert "the module takes float16[2]" in rejected(*asked)
