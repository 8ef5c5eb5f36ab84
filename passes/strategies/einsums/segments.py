"""Segments: of a gradient that scatters rows, each example's own rows are summed first, then phi.

    %g = scatter 0, %i[b, t], %u[b, t, d]
        =>  for each b: the distinct rows of %i[b], the sums of %u[b] over each
            %s = scatter phi(sums) at the rows + phi(0) of all other examples

An example touches as many rows as it has positions, however long the table; all others are zero.
The gradient of an embedding is such a scatter. Any phi will do, and nothing as large as the table
is made for a single example.
"""

import math
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp

from hlo_surgery.passes.costs.gradient_costs import Predicted
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.measures.measure import Measure
from hlo_surgery.passes.measures.measures import MeanOf, Phi, Variance, precise_phi
from hlo_surgery.passes.measures.moments import central_moment, squared_magnitude
from hlo_surgery.passes.strategies.by_gradient.loop import LOOP
from hlo_surgery.passes.strategies.einsums.factors import distinct, factors_of, scaled_by, sum_at
from hlo_surgery.passes.strategies.strategy import Asked, Strategy, each_measure
from hlo_surgery.passes.strategies.task import Known, Schedule, Task


def _applies(task: Task, measure: Measure) -> bool:
    """Whether a gradient is a single scatter of rows, moved and scaled as a whole."""
    kinds = [e.kind for e in task.einsums if e.halves is not None]
    return isinstance(measure, MeanOf | Variance) and kinds == ["scatter"]


def _predict(task: Task, measures: Sequence[Measure], schedule: Schedule) -> Predicted:
    """Rows sorted and summed within each example, and scattered."""
    read = task.counts.read
    return Predicted(6 * read / task.device.bandwidth, 2 * read)


def _pays(task: Task, measure: Measure, schedule: Schedule, otherwise: Predicted) -> bool:
    """Whether a loop over the examples takes longer."""
    one = [measure]
    return _predict(task, one, schedule).seconds <= LOOP.predict(task, one, schedule).seconds


def _emit(asked: Asked, known: Known, measure: Measure) -> jax.Array:
    task, examples = asked.task, asked.task.examples
    mean = partial(_mean, task, known)
    if isinstance(measure, MeanOf):
        return mean(precise_phi(measure.phi, task.dtype))
    # The module's own may count padding, and NaN in it.
    own = mean(_itself) if examples.real else examples.mean_gradient(task.gradient, known)
    off = partial(mean, about=own)
    return central_moment(off(squared_magnitude), off(_itself))


def _itself(x: jax.Array) -> jax.Array:
    return x


def _mean(task: Task, known: Known, phi: Phi, about: jax.Array | None = None) -> jax.Array:
    """The mean over the examples that are no padding of phi of their gradients, or of how far off
    these are from one like them, `about`.
    """
    (e,), examples, shape = task.einsums, task.examples, mlir.shape(task.sliced.value)
    factor, real = examples.factor(known), examples.flags(known)
    ((looked_up, updates),) = factors_of(task, known)
    rows, sums = distinct(looked_up, updates[:, 0])
    sums = scaled_by(sums, e, known, factor)
    # A zero is moved and scaled like any other row: it may come out as -0, or as NaN.
    zero = scaled_by(jnp.zeros((), sums.dtype), e, known, factor)
    by_rows = e.axes("d")
    dims = [*by_rows, *(d for d in range(len(shape)) if d not in by_rows)]
    length = math.prod(shape[axis] for axis in by_rows)
    if about is not None:
        centre = about.transpose(dims).reshape(length, -1)
        sums, zero = sums - centre.at[rows].get(mode="clip"), zero - centre
    touching = sum_at(rows, jnp.ones_like(rows), length)[:, None]
    number = examples.size if real is None else jnp.sum(real, dtype=jnp.int32)
    others = jnp.where(touching == number, 0, (number - touching) * phi(zero))
    total = sum_at(rows, phi(sums), length) + others
    mean = total / jnp.asarray(examples.count(known)).astype(total.dtype)
    return jnp.moveaxis(mean.reshape([shape[d] for d in dims]), range(len(dims)), dims)


SEGMENTS = Strategy(
    "segments",
    _applies,
    _predict,
    each_measure(_emit),
    _pays,
    words="sums over each example's own rows",
)
