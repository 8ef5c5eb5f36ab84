"""What tests of microbatches see of the rewriting."""

import pytest

from hlo_surgery.passes.rewriting import by_microbatch


@pytest.fixture
def steps_taken(monkeypatch):
    """How many steps those loops have in which statistics were computed, by pass."""
    taken = []
    inside_step = by_microbatch.inside_step

    def noted(found, *args):
        taken.append(found.steps)
        return inside_step(found, *args)

    monkeypatch.setattr(by_microbatch, "inside_step", noted)
    return taken
