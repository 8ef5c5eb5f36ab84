"""The blocks of the page on PyTorch, run one after another."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install '.[torch]'")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "torch.md"


def test_the_page_runs_as_it_stands():
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    names = {"__name__": "page"}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{PAGE}:{number}", "exec"), names)
