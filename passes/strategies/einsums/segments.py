"""Segments: of a gradient that scatters rows, each example's own rows are summed first, then phi.

    %g = scatter 0, %i[b, t], %u[b, t, d]
        =>  for each b: the distinct rows of %i[b], the sums of %u[b] over each
            %s = scatter phi(sums) at the rows + phi(0) of all other examples

An example touches as many rows as it has positions, however long the table; all others are zero.
The gradient of an embedding is such a scatter. Any phi will do, and nothing as large as the table
is made for a single example.

Unmet: why a measure by positions is not to be had of a gradient, and at which line.

%g = add %sum, %c             =>  at the line of %c, which no example is in
%g = add %scattered, %product =>  at that of the scatter, beside which the other use is named
"""

import math
from collections.abc import Iterator
from functools import partial
from itertools import chain

import jax.numpy as jnp
from jax import Array

from hlo_surgery.passes.dataflow.ancestors import is_splat
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Reason, reason_at, source_line
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.measures.kronecker import KroneckerFactor
from hlo_surgery.passes.measures.measures import (
    MEAN,
    MeanOf,
    Measure,
    OfPositions,
    Phi,
    Variance,
    precise_phi,
)
from hlo_surgery.passes.measures.moments import central_moment, squared_magnitude
from hlo_surgery.passes.strategies.einsums.einsums import first_unread, sides_of
from hlo_surgery.passes.strategies.einsums.factors import distinct, factors_of, scaled_by, sum_at
from hlo_surgery.passes.strategies.gradient_costs import Predicted, Schedule
from hlo_surgery.passes.strategies.lift import LOOP
from hlo_surgery.passes.strategies.strategy import Asked, Measures, Strategy, Task, each_measure
from hlo_surgery.passes.terms.steps import GradientSlice, Known, Split

TERM_HELP = "leave terms without examples, such as weight decay, to the optimizer"
USES_HELP = (
    "pass the parameter to the loss once for each kind of use, as in loss(w, w), and differentiate "
    "by all of them, as with argnums=(0, 1): each then has factors of its own"
)
BEFORE_HELP = (
    "take the gradient of the examples' mean loss, and not the mean of their gradients, as with "
    "jax.grad(lambda w, x: jnp.mean(jax.vmap(partial(loss, w))(x)))"
)


TWO_WAYS = (
    "it is used in two ways that have no factors in common, as a table is that is looked up and "
    "multiplied by"
)
PART = "this uses a part of it alone"
NO_ORDER = (
    "its axes, in the order that they have, are not first those of one factor and then those of "
    "the other"
)


# What is not as it has to be, by the op that makes it, and a way out beside the measure's own.
Unmet = tuple[Operation, str, str]


def unmet(task: Task, measure: OfPositions) -> Reason:
    """Why no strategy makes this measure of this gradient."""
    sliced, by_sides = task.sliced, isinstance(measure, KroneckerFactor)
    lacking = "complex" if by_sides and mlir.is_complex(sliced.value) else "not such a sum"
    why = f"{measure.needs}, and the gradient {task.name} is {lacking}"
    for op, what, way_out in chain(_no_sum(task), _no_sides(task) if by_sides else ()):
        help = f"{way_out}; or {measure.help}" if way_out else measure.help
        return reason_at(op, f"{why}: {what}", help)
    op = sliced.sites[0].op if sliced.sites else mlir.defining_operation(sliced.value)
    if op is None:
        return Reason(why, "func.return", "module", measure.help)
    return reason_at(op, why, measure.help)


def _no_sum(task: Task) -> Iterator[Unmet]:
    """What keeps a gradient from being read as einsums."""
    if task.made_before is not None:
        what = "this makes each example's own, and all that is done to them is to add them up"
        yield task.made_before, what, BEFORE_HELP
    yield from _terms_without_examples(task.sliced)
    step = first_unread(task.sliced)
    if step is not None:
        what = "is no contraction of whole rows by whole rows"
        behind = "does more than move what is contracted, and scale it by a number"
        yield step.op, f"this {what if step.is_site else behind}", ""


def _terms_without_examples(sliced: GradientSlice) -> Iterator[Unmet]:
    """What is added that rests on no example, as of a penalty of weights, or on one alone."""
    for step in sliced.tail:
        added = step.inputs if step.op.name in ("stablehlo.add", "stablehlo.subtract") else ()
        for value, axis in added:
            op = mlir.defining_operation(value) or step.op
            if value in sliced.made or is_splat(value, 0):
                continue
            if isinstance(axis, Split):
                yield op, "this term of it is single examples' alone", BEFORE_HELP
            yield op, "this term of it rests on no example", TERM_HELP


def _no_sides(task: Task) -> Iterator[Unmet]:
    """A use whose factors are not of the kind of the first one's, or that have no sides."""
    sides = [(e, sides_of(e)) for e in task.einsums]
    kinds = [own for _, own in sides if own is not None]
    odd = [e.site.op for e, own in sides if own is not None and own != kinds[0]]
    for op in odd:
        where = source_line(task.einsums[0].site.op)
        yield op, f"{TWO_WAYS}; the other way at {where}", USES_HELP
    for e in (e for e, own in sides if own is None):
        yield e.pad or e.site.op, PART if e.pad else NO_ORDER, ""


def _applies(task: Task, measure: Measure) -> bool:
    """Whether a gradient is a single scatter of rows, moved and scaled as a whole."""
    kinds = [e.kind for e in task.einsums if e.halves is not None]
    return isinstance(measure, MeanOf | Variance) and kinds == ["scatter"]


def _predict(task: Task, measures: Measures, schedule: Schedule) -> Predicted:
    """Rows sorted and summed within each example, and scattered."""
    read = task.counts.read
    return Predicted(6 * read / task.device.bandwidth, 2 * read)


def _pays(task: Task, measure: Measure, schedule: Schedule, otherwise: Predicted) -> bool:
    """Whether a loop over the examples takes longer."""
    one = [measure]
    return _predict(task, one, schedule).seconds <= LOOP.predict(task, one, schedule).seconds


def _emit(asked: Asked, known: Known, measure: Measure) -> Array:
    task, examples = asked.task, asked.task.examples
    mean = partial(_mean, task, known)
    if isinstance(measure, MeanOf):
        return mean(precise_phi(measure.phi, task.dtype))
    # The module's own may count padding, and NaN in it.
    own = mean(MEAN.phi) if examples.real else examples.mean_gradient(task.gradient, known)
    off = partial(mean, about=own)
    return central_moment(off(squared_magnitude), off(MEAN.phi))


def _mean(task: Task, known: Known, phi: Phi, about: Array | None = None) -> Array:
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
    words="sums of each example's own rows",
)
