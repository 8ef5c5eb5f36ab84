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
from jax import lax

from hlo_surgery.passes.costs.gradient_costs import Predicted
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.measures.measure import Measure
from hlo_surgery.passes.measures.measures import MeanOf, Phi, Variance, precise_phi
from hlo_surgery.passes.measures.moments import central_moment, squared_magnitude
from hlo_surgery.passes.strategies.by_gradient.loop import LOOP
from hlo_surgery.passes.strategies.einsums.factors import Factors, factors_of, scaled_by
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
    rows, sums = jax.vmap(_distinct)(looked_up, updates[:, 0])
    sums = scaled_by(sums, e, known, factor)
    number = examples.size if real is None else jnp.sum(real, dtype=jnp.int32)
    by_rows = e.axes("d")
    dims = [*by_rows, *(d for d in range(len(shape)) if d not in by_rows)]
    length = math.prod(shape[axis] for axis in by_rows)
    # Where there is no row the number is past the last one, and is dropped.
    rows = jnp.where(rows < 0, length, rows).ravel()
    centre = None if about is None else about.transpose(dims).reshape(length, -1)
    off = sums if centre is None else sums - centre.at[rows].get(mode="clip").reshape(sums.shape)
    found = phi(off).reshape(-1, sums.shape[-1])
    touching = jnp.zeros(length, jnp.int32).at[rows].add(1, mode="drop")[:, None]
    total = jnp.zeros((length, found.shape[1]), found.dtype).at[rows].add(found, mode="drop")
    # A zero is moved and scaled like any other row: it may come out as -0, or as NaN.
    zero = scaled_by(jnp.zeros((), sums.dtype), e, known, factor)
    untouched = (number - touching) * phi(zero if centre is None else zero - centre)
    total = total + jnp.where(touching == number, 0, untouched)
    mean = total / jnp.asarray(examples.count(known)).astype(total.dtype)
    return jnp.moveaxis(mean.reshape([shape[d] for d in dims]), range(len(dims)), dims)


def _distinct(numbers: jax.Array, values: jax.Array) -> Factors:
    """One example's distinct rows, -1 where fewer than positions, and the sum at each."""
    numbers, order = lax.sort((numbers, lax.iota(jnp.int32, numbers.shape[0])), num_keys=1)
    segments = _counted(jnp.append(False, numbers[1:] != numbers[:-1]))
    rows = jnp.full_like(numbers, -1).at[segments].set(numbers, indices_are_sorted=True)
    sums = jnp.zeros_like(values).at[segments].add(values[order], indices_are_sorted=True)
    return rows, sums


def _counted(flags: jax.Array) -> jax.Array:
    """[T]: how many are set up to each. Of `jnp.cumsum` JAX makes a loop on GPU since 0.11, with a
    step for each position; of a sum over windows XLA makes a tree everywhere.
    """
    count = flags.shape[0]
    return lax.reduce_window(
        flags.astype(jnp.int32), jnp.int32(0), lax.add, (count,), (1,), [(count - 1, 0)]
    )


SEGMENTS = Strategy(
    "segments",
    _applies,
    _predict,
    each_measure(_emit),
    _pays,
    words="sums over each example's own rows",
)
