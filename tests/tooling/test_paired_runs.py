"""The experiments: training loop, paired runs and sweeps, and what they allow one to claim."""

import numpy as np
import pytest

from tools.experiments.paired.records import read_csv
from tools.experiments.paired.variants import BATCH_SIZE, CONTENDERS
from tools.experiments.paired.workers import Runs, Training, Wanted
from tools.experiments.training import data
from tools.experiments.training.loop import train
from tools.experiments.training.methods import Run
from tools.experiments.training.model import Size

TINY = Size("small", V=256, L=16, N=1, H=1, c=0.02)


def pinned():
    return data.load(None, TINY.L, TINY.V)


def test_a_run_is_that_of_the_training_loop(tmp_path):
    contender = CONTENDERS["micro_adam, clipped"]
    rate = contender.rate(0)
    made = Training("micro_adam, clipped", pinned(), TINY, BATCH_SIZE).record(rate, 3)
    run = Run(TINY, contender.method, rate, BATCH_SIZE, 3, contender.clip_norm)
    log = train(run, pinned(), tmp_path)
    assert made.loss == log.final
    np.testing.assert_allclose(made.curve, [row["loss"] for row in log.rows], atol=1e-6)


def test_a_rerun_of_a_seed_is_its_line_bit_for_bit(tmp_path):
    """In another process, beside another run, begun in another order."""
    wanted = [Wanted(name, 0.01, 0, BATCH_SIZE, TINY) for name in ("sign_ema", "adam")]
    one, other = tmp_path / "one.csv", tmp_path / "other.csv"
    Runs(one, 1).made(wanted)
    Runs(other, 2).made(wanted[::-1])
    assert one.read_bytes() == other.read_bytes()
    assert len(read_csv(one)) == 2


pytest.importorskip("optax")
