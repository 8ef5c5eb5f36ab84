"""The sweeps: what each contender is made of, that it trains so, and what is compared."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
import hlo_surgery.optimizers as ho
from tools.experiments import critical_batch_size as noise_scales
from tools.experiments.paired import sweeps
from tools.experiments.paired.contenders import BATCH_SIZE, CONTENDERS, TUNING
from tools.experiments.paired.records import Record, rows_of
from tools.experiments.paired.sweeps import against_first, against_usual, found, told
from tools.experiments.paired.training import Training
from tools.experiments.paired.variants import ALL, SWEEPS
from tools.experiments.redraw import critical_batch_size
from tools.experiments.redraw.sweeps import draw_all, table
from tools.experiments.sign_snr import Halves, Means, opposed
from tools.experiments.training import data
from tools.experiments.training.by_tokens import NAME, micro_adam_by_tokens
from tools.experiments.training.model import Size
from tools.experiments.training.private import SQUARES, private_micro_adam

TINY = Size("small", V=256, L=16, N=1, H=1, c=0.02)
PARAMS = {"a": np.array([1.0, -2.0], np.float32), "b": np.array([[0.5]], np.float32)}
GRADIENT = {"a": np.array([0.3, 0.1], np.float32), "b": np.array([[-0.2]], np.float32)}
MOMENT = {"a": np.array([0.4, 0.1], np.float32), "b": np.array([[0.3]], np.float32)}


def test_each_name_is_of_one_contender_and_each_line_has_all_levels():
    for sweep in SWEEPS.values():
        assert {tuple(line) for line in sweep.lines.values()} == {tuple(sweep.levels)}
        assert sweep.usual in sweep.levels
        for cell in sweep.cells.values():
            assert ALL[cell.name] == cell.contender


def test_the_set_is_as_large_as_its_design_reckons():
    """At seven runs each and 30 CPU seconds, 84 minutes of two cores; those of updates beside."""
    runs = {"sweeps": set(), "updates": set()}
    for sweep in SWEEPS.values():
        runs[sweep.file] |= {cell.run for cell in sweep.cells.values()}
    assert {file: len(each) for file, each in runs.items()} == {"sweeps": 48, "updates": 11}


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


@pytest.mark.parametrize(
    ("rule", "decays"),
    [
        ("along the schedule", [0.0, 1.0, 0.5]),
        ("constant", [1.0, 1.0, 1.0]),
        ("as AdamW", [0.0, 10**0.25, 0.5 * 10**0.25]),
        ("none", [0.0, 0.0, 0.0]),
    ],
)
def test_rules_of_decay(rule, decays):
    """At the rate next to the centre, a quarter of a decade above it."""
    (contender,) = {
        cell.name: cell.contender
        for (line, level), cell in SWEEPS["decay"].cells.items()
        if (line, level) == ("Adam", rule)
    }.values()
    shares = np.array([0.0, 1.0, 0.5])
    np.testing.assert_allclose(contender.decays(shares, contender.rate(1), BATCH_SIZE), decays)


@cache
def trained(name, rate=0.02, seed=3):
    text = data.load(None, TINY.L, TINY.V)
    return Training(name, text, TINY, BATCH_SIZE).record(rate, seed)


def test_a_group_of_all_examples_is_adam():
    np.testing.assert_allclose(
        trained("micro_adam, m = 16").curve, trained("adam").curve, atol=2e-5
    )
    assert abs(trained("micro_adam, m = 4").loss - trained("adam").loss) > 1e-4


@pytest.mark.parametrize(
    "name", ["adam, b2 = 0.999", "adam, clipped at 0.025", "adam, decay constant"]
)
def test_a_setting_reaches_the_run(name):
    assert trained(name).curve != trained("adam").curve


def test_noise_is_the_seeds_and_the_same_again():
    name = "private_micro_adam, s = 0.3, paid"
    both = [Training(name, data.load(None, TINY.L, TINY.V), TINY, BATCH_SIZE) for _ in range(2)]
    assert both[0].record(0.02, 1) == both[1].record(0.02, 1)
    optimizers = [ALL[name].make(0.1, 0.0, seed=seed) for seed in (0, 1)]
    given = {"clipped_mean": GRADIENT, SQUARES: MOMENT, "batch_size": 16}
    steps = [o.update(GRADIENT, o.init(PARAMS), PARAMS, **given)[0] for o in optimizers]
    assert not np.allclose(steps[0]["a"], steps[1]["a"])


def test_the_proxy_takes_the_second_moments_place():
    ours, theirs = micro_adam_by_tokens(0.1, b2=0.95), ho.micro_adam(0.1, b2=0.95)
    got, _ = ours.update(GRADIENT, ours.init(PARAMS), PARAMS, batch_size=4, **{NAME: MOMENT})
    want, _ = theirs.update(GRADIENT, theirs.init(PARAMS), PARAMS, second_moment=MOMENT)
    jax.tree.map(np.testing.assert_array_equal, got, want)
    assert ours.required_statistics[NAME].name == hs.per_token_second_moment().name


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


def test_the_noise_of_squares_is_as_large_as_is_paid_for():
    """A step of many elements without a gradient of their own shows v: its noise, and the floor."""
    many = {"a": np.ones(40_000, np.float32)}
    ours = private(0.0, 2.0)
    given = {"clipped_mean": many, SQUARES: {"a": 0 * many["a"]}, "batch_size": 16}
    steps, _ = ours.update(many, ours.init(many), many, **given)
    v = (0.1 / np.asarray(steps["a"], np.float64)) ** 2
    deviation = 2.0 * 0.5**2 / 16
    floor = deviation * (0.05 / 1.95) ** 0.5
    np.testing.assert_allclose(v.min(), floor, rtol=1e-4)
    np.testing.assert_allclose(np.mean(v <= 1.001 * floor), 0.5, atol=0.02)
    above = (v - floor)[v > 1.001 * floor]
    np.testing.assert_allclose(np.sqrt(np.mean(above**2)), deviation, rtol=0.02)


def runs(sweep, off):
    """Each cell at its centre: three tuning rates, the centre best, and four fresh seeds."""
    made = {}
    for number, (place, (name, contender, size)) in enumerate(sweep.cells.items()):
        rates = [contender.rate(i, size) for i in (-1, 0, 1)]
        for rate, loss in zip(rates, (2.0, 1.0, 2.0), strict=True):
            made[name, size, TUNING[0], rate] = Record(name, rate, size, TUNING[0], 8, loss)
        for seed in range(4):
            loss = 1 + seed + off.get(place, 0.0) + 1e-3 * np.sin(7 * number + seed)
            made[name, size, seed, rates[1]] = Record(name, rates[1], size, seed, 8, loss)
    return list(made.values())


def test_levels_are_held_against_the_usual_one_and_lines_against_the_first(tmp_path):
    sweep = SWEEPS["b2"]
    made = runs(sweep, {("MicroAdam", "0.99"): 0.25})
    each = found(made, sweep)
    usual, first = against_usual(each, sweep), against_first(each, sweep)
    assert ("Adam", "0.95") not in usual
    assert ("Adam", "0.99") not in first
    np.testing.assert_allclose(usual["MicroAdam", "0.99"].mean, 0.25, atol=2e-3)
    np.testing.assert_allclose(first["MicroAdam", "0.99"].mean, 0.25, atol=2e-3)
    assert told(first) == {
        ("MicroAdam", level): level == "0.99" for level in ("0.9", "0.95", "0.99", "0.999")
    }
    (row,) = [line for line in table(made, "b2").splitlines() if "| MicroAdam | 0.99 |" in line]
    assert row.count("*") == 2
    draw_all(made, "sweeps", tmp_path, "svg")
    assert (tmp_path / "sweep_b2.svg").exists()
    # Of the other sweeps only what they share with this one has run: nothing to compare.
    assert "no runs of `groups`" in table(made, "groups")
    assert "no runs of `private`" in table(made, "private")


def test_what_is_one_run_is_not_held_against_itself():
    sweep = SWEEPS["private"]
    first = against_first(found(runs(sweep, {}), sweep), sweep)
    assert ("MicroAdam, squares paid for", "s = 0") in first
    usual = against_usual(found(runs(sweep, {}), sweep), sweep)
    assert ("MicroAdam, squares paid for", "s = 0") not in usual


def test_only_what_is_asked_for_is_run(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(sweeps, "compare", lambda runs, names, *rest: asked.append((names, rest)))
    sweeps.main(["--out", str(tmp_path), "--only", "batch_64", "--seeds", "3"])
    assert [rest[:2] for _, rest in asked] == [(3, 16), (3, 64)]
    assert asked[0][0] == asked[1][0]
    assert set(asked[0][0]) <= set(CONTENDERS)


def test_noise_scales_by_layer_go_on_where_they_ended(tmp_path, monkeypatch):
    file, ran = tmp_path / "scales.csv", []

    def scales(run, text):
        ran.append(run.seed)
        return {share: [10.0 * (run.seed + 1)] * 6 for share in noise_scales.SHARES}

    monkeypatch.setattr(noise_scales, "scales", scales)
    for seeds in ("1", "3"):
        noise_scales.main(["--size", "tiny", "--csv", str(file), "--seeds", seeds])
    assert ran == [0, 1, 2]
    rows = rows_of(file)
    assert len(rows) == 3 * 5 * 6
    assert "| 10% | 20 ± 25 | 20 ± 25 |" in critical_batch_size.table(rows)
    critical_batch_size.draw(rows, tmp_path / "scales.svg")
    assert (tmp_path / "scales.svg").exists()


def test_where_no_mean_is_surely_not_zero_none_is_opposed():
    g, square = np.array([0.01, 2.0, 2.0]), np.array([1.0, 5.0, 5.0])
    one = Means(100, g, square, np.array([-0.5, -0.5, 0.5]), np.ones(3))
    assert opposed(Halves(one, one)) == (2, 1)
    none = one._replace(g=0.01 * np.ones(3))
    assert opposed(Halves(none, none)) == (0, 0)
