"""By microbatch: statistics of gradients that a loop adds up, made in the steps of that loop.

    while (%c = %zero) { add %c, %u } ; %g = multiply %c, %scale
        =>  while (.., %s = %zero) { .. ; %s + phi of each example's part of (multiply %u, %scale) }

Each step is a batch of its own, of which no more is in memory than of any other of its size. Sums
whose weights rest on what all steps have take the batch as a whole.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import jax.numpy as jnp
from jax import Array

from hlo_surgery.passes.axes.state import Batched, is_sum
from hlo_surgery.passes.dataflow.ancestors import is_splat
from hlo_surgery.passes.emit.rebuild import copy_all, copy_before
from hlo_surgery.passes.emit.splice import STEPS, splice, splice_known
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import dtype_of, widened
from hlo_surgery.passes.ir.mlir import Operation, Value, ir
from hlo_surgery.passes.loops.loop_sums import LoopSums, carried
from hlo_surgery.passes.loops.microbatches import Microbatches, find_microbatches
from hlo_surgery.passes.measures.measures import Measure
from hlo_surgery.passes.measures.moments import MEANS, SPREADS, SUMS, Join
from hlo_surgery.passes.rewriting.analysed import Analysed
from hlo_surgery.passes.rewriting.measurements import Measurements, Staged
from hlo_surgery.passes.rewriting.replacement import (
    Answer,
    Answered,
    Asking,
    Finish,
    Target,
    block_statistics,
)
from hlo_surgery.passes.strategies.strategy import Examples
from hlo_surgery.passes.terms.steps import Known


def statistics_of_outputs(
    module: Analysed,
    names: Sequence[str],
    measures: Sequence[Sequence[Measure]],
    asking: Asking,
    finish: Finish,
    staged: Staged,
) -> Answered:
    """The measures of gradients, and of losses behind them, and what `finish` makes of them: in the
    steps of a loop over microbatches, where there is one, or else at the end of main.
    """
    end = mlir.return_operation(module.block)
    numbers = [*module.roles.gradients, *module.roles.losses]
    pairs = zip(numbers, measures, strict=True)
    targets = [Target(end, number, names[number], own) for number, own in pairs]
    return _by_microbatch(module, targets, asking, staged) or block_statistics(
        module.axes, module.block, targets, asking, finish
    )


def _by_microbatch(
    module: Analysed, targets: Sequence[Target], asking: Asking, staged: Staged
) -> Answered | None:
    """As `block_statistics`, where one loop adds up all the targets and all that is asked of them
    can be joined; else None, and nothing is changed.
    """
    real = asking.examples.real
    joins = [measure.join for target in targets for measure in target.measures]
    # Steps of unequal numbers of real examples have spreads of unequal weight.
    uneven = real is not None and SPREADS in joins
    if asking.examples.size == 1 or None in joins or uneven or staged.again:
        return None
    found = find_microbatches(module.axes, [target.value for target in targets])
    if found is None:
        return None
    # Where examples are padding, each step's mean is over all that are real already.
    known = [SUMS if j is MEANS and real else j for j in (*joins, *staged.joins) if j is not None]
    answers, made = inside_step(found, targets, asking, staged.inside)
    pairs = zip(targets, answers, strict=True)
    kept = {t.value: own for t, a in pairs if (own := _kept(a)) is not None}
    # Divided before they are added up, as their sum may overflow where their mean does not.
    parts = found.steps if asking.examples.is_mean else 1
    shares = replace(SUMS, add=lambda total, own, _: total + own / parts)
    joined = [*known, *[shares] * len(kept)]
    values = _loop_with(found, [*made, *kept.values()], joined)
    results = _behind(module, found, joined, values, list(kept), targets, asking, staged)
    gradients = dict(zip(kept, results, strict=False))
    ended = [
        replace(answer, trips=answer.trips * found.steps, gradient=gradients.get(target.value))
        for target, answer in zip(targets, answers, strict=True)
    ]
    return ended, results[len(kept) :]


def _kept(answer: Answer) -> Value | None:
    """A step's gradient from the examples' own, if the steps' may be added up in its type: XLA
    drops the module's own sum, which nothing takes any more.
    """
    own = answer.gradient
    return own if own is not None and mlir.is_at_least_float32(own) else None


def _behind(
    module: Analysed,
    found: Microbatches,
    joins: Sequence[Join],
    joined: Sequence[Value],
    kept: Sequence[Value],
    targets: Sequence[Target],
    asking: Asking,
    staged: Staged,
) -> list[Value]:
    """All statistics, from what the loop has `joined` of these measures and what else was made;
    before them the gradients in whose places the last of these are `kept`.
    """
    outputs = [target.value for target in targets]

    def replacement(given: Known) -> list[Array]:
        pairs = zip(joins, joined, strict=True)
        ended = iter([join.end(given[v], found.members) for join, v in pairs])
        measured = [{m: next(ended) for m in target.measures} for target in targets]
        made = [next(ended) for _ in staged.joins]
        gradients = list(ended)
        known = {**given, **dict(zip(kept, gradients, strict=True))}
        whole = (asking.examples, asking.gradients, measured, {}, known, outputs)
        return [*gradients, *staged.behind(Measurements(*whole), made)]

    # What statistics are made of may be the user's own functions.
    return splice_known(
        [*joined, *outputs, *asking.examples.values],
        replacement,
        mlir.return_operation(module.block),
        closed_over=asking.closed_over,
        scope=STEPS,
        platform=asking.platform,
    )


def inside_step(
    found: Microbatches,
    targets: Sequence[Target],
    asking: Asking,
    inside: Finish,
) -> Answered:
    """What is asked of the examples of one step, in the body: measures, and what `inside` makes."""
    examples = _of_one_step(found, asking.examples)
    shares = _shares(found, [target.value for target in targets], asking.examples)
    holder = _held(found.body, shares)
    parts = [replace(target, user=holder, operand=i) for i, target in enumerate(targets)]
    asked = replace(asking, examples=examples)
    finish = partial(_made_inside, targets, inside)
    answers, made = block_statistics(found.axes, found.body, parts, asked, finish)
    holder.erase()
    return answers, made


def _made_inside(targets: Sequence[Target], inside: Finish, found: Measurements) -> list[Array]:
    means = found.own_mean()
    arrays = [
        m.of_part(found.of(m)[i], means[i]) if i < found.number else found.measured[i][m]
        for i, target in enumerate(targets)
        for m in target.measures
    ]
    return [*arrays, *inside(found)]


def _of_one_step(found: Microbatches, examples: Examples) -> Examples:
    """The examples of a step; where some are padding, means are over all the batch's real ones."""
    is_mean = examples.is_mean or found.size == 1
    if examples.real is None:
        return Examples(found.size, is_mean)
    flags, count = examples.real
    first = mlir.operations(found.body)[0]

    def of_step(real: Array, *numbers: Array) -> list[Array]:
        return [real[jnp.asarray(found.members)[_step_number(found, numbers)]]]

    own = splice([flags, *found.counters], of_step, first, scope=STEPS)
    return Examples(found.size, is_mean, (own[0], count))


def _shares(found: Microbatches, gradients: Sequence[Value], examples: Examples) -> list[Value]:
    """What one step adds to each gradient, as the gradient of the step's own batch."""
    end = mlir.return_operation(found.body)
    made = dict[Value, Value]()
    for sums in found.nest:
        made |= _held_before(sums)
    for sums in reversed(found.nest):
        for result, added in sums.added.items():
            made[result] = _total(found, result, [made.get(v, v) for v in added], end)
        copy_all(sums.tail, made, end, STEPS)
        for op in sums.tail:
            for old in (v for v in op.results if is_sum(found.axes.state.of(v))):
                _assume_share(found, made[old])
    shares = [made[v] if v in made else _total(found, v, [], end) for v in gradients]
    return [_scaled(found, share, examples, end) for share in shares]


def _held_before(sums: LoopSums) -> dict[Value, Value]:
    """Constants for the tail, made before the loop: what it results in without any example, as of
    a loop before it that makes nothing else, since all steps need to know it.
    """
    made = dict[Value, Value]()
    if sums.constants:
        copied = copy_before(sums.loop, mlir.operands(sums.loop), sums.loop, STEPS)
        results, body = mlir.results(sums.loop), cast(Any, copied.regions[1].blocks[0])
        for number in (results.index(result) for result in sums.added):
            mlir.return_operation(body).operands[number] = body.arguments[number]
        made |= {value: copied.results[results.index(value)] for value in sums.constants}
    copy_all(sums.held, made, sums.loop, STEPS)
    return made


def _total(found: Microbatches, like: Value, added: Sequence[Value], end: Operation) -> Value:
    """What a step adds to a sum: nothing to what is no sum of the loop's, which vanishes."""
    values = [value for value in added if not is_splat(value, 0)]
    if not values:
        zeros = partial(jnp.zeros, mlir.shape(like), dtype_of(like))
        return splice([], lambda: [zeros()], end, scope=STEPS)[0]
    total = values[0]
    # One op at a time, as all that is new and holds examples has to be known.
    for value in values[1:]:
        (total,) = splice([total, value], lambda x, y: [x + y], end, scope=STEPS)
        _assume_share(found, total)
    return total


def _assume_share(found: Microbatches, value: Value) -> None:
    """Note that a value is a sum over the step's examples, or its single one's own."""
    site = mlir.defining_operation(value)
    found.axes.state.classes[value] = Batched(frozenset(found.axes.batch), site=site)


def _scaled(found: Microbatches, share: Value, examples: Examples, end: Operation) -> Value:
    """A step's share of a mean over the batch, as the mean over the step. Padding is counted by
    numbers of the whole batch, but where a step has one example, whose gradient is as it is.
    """
    if not examples.is_mean or (examples.real and found.size > 1):
        return share
    count = [examples.real[1]] if examples.real else []
    known, dtype = found.axes.of(share), dtype_of(share)

    def times(x: Array, *real: Array) -> Array:
        return x * (real[0] if real else found.steps)

    # One op at a time, as all that is new and holds examples has to be known.
    for op in (lambda x, *_: widened(x), times, lambda x, *_: x.astype(dtype)):
        (share,) = splice([share, *count], lambda *given, op=op: [op(*given)], end, scope=STEPS)
        found.axes.state.classes[share] = known
    return share


def _held(block: mlir.Block, values: Sequence[Value]) -> Operation:
    """An op that has these values for operands as long as loops in its block are rebuilt."""
    end = mlir.return_operation(block)
    with mlir.context(), end.location, ir.InsertionPoint(end):
        return ir.Operation.create(
            mlir.BARRIER, results=[v.type for v in values], operands=list(values)
        )


def _loop_with(found: Microbatches, made: Sequence[Value], joins: Sequence[Join]) -> list[Value]:
    """The results of the loop rebuilt so that it also joins what is made in its steps."""
    pairs = list(zip(joins, made, strict=True))

    def start() -> list[Array]:
        return [join.start(mlir.shape(v), dtype_of(v), found.steps) for join, v in pairs]

    def go_on(*operands: Array) -> list[Array]:
        step = _step_number(found, operands[2 * len(made) :])
        states = zip(joins, operands, operands[len(made) :], strict=False)
        return [join.add(state, new, step) for join, state, new in states]

    loops, taken = [sums.loop for sums in found.nest], [*made, *found.counters]
    return carried(found.axes, loops, start, go_on, taken, STEPS)[1]


def _step_number(found: Microbatches, numbers: Sequence[Array]) -> Array:
    """The step's number among those of all loops, from its number in each."""
    step = jnp.zeros((), jnp.int32)
    for sums, number in zip(found.nest, numbers, strict=True):
        step = step * sums.trips + number.astype(jnp.int32)
    return step
