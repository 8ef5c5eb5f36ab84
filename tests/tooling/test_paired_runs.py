"""The paired runs of the language model: as the training loop's, resumed, tuned off the edge."""

import numpy as np
import pytest

from tools.experiments.paired import redraw
from tools.experiments.paired.language_model import CONTENDERS, TUNING, Runs, Training, tuned
from tools.experiments.paired.records import Record, ran, read_csv, write_csv
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


def test_runs_that_are_there_are_not_made_again(tmp_path):
    file = tmp_path / "runs.csv"
    first = Runs(file, text(), TINY, BATCH_SIZE).loss("sign_ema", 0.01, 0)
    whole = file.read_bytes()
    again = Runs(file, text(), TINY, BATCH_SIZE)
    again._run = None  # Nothing is run.
    assert again.loss("sign_ema", 0.01, 0) == first
    assert file.read_bytes() == whole
    file.unlink()
    assert Runs(file, text(), TINY, BATCH_SIZE).loss("sign_ema", 0.01, 0) == first
    assert file.read_bytes() == whole


@pytest.mark.parametrize(("best", "tried"), [(0, 5), (2, 6), (4, 8), (-3, 7)])
def test_the_best_rate_is_not_at_an_edge(best, tried):
    contender, asked = CONTENDERS["adam"], []
    rates = {contender.rate(i): i for i in range(-9, 10)}

    class Known:
        def loss(self, name, rate, seed):
            asked.append((rate, seed))
            return abs(rates[rate] - best) + 0.1 * (seed - TUNING[1])

    assert tuned(Known(), "adam") == contender.rate(best)
    assert len(asked) == tried * len(TUNING)


def test_tables_and_figure_from_the_file_alone(tmp_path, capsys):
    noise = np.random.default_rng(0).normal(size=(4, 64))
    runs = [
        ran(Record(name, 0.1, seed, 64, 2 + off * (1 + seed % 2) + seed, tuple(off + noise[seed])))
        for name, off in [("adam", 0.0), ("micro_adam", 0.1)]
        for seed in range(4)
    ]
    tuning = ran(Record("adam", 0.1, TUNING[0], 64, 9.0, tuple(noise[0])))
    write_csv(tmp_path / "runs.csv", [*runs, tuning])
    redraw.main(["--csv", str(tmp_path / "runs.csv"), "--out", str(tmp_path)])
    said = capsys.readouterr().out
    assert "| micro_adam | adam | 4 | +0.1500 ± 0.0919 | no |" in said  # p is 0.014, of nine claims
    assert "| adam | 0.1: 9.000 |" in said
    assert "| adam | 0.1 | 4 | 3.500" in said
    assert (tmp_path / "paired_differences.svg").read_text().startswith("<?xml")
    assert len(read_csv(tmp_path / "runs.csv")) == 9


def test_no_runs_to_draw(tmp_path):
    with pytest.raises(SystemExit, match="2"):
        redraw.main(["--csv", str(tmp_path / "none.csv"), "--out", str(tmp_path)])
