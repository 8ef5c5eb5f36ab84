"""The examples of one file each, as a user runs them, at a size where they take seconds."""

import importlib
import sys

import pytest

# By example its arguments, and what it must print.
SMALL = {
    "quick_start": (["--steps", "20", "--seeds", "1"], "have a wrong label"),
    "noise_scale": (["--steps", "20"], "noise scale"),
    "dp_sgd": (["--steps", "2", "--seed", "0"], "1e-05)-differentially private"),
    "mislabelled": (["--steps", "40"], "influence, scaled"),
    "micro_adam": (["--steps", "2"], "micro_adam loss"),
    "build_pipeline": (["--batch", "8"], "norms of shape (8,)"),
}


@pytest.mark.parametrize("name", SMALL)
def test_it_runs(name, monkeypatch, tmp_path, capsys):
    for package in ("sklearn", "optax", "matplotlib", "dp_accounting"):
        pytest.importorskip(package)
    arguments, shown = SMALL[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    importlib.import_module(f"examples.{name}").main()
    assert shown in capsys.readouterr().out
    pictures = {"quick_start", "noise_scale"}
    assert (tmp_path / f"{name}.png").exists() == (name in pictures)
