"""The example's trainer, stopped and resumed: each bit of a run without a stop."""

import jax
import numpy as np
import pytest

from examples.decoder import axes, model
from examples.decoder.run import Settings

pytest.importorskip("orbax.checkpoint")
from examples.decoder.train import train

SIZES = model.Sizes(layers=2, width=16, heads=2, hidden=24, length=12)
EVERY, STOPPED, STEPS = 2, 3, 5


def last(settings, steps, folder):
    """The first step of a run, its last state, and what was logged."""
    mesh = axes.mesh_over(jax.devices()[:1])
    steps = [*train(settings, mesh, steps, folder, EVERY)]
    return steps[0][0], jax.device_get(steps[-1][1]), [logged for _, _, logged in steps]


@pytest.mark.parametrize("optimizer", ["micro_adam", "dp_sgd"])
def test_the_run_is_the_same(tmp_path, optimizer):
    settings = Settings(SIZES, optimizer=optimizer, batch=4)
    last(settings, STOPPED, tmp_path)
    start, resumed, logged = last(settings, STEPS, tmp_path)
    _, whole, expected = last(settings, STEPS, None)
    assert start == EVERY
    assert logged == expected[start:]
    jax.tree.map(np.testing.assert_array_equal, resumed, whole)
