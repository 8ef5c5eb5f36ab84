"""The blocks of the page on frameworks, run one after another."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "frameworks.md"


@pytest.mark.slow
def test_the_page_runs_as_it_stands(monkeypatch):
    # Keras reads it when it is imported, which asking for it does.
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    for package in ("equinox", "flax", "haiku", "keras", "optax"):
        pytest.importorskip(package)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 4
    names = {"__name__": "page"}
    for number, block in enumerate(blocks):
        # Each block is compiled for itself: a class and a function are found by their source.
        exec(compile(block, f"{PAGE}:{number}", "exec"), names)
