"""The example's trainer on eight devices, on two processes, or resumed: the run of one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.meshes import processes

pytest.importorskip("orbax.checkpoint")
from examples.decoder import axes, model
from examples.decoder.run import Settings
from examples.decoder.train import train
from tests.examples.decoder_worker import STEPS
from tests.meshes.test_meshes import FLAGS

TIMEOUT_S, WORKER = 300, "tests.examples.decoder_worker"
# Values within the model are of bfloat16.
ROUNDING = 2 * float(jnp.finfo(jnp.bfloat16).eps)
WAYS = {
    "data": ("data", "1", "micro_adam"),
    "fsdp": ("fsdp", "1", "micro_adam"),
    "fsdp and tensor": ("fsdp_tensor", "2", "micro_adam"),
    "private, fsdp and tensor": ("fsdp_tensor", "2", "dp_sgd"),
}


def expected(optimizer):
    """What is logged on one device."""
    mesh = axes.mesh_over(jax.devices()[:1])
    return [logged for _, _, logged in train(Settings(optimizer=optimizer), mesh, STEPS)]


def assert_is(report, optimizer):
    for found, wanted in zip(report["logged"], expected(optimizer), strict=True):
        assert found == pytest.approx(wanted, rel=ROUNDING)


@pytest.mark.parametrize("way", WAYS)
def test_eight_devices(way):
    report = processes.reports(FLAGS, TIMEOUT_S, WORKER, *WAYS[way])[-1]
    assert report["devices"] == 8
    assert (report["split"] > 0) == (way != "data")
    assert_is(report, WAYS[way][-1])


def test_two_processes(tmp_path):
    reports = processes.reports_of_two(tmp_path, TIMEOUT_S, WORKER, *WAYS["fsdp and tensor"])
    for report in reports:
        assert report["devices"] == 4
        assert_is(report, "micro_adam")


SIZES = model.Sizes(layers=2, width=16, heads=2, hidden=24, length=12)
EVERY, STOPPED, END = 2, 3, 5


def last(settings, steps, folder):
    """The first step of a run, its last state, and what was logged."""
    mesh = axes.mesh_over(jax.devices()[:1])
    steps = [*train(settings, mesh, steps, folder, EVERY)]
    return steps[0][0], jax.device_get(steps[-1][1]), [logged for _, _, logged in steps]


@pytest.mark.parametrize("optimizer", ["micro_adam", "dp_sgd"])
def test_a_run_that_is_resumed_is_the_same(tmp_path, optimizer):
    """In each bit."""
    settings = Settings(SIZES, optimizer=optimizer, batch=4)
    last(settings, STOPPED, tmp_path)
    start, resumed, logged = last(settings, END, tmp_path)
    _, whole, expected = last(settings, END, None)
    assert start == EVERY
    assert logged == expected[start:]
    jax.tree.map(np.testing.assert_array_equal, resumed, whole)
