"""The paired runs of the language model: as the training loop's, resumed, tuned off the edge."""

from dataclasses import replace

import numpy as np
import pytest

from tools.experiments.paired import redraw, workers
from tools.experiments.paired.contenders import CONTENDERS, TUNING
from tools.experiments.paired.language_model import best_rates, compare
from tools.experiments.paired.records import Record, ran, read_csv, write_csv
from tools.experiments.paired.training import Training
from tools.experiments.paired.workers import Runs, Wanted
from tools.experiments.training import data
from tools.experiments.training.loop import train
from tools.experiments.training.methods import Run
from tools.experiments.training.model import Size

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
def test_the_best_rate_is_not_at_an_edge_and_the_outer_rates_come_last(best, inner, tried):
    runs = Known(best)
    compare(runs, ["adam"], 2, BATCH_SIZE, TINY)
    order = [one.seed in TUNING for one in runs.asked]
    assert order == [True] * inner * 3 + [False] * 2 + [True] * (tried - inner) * 3
    assert {one.rate for one in runs.asked if one.seed == 0} == {CONTENDERS["adam"].rate(best)}


def test_an_outer_rate_that_is_better_is_compared_after_all():
    runs = Known(0)
    runs.numbers[CONTENDERS["adam"].rate(2)] = 0
    runs.numbers[CONTENDERS["adam"].rate(0)] = 0.5
    compare(runs, ["adam"], 1, BATCH_SIZE, TINY)
    assert [runs.numbers[one.rate] for one in runs.asked if one.seed == 0] == [0.5, 0]


def test_a_rate_without_all_tuning_seeds_is_not_chosen():
    def record(rate, seed, loss):
        return Record("adam", rate, BATCH_SIZE, seed, 1, loss)

    whole = [record(0.1, seed, 2.0) for seed in TUNING]
    assert best_rates([*whole, record(0.2, TUNING[0], 1.0), record(0.3, 0, 0.0)]) == {"adam": 0.1}


def test_tables_and_figure_from_the_file_alone(tmp_path, capsys):
    noise = np.random.default_rng(0).normal(size=(4, 64))
    runs = [
        ran(
            Record(
                name, 0.1, 16, seed, 64, 2 + off * (1 + seed % 2) + seed, tuple(off + noise[seed])
            )
        )
        for name, off in [("adam", 0.0), ("micro_adam", 0.1)]
        for seed in range(4)
    ]
    tuning = [
        ran(Record(name, 0.1, 16, seed, 64, 9.0, tuple(noise[0])))
        for name in ("adam", "micro_adam")
        for seed in TUNING
    ]
    write_csv(tmp_path / "runs.csv", [*runs, *tuning])
    redraw.main(["--csv", str(tmp_path / "runs.csv"), "--out", str(tmp_path)])
    said = capsys.readouterr().out
    assert "| micro_adam | adam | 4 | +0.1500 ± 0.0919 | no |" in said  # p is 0.014, of nine claims
    assert "| adam | 0.1: 9.000 |" in said
    assert "| adam | 0.1 | 4 | 3.500" in said
    assert (tmp_path / "paired_differences.svg").read_text().startswith("<?xml")
    assert len(read_csv(tmp_path / "runs.csv")) == 14


def test_no_runs_to_draw(tmp_path):
    with pytest.raises(SystemExit, match="2"):
        redraw.main(["--csv", str(tmp_path / "none.csv"), "--out", str(tmp_path)])
