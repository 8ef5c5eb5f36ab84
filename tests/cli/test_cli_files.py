"""Files of the command line: none that is read is replaced, and arrays are whose they say."""

import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from hlo_surgery import dumps as whole_files
from hlo_surgery.dumps import write_atomically
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
        answered("plan", once, *MLP_BATCH).stdout,
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


@pytest.fixture(params=["nameless", "named"])
def way(request, monkeypatch):
    """With files without a name, and where the system has none."""
    if request.param == "named":
        monkeypatch.setattr(whole_files, "_nameless", lambda folder: None)
    elif whole_files._nameless(Path("/tmp")) is None:
        pytest.skip("this system has no files without a name")


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_a_file_keeps_its_mode_and_a_link_its_target(mode, tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "real").chmod(mode)
    (tmp_path / "link").symlink_to("real")
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == mode
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]


def test_nothing_is_left_of_what_is_cut_short(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"old")

    def killed(*_):
        raise SystemExit

    monkeypatch.setattr(os, "fchmod", killed)
    with pytest.raises(SystemExit):
        write_atomically(tmp_path / "file", b"new")
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.mark.usefixtures("way")
def test_a_file_that_cannot_be_written_is_named_as_it_was_asked_for():
    if not Path("/proc/self").is_dir():
        pytest.skip("this system has no folder that takes no files")
    with pytest.raises(
        FileNotFoundError, match=r"cannot write /proc/o\.mlir: No such file"
    ) as said:
        write_atomically(Path("/proc/o.mlir"), b"module")
    assert str(said.value).count("o.mlir") == 1
