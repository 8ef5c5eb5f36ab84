"""Scores [Q, N] of training examples for queries: TracIn, LoGra and TRAK, each from indices."""

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import hlo_surgery as hs
from hlo_surgery.attribution import Index, covariance, preconditioned, scores, write_index
from tools.experiments.attribution import digits
from tools.experiments.attribution.digits import CHECKPOINTS, RATE, STEPS, Examples, checkpoint

K, DENSE, DAMPING, BATCH = 16, 256, 0.1, 200


def margins(params: Any, x: Array, y: Array) -> Array:
    """log(p / (1 - p)) of the label's probability p, [B]: TRAK's model output."""
    found = digits.logits(params, x)
    own = jnp.take_along_axis(found, y[:, None], -1)
    others = jnp.where(jnp.arange(10) == y[:, None], -jnp.inf, found)
    return own[:, 0] - jax.nn.logsumexp(others, -1)


OF_LOSS = jax.jit(hs.grad(digits.loss, batch_argnums=(1, 2), statistics=hs.projected(K)))
OF_MARGIN = jax.jit(
    hs.grad(
        lambda *args: margins(*args).mean(),
        batch_argnums=(1, 2),
        statistics=hs.projected(DENSE, per="global", kind="dense"),
        strategy="lift",
    )
)


def with_index(
    gradients: Callable[..., Any], params: Any, data: Examples, use: Callable[..., Any]
) -> Any:
    """What `use` makes of an index of the data, and of the function that gives rows."""

    def rows(batch: Examples) -> Any:
        return gradients(params, *batch)[1]

    with tempfile.TemporaryDirectory() as folder:
        return use(write_index(rows, data, folder, batch_size=BATCH), rows)


def tracin(models: Any, data: Examples, queries: Examples) -> np.ndarray:
    """The sum over checkpoints of inner products, times the learning rates of their steps."""

    def products(index: Index, rows: Callable[..., Any]) -> np.ndarray:
        return RATE * STEPS * scores(index, rows(queries))

    each = [with_index(OF_LOSS, checkpoint(models, c), data, products) for c in range(CHECKPOINTS)]
    return np.sum(each, 0)


def logra(model: Any, data: Examples, queries: Examples) -> np.ndarray:
    """Influences with each parameter's projected covariance for the curvature."""

    def influences(index: Index, rows: Callable[..., Any]) -> np.ndarray:
        solved = preconditioned(rows(queries), covariance(index), DAMPING)
        return scores(index, solved)

    return with_index(OF_LOSS, model, data, influences)


def logra_of_itself(model: Any, data: Examples) -> np.ndarray:
    """[N]: each example's influence on its own loss."""

    def own(index: Index, rows: Callable[..., Any]) -> np.ndarray:
        solved = preconditioned(index.rows, covariance(index), DAMPING)
        products = [solved[name] * index.rows[name] for name in solved]
        return np.sum([x.reshape(len(x), -1).sum(1) for x in products], 0)

    return with_index(OF_LOSS, model, data, own)


def trak(models: Sequence[Any], data: Examples, queries: Examples) -> np.ndarray:
    """The mean over models of influences on margins, times the mean of 1 - p."""

    def influences(index: Index, rows: Callable[..., Any]) -> np.ndarray:
        solved = preconditioned(rows(queries), covariance(index, "global"), DAMPING)
        return scores(index, solved)

    found = np.mean([with_index(OF_MARGIN, model, data, influences) for model in models], 0)
    wrong = [1 - np.exp(-np.asarray(digits.losses(model, *data))) for model in models]
    return found * np.mean(wrong, 0)
