"""What paired runs allow one to claim: intervals by hand, Holm's order, CSV there and back."""

import numpy as np
import pytest
from scipy import stats

from tools.experiments.paired import synthetic
from tools.experiments.paired.claims import Difference, holm, paired
from tools.experiments.paired.records import Record, ran, read_csv, write_csv


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


def test_seeds_that_all_differ_alike():
    assert paired([1.0, 2.0], [1.0, 2.0]).p == 1
    assert paired([1.5, 2.5], [1.0, 2.0]).p == 0


@pytest.mark.parametrize("theirs", [[1.0], [1.0, 2.0, 3.0], []])
def test_losses_that_are_no_pairs(theirs):
    with pytest.raises(ValueError, match="the same seeds"):
        paired([1.0, 2.0] if len(theirs) != 1 else [1.0], theirs)


def test_holm_stops_at_the_first_that_is_not_told():
    # 0.02 is below 0.05, but not below 0.05 / 2, so that what comes behind it is not told either.
    p = {"a": 0.04, "b": 0.001, "c": 0.03, "d": 0.0001}
    told = holm({name: Difference(0.0, 0.0, value) for name, value in p.items()})
    assert told == {"a": False, "b": True, "c": False, "d": True}
    assert list(told) == list(p)


def test_claims_without_runs_count():
    found = {"a": Difference(0.0, 0.0, 0.014)}
    assert holm(found) == {"a": True}
    assert holm(found, claims=9) == {"a": False}


def test_a_run_that_diverged_has_no_interval():
    with pytest.raises(ValueError, match="a run diverged"):
        paired([1.0, np.inf], [1.0, 2.0])


def test_records_are_read_as_they_were_written(tmp_path):
    curve = (1 / 7, 0.1 + 0.2)
    runs = [
        ran(Record("adam", 0.1 + 0.2, 16, 3, 10, 1 / 3, curve)),
        ran(Record("sign_sgd", 1e-8, 16, 4, 10, np.inf)),
    ]
    write_csv(tmp_path / "runs.csv", runs)
    assert read_csv(tmp_path / "runs.csv") == runs
    assert read_csv(tmp_path / "none.csv") == []


def test_the_same_seed_gives_the_same_loss():
    first, again = (synthetic.Runs("adam", steps=3).loss(0.1, seed) for seed in (5, 5))
    assert first == again
    assert first != synthetic.Runs("adam", steps=3).loss(0.1, 6)


def test_the_parameters_that_made_the_labels_lose_least():
    truth = synthetic.truth()
    assert synthetic.excess(truth) == 0
    other = {**truth, "b": truth["b"] + 0.1 * np.arange(synthetic.CLASSES) / synthetic.CLASSES}
    assert synthetic.excess(other) > 0
