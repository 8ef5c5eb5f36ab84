"""The paired runs of the language model: as the training loop's, resumed, tuned off the edge."""

from dataclasses import replace

import numpy as np
import pytest

from tools.experiments.paired import replay, workers
from tools.experiments.paired.contenders import CONTENDERS, TUNING
from tools.experiments.paired.language_model import best_rates, compare
from tools.experiments.paired.records import Record, ran, read_csv, write_csv
from tools.experiments.paired.training import Training
from tools.experiments.paired.workers import Runs, Wanted
from tools.experiments.training import data
from tools.experiments.training.loop import train
from tools.experiments.training.methods import Run
from tools.experiments.training.model import SIZES, Size

TINY = Size("small", V=256, L=16, N=1, H=1, c=0.02)
BATCH_SIZE = 16


def text():
    return data.load(None, TINY.L, TINY.V)


def test_a_run_is_that_of_the_training_loop(tmp_path):
    contender = CONTENDERS["micro_adam, clipped"]
    rate = contender.rate(0)
    made = Training("micro_adam, clipped", text(), TINY, BATCH_SIZE).record(rate, 3)
    run = Run(TINY, contender.method, rate, BATCH_SIZE, 3, contender.clip_norm)
    log = train(run, text(), tmp_path)
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


def test_a_kept_line_is_told_from_another(tmp_path, capsys):
    tiny = SIZES["tiny"]
    wanted = [Wanted("sign_ema", rate, 0, BATCH_SIZE, tiny) for rate in (0.01, 0.02)]
    kept = Runs(tmp_path / "kept.csv").made(wanted)
    asked = [str(tmp_path / "kept.csv"), "--size", "tiny", "--workers", "1"]
    with pytest.raises(SystemExit, match="0"):
        replay.main(asked)
    assert capsys.readouterr().out.count("the same bits") == 1  # One run stands for its method.
    write_csv(tmp_path / "kept.csv", [ran(replace(kept[0], loss=np.nextafter(kept[0].loss, 9)))])
    with pytest.raises(SystemExit, match="1"):
        replay.main(asked)
    assert "ANOTHER" in capsys.readouterr().out


def test_runs_that_are_there_are_not_made_again(tmp_path, monkeypatch):
    file, wanted = tmp_path / "runs.csv", Wanted("adam", 0.1, 3, BATCH_SIZE, TINY)
    record = Record("adam", 0.1, BATCH_SIZE, 3, TINY.steps(BATCH_SIZE), 2.5)
    write_csv(file, [ran(record)])
    monkeypatch.setattr(workers, "_trained", lambda missing, *_: iter([record] * len(missing)))
    whole = file.read_bytes()
    assert Runs(file).made([wanted]) == [record]
    assert file.read_bytes() == whole
    Runs(file).made([wanted, replace(wanted, seed=4)])
    assert len(read_csv(file)) == 2


class Known:
    """Runs whose loss is lowest at the rate with this number, and their order."""

    def __init__(self, best):
        self.best, self.asked = best, []
        self.numbers = {CONTENDERS["adam"].rate(i): i for i in range(-9, 10)}

    def made(self, wanted, title):
        self.asked += [one for one in wanted if one not in self.asked]
        return [self.record(one) for one in wanted]

    def record(self, one):
        loss = abs(self.numbers[one.rate] - self.best) + 0.1 * (one.seed - TUNING[1])
        return Record(one.name, one.rate, one.batch_size, one.seed, 1, loss)


@pytest.mark.parametrize(("best", "inner", "tried"), [(0, 3, 5), (1, 4, 5), (4, 7, 8), (-3, 6, 7)])
def test_the_best_rate_is_not_at_an_edge_and_stages_go_from_little_to_all(best, inner, tried):
    runs = Known(best)
    compare(runs, ["adam"], 6, BATCH_SIZE, TINY)
    order = [one.seed in TUNING for one in runs.asked]
    untuned = [False] * 4
    by_one = [True] * inner + [False] * (4 if best else 0)
    by_all = [True] * inner * 2 + [False] * 2
    assert order == untuned + by_one + by_all + [True] * (tried - inner) * 3
    fresh = [one.rate for one in runs.asked if one.seed not in TUNING]
    assert fresh[:4] == [CONTENDERS["adam"].rate(0)] * 4
    assert fresh[-6:] == [CONTENDERS["adam"].rate(best)] * 6


def test_an_outer_rate_that_is_better_is_compared_after_all():
    runs = Known(0)
    runs.numbers[CONTENDERS["adam"].rate(2)] = 0
    runs.numbers[CONTENDERS["adam"].rate(0)] = 0.5
    compare(runs, ["adam"], 1, BATCH_SIZE, TINY)
    assert [runs.numbers[one.rate] for one in runs.asked if one.seed == 0] == [0.5, 0]


def test_a_rate_is_chosen_by_all_tuning_seeds_once_the_inner_rates_have_them():
    rates = [CONTENDERS["adam"].rate(i) for i in (-1, 0, 1, 2)]

    def records(seed, losses):
        return [
            Record("adam", rate, BATCH_SIZE, seed, 1, loss)
            for rate, loss in zip(rates, losses, strict=False)
        ]

    first = records(TUNING[0], [2, 1, 3, 0])
    some = first + records(TUNING[1], [0, 9, 9])
    assert best_rates(first[:2])["adam"] == rates[1]  # The centre.
    assert best_rates(some)["adam"] == rates[3]
    # The outer one has not run on all; a fresh seed chooses nothing.
    whole = some + records(TUNING[2], [3, 1, 3]) + records(0, [9, 9, -9])
    assert best_rates(whole)["adam"] == rates[0]
