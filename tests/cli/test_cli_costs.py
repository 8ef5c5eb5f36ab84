"""The commands compile and cost: what they print, write and refuse."""

import json

import jax
import jax.numpy as jnp
import pytest

from tests.cli.test_cli import MLP, answered, rejected


@pytest.fixture
def matmuls(tmp_path):
    """Modules with one and three matmuls of 64."""
    for count in (1, 3):
        looped = jax.jit(
            lambda x, count=count: jax.lax.fori_loop(0, count, lambda _, c: jnp.tanh(c @ x), x)
        )
        text = looped.lower(jax.ShapeDtypeStruct((64, 64), jnp.float32)).as_text()
        (tmp_path / f"{count}.mlir").write_text(text)
    return str(tmp_path / "1.mlir"), str(tmp_path / "3.mlir")


def cells(shown):
    """The cells of a table by the first of their row."""
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in shown.splitlines()
        if line.startswith("│")
    ]
    return {row[0]: row[1:] for row in rows}


def test_compile_shows_memory():
    rows = cells(answered("compile", MLP, "--target", "cpu").stdout)
    assert set(rows) == {"peak memory", "arguments", "outputs", "temporaries"}
    assert rows["arguments"] == ["896 B"]
    found = json.loads(answered("compile", MLP, "--json").stdout)
    assert found["target"] == jax.default_backend()
    assert found["argument_bytes"] == 896
    assert found["peak_bytes"] >= 896 + found["output_bytes"]


def test_cost_shows_work_and_memory(matmuls):
    shown = answered("cost", matmuls[1], "--target", "cpu").stdout
    rows = cells(shown)
    assert float(rows["FLOPs"][0].split()[0]) == pytest.approx(3 * 2 * 64**3 / 1e6, rel=0.01)
    assert {"bytes moved", "time at peak rates"} < set(rows)
    assert "estimated time" not in rows
    assert "XLA estimates no time for cpu" in shown
    assert "█" in shown


def test_cost_against_another_shows_ratios(matmuls):
    shown = answered("cost", matmuls[1], "--against", matmuls[0]).stdout
    rows = cells(shown)
    assert float(rows["FLOPs"][2].removesuffix(" x")) == pytest.approx(3, rel=0.01)
    assert rows["arguments"][2] == "1.000 x"
    assert shown.count("live memory of") == 2
    found = json.loads(answered("cost", matmuls[1], "--against", matmuls[0], "--json").stdout)
    assert found["cost"]["flops"] == pytest.approx(3 * found["against"]["flops"], rel=0.01)
    assert found["cost"]["staircase"][0].keys() == {"instruction", "bytes"}
    assert found["cost"]["estimated_seconds"] is None


REFUSED = {
    f"cost {MLP} --target npu": "there is no target 'npu'; there is cpu, gpu, tpu, or ahead of "
    "time tpu:GENERATION:SIZES with v3:2x2, v4:2x2x2, v5e:2x2, v5p:2x2x2, v6e:2x2, "
    "or gpu:NAME:NODESxHOSTSxDEVICES with a100:1x1x8, h100:1x1x8, h200:1x1x8, b200:1x1x8",
    f"compile {MLP} --target tpu:v5e:0x1": "a topology of v5e has 2 sizes above zero, and not 0x1",
    f"cost {MLP} --plot -": "a picture does not go to stdout; name a file",
    f"compile {MLP} --json -o -": "--json and -o - both write to stdout; name an output file",
    f"compile {MLP} -o /no/such/out": "cannot write /no/such/out: there is no folder /no/such",
    "cost missing.mlir": "missing.mlir: No such file or directory",
    f"cost {MLP} --against missing.mlir": "missing.mlir: No such file or directory",
}


@pytest.mark.parametrize("command", REFUSED)
def test_what_is_refused(command):
    assert rejected(*command.split()) == f"error: {REFUSED[command]}"
