"""The command line: what commands print and write, all module formats, answers to bad inputs.

This folder alone tests the commands, which end with exit code 2 and no traceback where they are
misused.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import hlo_surgery as hs
from hlo_surgery.cli.commands import main

FIXTURES = Path(__file__).resolve().parent.parent.parent / "fixtures"
MLP = str(FIXTURES / "mlp_biases" / "module.mlir")
MLP_INPUTS = str(FIXTURES / "mlp_biases" / "inputs.npz")
CONTRASTIVE = str(FIXTURES / "contrastive" / "module.mlir")
MLP_BATCH = ("--batch", "x", "--batch", "labels:0")
SQUARES = ("--statistic", "second_moment")


def command(*arguments, stdin=None):
    return CliRunner().invoke(main, [str(a) for a in arguments], input=stdin)


def answered(*arguments, stdin=None):
    """The result of a command that must succeed."""
    result = command(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result


def rejected(*arguments, code=2, stdin=None):
    """What a command that must fail says: on stderr, without a traceback."""
    result = command(*arguments, stdin=stdin)
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    return " ".join(result.stderr.split())


def test_inspect_with_a_batch_shows_the_plan():
    shown = answered("inspect", MLP, *MLP_BATCH).stdout
    assert "5 examples, loss reduced by mean" in shown
    assert "dense.py:15" in shown
    plan = json.loads(answered("plan", MLP, *MLP_BATCH, "--json").stdout)["plan"]
    assert [o["name"] for o in plan["outputs"]] == [
        port.name for port in hs.modules.load(Path(MLP)).outputs
    ]
    assert plan["outputs"][1]["strategies"] == {"second_moment": "square"}


def test_verify_says_equivalent():
    asked = (*MLP_BATCH, *SQUARES, "--statistic", "mean_sign")
    assert "equivalent: " in answered("verify", MLP, *asked).stdout.splitlines()[-1]
    verdict = json.loads(answered("verify", MLP, *asked, "--inputs", MLP_INPUTS, "--json").stdout)
    assert verdict["verdict"] == "equivalent"
    assert {c["kind"] for c in verdict["comparisons"]} == {
        "output",
        "second difference",
        "mean of copies",
        "statistic",
    }


@pytest.mark.parametrize("name", ["plan", "verify", "rewrite"])
def test_mixing_examples_is_refused_with_its_line(name, tmp_path):
    out = tmp_path / "out.mlir"
    asked = {"plan": (), "verify": SQUARES, "rewrite": (*SQUARES, "-o", out)}[name]
    said = rejected(name, CONTRASTIVE, "--batch", "images", "--batch", "texts", *asked, code=1)
    assert "mixing.py:31: refused: stablehlo.dot_general" in said
    result = command(name, CONTRASTIVE, "--batch", "images", "--batch", "texts", *asked, "--json")
    assert (result.exit_code, json.loads(result.stdout)["refusal"]["where"]) == (1, "mixing.py:31")
    assert not out.exists()


def pipe(*arguments, data=b""):
    program = [
        sys.executable,
        "-c",
        "from hlo_surgery.cli.commands import main; main()",
        *map(str, arguments),
    ]
    return subprocess.run(program, input=data, capture_output=True, timeout=120, check=False)


def test_dash_is_stdin_and_stdout():
    done = pipe("rewrite", "-", *MLP_BATCH, *SQUARES, "-o", "-", data=Path(MLP).read_bytes())
    assert done.returncode == 0, done.stderr
    assert len(hs.modules.load(done.stdout).outputs) == 8
    assert b"\x1b[" not in done.stdout + done.stderr
    again = pipe("inspect", "-", "--json", data=done.stdout)
    assert json.loads(again.stdout)["outputs"][4]["name"] == "second_moment/['hidden']['bias']"


BAD_FILES = {
    b"": "the module is empty",
    b" \n": "the module is empty",
    b"hello, world\n": "this is no StableHLO module",
    bytes(range(256)) * 9: "this is no StableHLO module",
    b"ML\xefR" + bytes(99): "this is no StableHLO module",
    b"module {}": "no function @main",
    b"func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> "
    b"{ return %x : tensor<?xf32> }": "static shape",
}


@pytest.mark.parametrize("name", ["inspect", "rewrite", "run", "verify"])
@pytest.mark.parametrize("content", BAD_FILES)
def test_files_that_are_no_module(name, content, tmp_path):
    module, out = tmp_path / "bad", tmp_path / "out"
    module.write_bytes(content)
    out.write_bytes(b"untouched")
    asked = {
        "rewrite": ("--batch", "0", *SQUARES, "-o", out),
        "run": ("-o", out),
        "verify": ("--batch", "0", *SQUARES),
    }
    said = rejected(name, module, *asked.get(name, ()))
    assert BAD_FILES[content] in said
    assert str(module) in said
    assert out.read_bytes() == b"untouched"


WRONG_USE = {
    "an axis that is not there": (
        ("--batch", "x:7"),
        "argument x has shape (5, 6): there is no example axis 7",
    ),
    "an unknown argument": (
        ("--batch", "y"),
        "no argument is named 'y'; there are params['hidden']['bias'],",
    ),
    "a colon without an axis": (("--batch", "x:"), "no argument is named 'x:'"),
    "sizes that differ": (
        ("--batch", "x:1", "--batch", "labels"),
        "different numbers of examples along their axes",
    ),
    "an unknown gradient": (
        (*MLP_BATCH, "--gradient", "w"),
        "no output is named 'w'; there are ['hidden']['bias'],",
    ),
    "an unknown statistic": (
        (*MLP_BATCH, "--statistic", "median"),
        "there is no statistic 'median'",
    ),
    "code for a statistic": (
        (*MLP_BATCH, "--statistic", "mean_power(exit())"),
        "are no plain values",
    ),
    "a power that is none": ((*MLP_BATCH, "--statistic", "mean_power(0)"), "integer k >= 1"),
    "an unknown reduction": (
        (*MLP_BATCH, "--loss-reduction", "max"),
        "--loss-reduction is 'max'; it is one of",
    ),
    "an option that is none": ((*MLP_BATCH, "--colour"), "No such option"),
}


@pytest.mark.parametrize("case", WRONG_USE)
def test_wrong_use_says_what_to_do_and_touches_nothing(case, tmp_path):
    arguments, message = WRONG_USE[case]
    out = tmp_path / "out.mlir"
    out.write_bytes(b"untouched")
    statistic = () if "--statistic" in arguments else SQUARES
    assert message in rejected("rewrite", MLP, *arguments, *statistic, "-o", out)
    assert message in rejected("verify", MLP, *arguments, *statistic)
    assert out.read_bytes() == b"untouched"
    assert list(tmp_path.iterdir()) == [out]


def changed_inputs(path, **changes):
    arrays = {**np.load(MLP_INPUTS), **changes}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def bad_inputs():
    return {
        "an array is missing": ({"arg4": None}, "holds no array x or arg4 for argument 4"),
        "an array is of no argument": (
            {"arg9": np.zeros(2)},
            "holds arg9; the module has no such arguments",
        ),
        "a shape differs": (
            {"arg4": np.zeros((4, 6), np.float32)},
            "x is float32[4, 6]; the module takes float32[5, 6]",
        ),
        "a dtype differs": (
            {"arg4": np.zeros((5, 6))},
            "x is float64[5, 6]; the module takes float32[5, 6]",
        ),
        "an array holds objects": ({"arg4": np.array([{}])}, "is no npz archive of plain arrays"),
    }


@pytest.mark.parametrize("name", ["run", "verify"])
@pytest.mark.parametrize("case", bad_inputs())
def test_inputs_that_do_not_fit(name, case, tmp_path):
    changes, message = bad_inputs()[case]
    inputs, out = changed_inputs(tmp_path / "in.npz", **changes), tmp_path / "out.npz"
    out.write_bytes(b"untouched")
    asked = ("-o", out) if name == "run" else (*MLP_BATCH, *SQUARES)
    assert message in rejected(name, MLP, "--inputs", inputs, *asked)
    assert out.read_bytes() == b"untouched"


SHARES = (
    r"{}: [\d.]+ \([\d.]+ to [\d.]+\) of plain's time; "
    r"[\d.]+ \([\d.]+ to [\d.]+\) of that of '.*', which is the faster, "
    r"and [\d.]+ of its temporaries$"
)


def test_demo_ends_equivalent_and_shows_the_costs():
    """The chunks that are shown are those that were faster."""
    pytest.importorskip("optax")
    lines = answered("demo").stdout.splitlines()
    assert lines[-1] == "equivalent"
    for model in ("decoder LM", "MLP"):
        for program in ("plain", "rewritten", "vmap, one by one", "vmap, all at once"):
            assert [line for line in lines if f"│ {model}" in line and program in line]
        assert [line for line in lines if re.match(SHARES.format(model), line)]
