"""The command line: what commands print and write, all module formats, answers to bad inputs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.extend.mlir import serialize_portable_artifact
from typer.testing import CliRunner

import hlo_surgery as hs
from hlo_surgery.cli.commands import main
from hlo_surgery.passes.ir import mlir

FIXTURES = Path(__file__).resolve().parent.parent.parent / "fixtures"
MLP = str(FIXTURES / "mlp_biases" / "module.mlir")
MLP_INPUTS = str(FIXTURES / "mlp_biases" / "inputs.npz")
CONTRASTIVE = str(FIXTURES / "contrastive" / "module.mlir")
BATCH = "--batch x --batch labels:0"
MLP_BATCH = BATCH.split()
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


def loss(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)


W, X = (
    np.linspace(-1, 1, 3, dtype=np.float32),
    np.linspace(-2, 1, 12, dtype=np.float32).reshape(4, 3),
)


def as_text():
    return jax.jit(jax.grad(loss)).lower(W, X).as_text(debug_info=True).encode()


def as_bytecode():
    return mlir.to_bytecode(mlir.parse(as_text()))


def as_portable_artifact():
    return serialize_portable_artifact(as_text(), mlir.stablehlo.get_current_version())


def as_export():
    return bytes(export.export(jax.jit(jax.grad(loss)))(W, X).serialize())


FORMATS = {
    "text": as_text,
    "bytecode": as_bytecode,
    "portable artifact": as_portable_artifact,
    "jax.export artifact": as_export,
}


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_is_rewritten_and_run(form, tmp_path):
    module, out, inputs = tmp_path / "in", tmp_path / "out.mlirbc", tmp_path / "in.npz"
    module.write_bytes(FORMATS[form]())
    np.savez(inputs, arg0=W, arg1=X)
    answered("rewrite", module, "--batch", "1", *SQUARES, "-o", out)
    answered("run", out, "--inputs", inputs, "-o", tmp_path / "out.npz")
    stored = np.load(tmp_path / "out.npz")
    each = jax.vmap(jax.grad(loss), (None, 0))(W, X[:, None])
    gradient, squares = (stored[name] for name in stored.files)
    np.testing.assert_allclose(gradient, each.mean(0), rtol=1e-5)
    np.testing.assert_allclose(squares, (each**2).mean(0), rtol=1e-5)


def test_inspect_lists_names_shapes_and_dtypes():
    shown = answered("inspect", MLP).stdout
    for part in ("params['hidden']['kernel']", "labels", "6 x 13", "int32", "['output']['bias']"):
        assert part in shown
    listed = json.loads(answered("inspect", MLP, "--json").stdout)
    assert listed["arguments"][4] == {"name": "x", "shape": [5, 6], "dtype": "float32"}
    assert "plan" not in listed


def test_plan_shows_the_plan():
    shown = answered("plan", MLP, *MLP_BATCH).stdout
    assert "5 examples, loss reduced by mean" in shown
    assert "dense.py:15" in shown
    plan = json.loads(answered("plan", MLP, *MLP_BATCH, "--json").stdout)["plan"]
    assert [o["name"] for o in plan["outputs"]] == [
        port.name for port in hs.modules.load(Path(MLP)).outputs
    ]
    assert plan["outputs"][1]["strategies"] == {"second_moment": "square"}


def test_run_shows_and_saves_what_the_module_returns(tmp_path):
    out = tmp_path / "o.npz"
    rows = json.loads(answered("run", MLP, "--inputs", MLP_INPUTS, "-o", out, "--json").stdout)[
        "outputs"
    ]
    stored, reference = np.load(out), np.load(FIXTURES / "mlp_biases" / "reference.npz")
    for number, row in enumerate(rows):
        np.testing.assert_allclose(stored[row["name"]], reference[f"grad{number}"], atol=1e-6)
        assert row["largest"] == pytest.approx(stored[row["name"]].max())
        assert row["not_finite"] == 0
    assert "['hidden']['kernel']" in answered("run", MLP).stdout


def test_verify_says_equivalent():
    asked = (*MLP_BATCH, *SQUARES, "--statistic", "mean_sign")
    assert "equivalent: " in answered("verify", MLP, *asked).stdout.splitlines()[0]
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


@pytest.mark.slow
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


def test_files_that_cannot_be_read(tmp_path):
    assert "nowhere.mlir: No such file or directory" in rejected(
        "inspect", tmp_path / "nowhere.mlir"
    )
    assert "Is a directory" in rejected("inspect", tmp_path)
    assert "/proc/self/mem: Input/output error" in rejected("inspect", "/proc/self/mem")


NO_GRADIENT = "func.func @main(%x: tensor<4xi32>) -> tensor<4xi32> { return %x : tensor<4xi32> }\n"
WRONG_USE = {
    "--batch x:7": "argument x has shape (5, 6): there is no example axis 7",
    "--batch y": "no argument is named 'y'; there are params['hidden']['bias'],",
    "--batch x:": "no argument is named 'x:'",
    "--batch x:1 --batch labels": "different numbers of examples along their axes",
    f"{BATCH} --gradient w": "no output is named 'w'; there are ['hidden']['bias'],",
    f"{BATCH} --statistic median": "there is no statistic 'median'",
    f"{BATCH} --statistic mean_power(0)": "integer k >= 1",
    f"{BATCH} --loss-reduction max": "--loss-reduction is 'max'; it is one of",
    f"{BATCH} --colour": "No such option",
}


@pytest.mark.parametrize("said", WRONG_USE)
def test_wrong_use_says_what_to_do_and_touches_nothing(said, tmp_path):
    arguments, message, out = said.split(), WRONG_USE[said], tmp_path / "out.mlir"
    out.write_bytes(b"untouched")
    statistic = () if "--statistic" in arguments else SQUARES
    assert message in rejected("rewrite", MLP, *arguments, *statistic, "-o", out)
    assert message in rejected("verify", MLP, *arguments, *statistic)
    assert out.read_bytes() == b"untouched"
    assert list(tmp_path.iterdir()) == [out]


def test_a_module_without_a_gradient(tmp_path):
    module = tmp_path / "none.mlir"
    module.write_text(NO_GRADIENT)
    assert "the module has no gradient" in rejected("plan", module, "--batch", "0")


def dump_with_metrics(path):
    """Returns the loss, an accuracy, the gradient and a new average of the parameters."""

    def step(w, average, x):
        value, gradient = jax.value_and_grad(loss)(w, x)
        return {"accuracy": jnp.mean(x), "loss": value}, gradient, 0.5 * average + 0.5 * w

    path.write_text(jax.jit(step).lower(W, W, X).as_text(debug_info=True))
    return path


def test_which_outputs_are_meant_is_asked_and_told(tmp_path):
    module, out = dump_with_metrics(tmp_path / "step.mlir"), tmp_path / "out.mlir"
    asked = ("--batch", "x", "--statistic", "per_example_losses")
    for each in ("plan", module), ("rewrite", module, "-o", out), ("verify", module):
        assert "name it in --loss" in rejected(*each, *asked, "--gradient", "[1]")
        assert "more than once" in rejected(
            *each, *asked, "--gradient", "2", "--gradient", "[1]", "--gradient", "-2"
        )
        told = answered(*each, *asked, "--gradient", "[1]", "--loss", "[0]['loss']")
        assert (
            "gradients: [1]; no gradients: [0]['accuracy'], [0]['loss'] (the loss), [2]"
            in told.stdout
        )
    shown = json.loads(
        answered("plan", module, *asked, "--gradient", "2", "--loss", "1", "--json").stdout
    )
    assert (shown["plan"]["loss"], shown["plan"]["outputs"][0]["name"]) == ("[0]['loss']", "[1]")


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


@pytest.mark.parametrize(
    "content", [b"", b"no archive", b"PK\x03\x04", Path(MLP_INPUTS).read_bytes()[:700]]
)
def test_inputs_that_are_no_archive(content, tmp_path):
    inputs = tmp_path / "in.npz"
    inputs.write_bytes(content)
    assert "is no npz archive" in rejected("run", MLP, "--inputs", inputs)


def test_a_module_that_xla_cannot_run(tmp_path):
    module = tmp_path / "m.mlir"
    call = "%y = stablehlo.custom_call @nowhere(%x) : (tensor<2xf32>) -> tensor<2xf32>"
    module.write_text(
        f"func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {{\n {call}\n return %y : "
        f"tensor<2xf32>\n}}"
    )
    assert "XLA cannot run this module here" in rejected("run", module)


SPREAD = r"[\d.]+ x \([\d.]+ to [\d.]+\)"
CHUNKED = [f"micro_grad, {name}" for name in ("chunks of 1", "chunks of 8", "whole batch")]


@pytest.mark.slow
def test_demo_ends_equivalent_and_shows_the_costs():
    """Every program in a table for each model, the gradient first, with the spread of its time."""
    pytest.importorskip("optax")
    lines = answered("demo").stdout.splitlines()
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line[0] == "│"]
    assert [row[0] for row in rows] == ["gradient alone", "hlo-surgery", *CHUNKED, "vmap"] * 2
    assert all(re.fullmatch(SPREAD, row[2]) for row in rows)
    assert sum("off by" in line and "of vmap's" in line for line in lines) == 2
    assert lines[-1] == "equivalent"


def test_a_pass_says_how_much_it_did(tmp_path):
    def squares(w, x):
        return jnp.mean(jax.vmap(jax.grad(loss), (None, 0))(w, x) ** 2, 0)

    whole, out = tmp_path / "whole.mlir", tmp_path / "out.mlir"
    weights = jax.ShapeDtypeStruct((3, 2), jnp.float32)
    batch = jax.ShapeDtypeStruct((4, 1, 3), jnp.float32)
    whole.write_text(jax.jit(squares).lower(weights, batch).as_text())
    options = ("rewrite", whole, "--pass", "fold_squared_sums", "-o", out)
    assert "1 output of the original, 1 sum folded" in answered(*options).stdout
    assert json.loads(answered(*options, "--json").stdout)["folded"] == 1
