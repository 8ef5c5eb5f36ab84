"""The experiments: training loop, paired runs and sweeps, and what they allow one to claim."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import hlo_surgery.optimizers as ho
from tools.experiments.paired.claims import Difference, holm, paired
from tools.experiments.paired.records import read_csv
from tools.experiments.paired.variants import BATCH_SIZE, CONTENDERS, SWEEPS
from tools.experiments.paired.workers import Runs, Training, Wanted
from tools.experiments.training import data
from tools.experiments.training.loop import train
from tools.experiments.training.methods import Run
from tools.experiments.training.model import Size
from tools.experiments.training.private import SQUARES, private_micro_adam

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


def test_a_paired_difference_is_that_of_each_seed():
    rng = np.random.default_rng(0)
    seeds = rng.normal(size=16)
    ours, theirs = seeds + 0.02 + 0.01 * rng.normal(size=16), seeds
    found = paired(list(ours), list(theirs))
    each = ours - theirs
    low, high = stats.t.interval(0.95, 15, each.mean(), each.std(ddof=1) / 4)
    np.testing.assert_allclose(found.mean, each.mean())
    np.testing.assert_allclose(
        [found.mean - found.half_width, found.mean + found.half_width], [low, high]
    )
    assert found.p < 0.001 < stats.ttest_ind(ours, theirs).pvalue


def test_holm_stops_at_the_first_that_is_not_told():
    # 0.02 is below 0.05, but not below 0.05 / 2, so that what comes behind it is not told either.
    p = {"a": 0.04, "b": 0.001, "c": 0.03, "d": 0.0001}
    told = holm({name: Difference(0.0, 0.0, value) for name, value in p.items()})
    assert told == {"a": False, "b": True, "c": False, "d": True}
    assert list(told) == list(p)


PARAMS = {"a": np.array([1.0, -2.0], np.float32), "b": np.array([[0.5]], np.float32)}
GRADIENT = {"a": np.array([0.3, 0.1], np.float32), "b": np.array([[-0.2]], np.float32)}
MOMENT = {"a": np.array([0.4, 0.1], np.float32), "b": np.array([[0.3]], np.float32)}


@pytest.mark.parametrize("name", ["msq_update", "var_update"])
def test_the_papers_update_has_no_bound(name):
    """Of equal and opposite examples mu**2 is estimated below zero, of equal ones there is no
    variance.
    """
    second = {"msq_update": 3.0, "var_update": 1.0}[name]
    given = {"second_moment": jnp.float32(second), "batch_size": 2}
    lines = SWEEPS[name].lines
    for level, cell in lines[list(lines)[1]].items():
        optimizer = replace(cell.contender, clip_norm=None).make(1.0, 0.0)
        step, _ = optimizer.update(jnp.float32(1), optimizer.init(jnp.float32(0)), **given)
        assert (step == -32) == level.startswith("bounded"), level
        assert step <= -32


@cache
def trained(name, rate=0.02, seed=3):
    text = data.load(None, TINY.L, TINY.V)
    return Training(name, text, TINY, BATCH_SIZE).record(rate, seed)


def test_a_group_of_all_examples_is_adam():
    np.testing.assert_allclose(
        trained("micro_adam, m = 16").curve, trained("adam").curve, atol=2e-5
    )
    assert abs(trained("micro_adam, m = 4").loss - trained("adam").loss) > 1e-4


def private(noise, noise_of_squares):
    return private_micro_adam(
        0.1, max_norm=0.5, noise=noise, noise_of_squares=noise_of_squares, seed=1, b2=0.95
    )


def test_without_noise_private_squares_are_the_clipped_ones():
    ours, theirs = private(0.0, 0.0), ho.micro_adam(0.1, b2=0.95)
    given = {"clipped_mean": GRADIENT, SQUARES: MOMENT, "batch_size": 16}
    got, _ = ours.update(GRADIENT, ours.init(PARAMS), PARAMS, **given)
    want, _ = theirs.update(GRADIENT, theirs.init(PARAMS), PARAMS, second_moment=MOMENT)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, want)


pytest.importorskip("optax")


@pytest.fixture(scope="module")
def lm():
    from tools.experiments.training import data, logs, loop, methods, model, moments

    return SimpleNamespace(
        data=data, logs=logs, loop=loop, methods=methods, model=model, moments=moments
    )


@pytest.fixture(scope="module")
def text(lm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    for i in range(40):
        (folder / f"{i:02}.txt").write_text(f"def f{i}(x):\n    return x + {i}\n" * 20)
    return lm.data.load(folder, length=8, vocabulary=128)


@pytest.fixture(scope="module")
def tiny(lm):
    """22 steps at a batch of 16."""
    return lm.model.Size("tiny", V=128, L=8, N=1, H=1, c=0.05)


def curve(log):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in log.rows]


@pytest.fixture(scope="module")
def uninterrupted(lm, text, tiny, tmp_path_factory):
    run = lm.methods.Run(tiny, "adam", 5e-2, batch_size=16)
    return run, lm.loop.train(run, text, tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("where", ["in a step", "between log and checkpoint"])
def test_an_interrupted_run_goes_on(lm, text, uninterrupted, tmp_path, monkeypatch, where):
    run, log = uninterrupted
    seen = []

    def on_step(number, loss):
        seen.append(number)
        if where == "in a step" and number == run.steps - 4:
            raise KeyboardInterrupt

    def save(folder, number, state):
        if where != "in a step" and number == 8:
            raise KeyboardInterrupt
        lm.logs.save(folder, number, state)

    monkeypatch.setattr(lm.loop, "save", save)
    with pytest.raises(KeyboardInterrupt):
        lm.loop.train(run, text, tmp_path, on_step)
    monkeypatch.undo()
    first = len(seen)
    assert 0 < first < run.steps
    ended = lm.loop.train(run, text, tmp_path, lambda number, loss: seen.append(number))
    assert 1 < seen[first] <= first + 1
    assert curve(ended) == curve(log)
    assert curve(lm.logs.read_log(tmp_path / run.name, log.header)) == curve(log)
