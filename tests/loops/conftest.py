"""What tests of microbatches see of the rewriting."""

import pytest

from hlo_surgery.passes.rewriting import by_microbatch


@pytest.fixture
def steps_taken(monkeypatch):
    """How many steps those loops have in which statistics were computed."""
    taken = []
    inside = by_microbatch._inside

    def noted(module, found, *args):
        taken.append(found.steps)
        return inside(module, found, *args)

    monkeypatch.setattr(by_microbatch, "_inside", noted)
    return taken
