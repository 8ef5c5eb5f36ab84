"""Segments: of a gradient that scatters rows, each example's own rows are summed first, then phi.

    %g = scatter 0, %i[b, t], %u[b, t, d]
        =>  for each b: the distinct rows of %i[b], the sums of %u[b] over each
            %s = scatter phi(sums) at the rows + phi(0) of all other examples

An example touches as many rows as it has positions, however long the table; all others are zero.
The gradient of an embedding is such a scatter. Any phi will do, and nothing as large as the table
is made for a single example.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hlo_surgery.passes.costs.gradient_costs import Predicted
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.measures.measure import Measure
from hlo_surgery.passes.measures.measures import MeanOf, Phi, Variance, precise_phi
from hlo_surgery.passes.measures.moments import central_moment, squared_magnitude
from hlo_surgery.passes.strategies.by_gradient.loop import LOOP
from hlo_surgery.passes.strategies.ghost.ghost_factors import rows_of, scaled_by
from hlo_surgery.passes.strategies.ghost.ghost_paths import ADDED, Path, factor_dims
from hlo_surgery.passes.strategies.strategy import Asked, Computed, Measured, Strategy, one_by_one
from hlo_surgery.passes.strategies.task import Known, Schedule, Task
from hlo_surgery.passes.terms.slice_functions import SliceFunction, over_examples


def _applies(task: Task, measure: Measure) -> bool:
    """Whether a gradient is a single scatter of rows, moved and scaled as a whole."""
    return (
        isinstance(measure, MeanOf | Variance)
        and len(task.paths) == 1
        and task.paths[0].site.op.name == "stablehlo.scatter"
        and factor_dims(task.paths[0]) is not None
    )


def _predict(task: Task, measures: Sequence[Measure], schedule: Schedule) -> Predicted:
    """Rows sorted and summed within each example, and scattered."""
    read = task.counts.read
    return Predicted(6 * read / task.device.bandwidth, 2 * read)


def _pays(task: Task, measure: Measure, schedule: Schedule, otherwise: Predicted) -> bool:
    """Whether a loop over the examples takes longer."""
    one = [measure]
    return _predict(task, one, schedule).seconds <= LOOP.predict(task, one, schedule).seconds


def _emit(asked: Asked, known: Known) -> Computed:
    task, examples = asked.task, asked.task.examples
    factor, real = examples.factor(known), examples.flags(known)
    mean = partial(segmented_mean, task.function, task.paths[0], known)
    of = partial(mean, size=examples.size, count=examples.count(known), factor=factor, real=real)
    measured: Measured = {}
    for measure in asked.measures:
        if isinstance(measure, MeanOf):
            measured[measure] = of(precise_phi(measure.phi, task.dtype))
        else:
            own = examples.mean_gradient(task.gradient, known)
            # The module's own may count padding, and NaN in it.
            off = partial(of, about=own if real is None else of(_itself))
            measured[measure] = central_moment(off(squared_magnitude), off(_itself))
    return Computed(measured)


def _itself(x: jax.Array) -> jax.Array:
    return x


def segmented_mean(
    function: SliceFunction,
    path: Path,
    known: Mapping[Value, jax.Array],
    phi: Phi,
    size: int,
    count: Any,
    factor: Any,
    real: jax.Array | None = None,
    about: jax.Array | None = None,
) -> jax.Array:
    """The mean over the `real` examples of phi of their gradients, or of how far off these are from
    one like them.

    `count`: how many the mean is over, in a step of a loop over microbatches with padding the real
    ones of all steps; `factor`: of a contribution in a gradient; `about`: that one gradient.
    """
    rows, sums = over_examples(function, known, size, partial(_of_one, function, path, factor))
    rows = rows if real is None else jnp.where(real[:, None], rows, -1)
    number = size if real is None else jnp.sum(real, dtype=jnp.int32)
    shape, by_rows = _layout(path)
    dims = [*sorted(by_rows), *(d for d in range(len(shape)) if d not in by_rows)]
    length = math.prod(shape[d] for d in by_rows)
    # Where there is no row the number is past the last one, and is dropped.
    rows = jnp.where(rows < 0, length, rows).ravel()
    centre = None if about is None else about.transpose(dims).reshape(length, -1)
    off = sums if centre is None else sums - centre.at[rows].get(mode="clip").reshape(sums.shape)
    found = phi(off).reshape(-1, sums.shape[-1])
    touching = jnp.zeros(length, jnp.int32).at[rows].add(1, mode="drop")[:, None]
    total = jnp.zeros((length, found.shape[1]), found.dtype).at[rows].add(found, mode="drop")
    # A zero is moved and scaled like any other row: it may come out as -0, or as NaN.
    scales = {key: known[key[0]] for key, _ in path.scales}
    zero = scaled_by(jnp.zeros((), sums.dtype), path, scales, factor)
    untouched = (number - touching) * phi(zero if centre is None else zero - centre)
    total = total + jnp.where(touching == number, 0, untouched)
    mean = total / jnp.asarray(count).astype(total.dtype)
    return mean.reshape([shape[d] for d in dims]).transpose(
        [dims.index(d) for d in range(len(dims))]
    )


def _of_one(
    function: SliceFunction, path: Path, factor: Any, *operands: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """One example's distinct rows, -1 where fewer than positions, and its gradient in each."""
    given = dict(zip(function.inputs, operands, strict=True))
    numbers, values, _ = rows_of(path, given)
    numbers, order = lax.sort((numbers, lax.iota(jnp.int32, numbers.shape[0])), num_keys=1)
    segments = _counted(jnp.append(False, numbers[1:] != numbers[:-1]))
    rows = jnp.full_like(numbers, -1).at[segments].set(numbers, indices_are_sorted=True)
    sums = jnp.zeros_like(values).at[segments].add(values[order], indices_are_sorted=True)
    return rows, scaled_by(sums, path, given, factor)


def _counted(flags: jax.Array) -> jax.Array:
    """[T]: how many are set up to each. Of `jnp.cumsum` JAX makes a loop on GPU since 0.11, with a
    step for each position; of a sum over windows XLA makes a tree everywhere.
    """
    count = flags.shape[0]
    return lax.reduce_window(
        flags.astype(jnp.int32), jnp.int32(0), lax.add, (count,), (1,), [(count - 1, 0)]
    )


def _layout(path: Path) -> tuple[list[int], frozenset[int]]:
    """The gradient's shape, and those of its dimensions that the indices address."""
    site, found = mlir.shape(path.site.op.results[0]), factor_dims(path)
    assert found is not None
    assert path.order is not None
    return [1 if d == ADDED else site[d] for d in path.order], found[0]


SEGMENTS = Strategy(
    "segments",
    _applies,
    _predict,
    one_by_one(_emit),
    _pays,
    words="sums over each example's own rows",
)
