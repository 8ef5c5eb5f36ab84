"""The training loop: the same run gives the same curve, also if resumed from a checkpoint."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

import hlo_surgery as hs
from tools.experiments.training import model
from tools.experiments.training.data import Text
from tools.experiments.training.logs import Log, Row, read_log, restore, save, saved_step, write_log
from tools.experiments.training.methods import Run
from tools.experiments.training.moments import logged

EVALUATIONS = 16
"""Evaluated, logged and saved so often in a run; more often in its beginning."""
EVALUATION_BATCH = 16

OnStep = Callable[[int, float], None]


def train(run: Run, text: Text, out: Path, on_step: OnStep = lambda step, loss: None) -> Log:
    """Run to the end, from the last checkpoint if there is one; a finished run is only read.

    `on_step` is called after each step with its number, from 1, and loss.
    """
    folder = out / run.name
    log = read_log(folder, header(run, text))
    if log.finished and saved_step(folder) == len(log.rows):
        return log
    done, state = restore(folder, start(run))
    del log.rows[done:]
    step, since = hs.train_step(model.loss, run.optimizer()), time.perf_counter()
    for number in range(done + 1, run.steps + 1):
        *state, metrics = step(*state, text.batch(number - 1, run.batch_size, run.seed))
        log.rows.append(
            {"step": number, "samples": number * run.batch_size, "loss": float(metrics["loss"])}
        )
        if marked(number, run.steps) or log.diverged:
            log.rows[-1] |= {
                **_measured(run, text, *state),
                "seconds": round(time.perf_counter() - since, 3),
            }
            write_log(folder, log)
            save(folder, number, state)
            since = time.perf_counter()
        on_step(number, log.rows[-1]["loss"])
        if log.diverged:
            break
    return log


def header(run: Run, text: Text) -> Row:
    return {"run": run.name, "steps": run.steps, "text": text.digest, "jax": jax.__version__}


def start(run: Run) -> tuple[Any, Any]:
    """Parameters and the optimizer's state before the first step."""
    params = model.init(run.size, run.seed)
    return params, run.optimizer().init(params)


def marked(step: int, steps: int) -> bool:
    """At equal distances, and in the beginning at powers of two."""
    every = max(1, steps // EVALUATIONS)
    return (
        step == steps
        or (step % every == 0 and step // every < EVALUATIONS)
        or (step < every and step.bit_count() == 1)
    )


def evaluate(params: Any, text: Text) -> float:
    """The mean loss on the held-out windows."""
    windows = text.held_out
    parts = [windows[i : i + EVALUATION_BATCH] for i in range(0, len(windows), EVALUATION_BATCH)]
    return math.fsum(
        float(_loss(params, part.astype("int32"))) * len(part) for part in parts
    ) / len(windows)


_loss = jax.jit(model.loss)


def _measured(run: Run, text: Text, params: Any, state: Any) -> Row:
    moments = logged(state, run.batch_size) if run.tracks_moments else {}
    return {"eval_loss": evaluate(params, text), **moments}
