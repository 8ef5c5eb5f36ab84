"""By microbatch: statistics of gradients that a loop adds up, made in the steps of that loop.

    while (%c = %zero) { add %c, %u } ; %g = multiply %c, %scale
        =>  while (.., %s = %zero) { .. ; %s + phi of each example's part of (multiply %u, %scale) }

Each step is a batch of its own, of which no more is in memory than of any other of its size. What
rests on what all steps have, as weights by norms of the whole batch, takes a second pass:

    =>  .. ; %w = weights of %n ; while { .. ; add %d, (%u with its examples weighted by %w) }
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from hlo_surgery.passes.emit.rebuild import copy_all
from hlo_surgery.passes.emit.scopes import AGAIN, STEPS
from hlo_surgery.passes.emit.splice import Replacement, splice
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.element_types import widened
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.loops.microbatches import Microbatches, find_microbatches
from hlo_surgery.passes.measures.joins import MEANS, ROWS, SPREADS, SUMS, Join
from hlo_surgery.passes.measures.measure import Measure
from hlo_surgery.passes.rewriting.analysed import Analysed, classify_again
from hlo_surgery.passes.rewriting.measurements import Asked, Measurements, Staged
from hlo_surgery.passes.rewriting.microbatch_steps import (
    counters,
    held,
    inside_step,
    loop_with,
    step_number,
)
from hlo_surgery.passes.rewriting.replacement import (
    Answer,
    Asking,
    Finish,
    Target,
    block_statistics,
)


@dataclass(frozen=True)
class _Joined:
    """What the loop has joined: `values`, by `joins`, of these measures and what else was made."""

    found: Microbatches
    joins: Sequence[Join]
    values: Sequence[Value]
    outputs: Sequence[Value]
    measures: Sequence[Sequence[Measure]]
    asking: Asking

    @property
    def operands(self) -> list[Value]:
        """All that `of` takes."""
        return list(dict.fromkeys([*self.values, *self.outputs, *self.asking.examples.values]))

    def of(self, operands: Sequence[jax.Array]) -> tuple[Measurements, list[jax.Array]]:
        """The whole's measurements, and what else was made inside."""
        known = dict(zip(self.operands, operands, strict=True))
        ended = iter(_ended(self.found, self.joins, [known[v] for v in self.values]))
        measured = [{m: next(ended) for m in own} for own in self.measures]
        asking = self.asking
        whole = (asking.examples, asking.gradients, measured, {}, known, self.outputs)
        return Measurements(*whole), list(ended)


def statistics_of_outputs(
    module: Analysed,
    names: Sequence[str],
    measures: Sequence[Sequence[Measure]],
    asking: Asking,
    finish: Finish,
    staged: Staged,
) -> tuple[list[Answer], list[Value]]:
    """The measures of gradients, and of losses behind them, and what `finish` makes of them: in the
    steps of a loop over microbatches, where there is one, or else at the end of main.
    """
    end = mlir.return_operation(module.block)
    numbers = [*module.roles.gradients, *module.roles.losses]
    targets = [Target(end, number, names[number]) for number in numbers]
    return _by_microbatch(module, targets, measures, asking, staged) or block_statistics(
        module.axes, module.block, targets, measures, asking, finish
    )


def _by_microbatch(
    module: Analysed,
    targets: Sequence[Target],
    measures: Sequence[Sequence[Measure]],
    asking: Asking,
    staged: Staged,
) -> tuple[list[Answer], list[Value]] | None:
    """As `block_statistics`, where one loop adds up all the targets and all that is asked of them
    can be joined; else None, and nothing is changed.
    """
    gradients, real = [target.value for target in targets], asking.examples.real
    joins = [measure.join for each in measures for measure in each]
    # Steps of unequal numbers of real examples have spreads of unequal weight.
    uneven = real is not None and SPREADS in joins
    if asking.examples.size == 1 or None in joins or uneven:
        return None
    found = find_microbatches(module.axes, gradients)
    if found is None:
        return None
    again = _copied(module, found, gradients[: asking.gradients], asking) if staged.again else None
    if staged.again and again is None:
        return None
    # Where examples are padding, each step's mean is over all that are real already.
    known = [SUMS if j is MEANS and real else j for j in (*joins, *staged.joins) if j is not None]
    answers, made = inside_step(module, found, targets, measures, asking, staged.inside)
    values = loop_with(module, found, made, known)
    outputs = [target.value for target in targets]
    joined = _Joined(found, known, values, outputs, measures, asking)
    results = _behind(module, joined, staged, again)
    return [replace(a, trips=a.trips * found.steps, gradient=None) for a in answers], results


def _ended(
    found: Microbatches, joins: Sequence[Join], states: Sequence[jax.Array]
) -> list[jax.Array]:
    return [join.end(state, found.members) for join, state in zip(joins, states, strict=True)]


def _behind(
    module: Analysed,
    joined: _Joined,
    staged: Staged,
    copied: tuple[Microbatches, Operation] | None,
) -> list[Value]:
    """All statistics, from what the loop has joined, and, of its copy, from the second pass."""
    calls, again, given = list[Asked](), list[Value](), joined.operands
    found = copied[0] if copied else joined.found

    def asked(*operands: jax.Array) -> list[jax.Array]:
        whole, made = joined.of(operands)
        staged.behind(_noting(whole, calls), made)
        return jax.tree.leaves([(call.arrays, call.finite) for call in calls])

    def replacement(*operands: jax.Array) -> list[jax.Array]:
        whole, made = joined.of(operands[: len(given)])
        answers = iter(_ended(found, _joins_of(calls), operands[len(given) :]))
        known = replace(whole, elsewhere=lambda asked: [next(answers) for _ in asked.arrays])
        return list(staged.behind(known, made))

    if copied is not None:
        arrays = _spliced(given, asked, found.nest[0].loop, joined.asking)
        again = _answers(module, *copied, calls, arrays, joined.asking)
    end = mlir.return_operation(module.block)
    return _spliced([*given, *again], replacement, end, joined.asking)


def _spliced(
    values: Sequence[Value], replacement: Replacement, before: Operation, asking: Asking
) -> list[Value]:
    """What statistics are made of, which may be the user's own functions."""
    return splice(
        values,
        replacement,
        before,
        closed_over=asking.closed_over,
        scope=STEPS,
        platform=asking.platform,
    )


def _copied(
    module: Analysed, found: Microbatches, gradients: Sequence[Value], asking: Asking
) -> tuple[Microbatches, Operation] | None:
    """A copy of the loops at the end of main, classified, and of what makes gradients of their
    sums; and an op that has these gradients for operands.
    """
    sums, end = found.nest[0], mlir.return_operation(module.block)
    made = dict[Value, Value]()
    copy_all([sums.loop], made, end, AGAIN)
    made = {result: made[result] for result in sums.added}
    copy_all(sums.tail, made, end, AGAIN)
    values = [made.get(v, v) for v in gradients]
    classify_again(module, asking.examples.values)
    again = find_microbatches(module.axes, values)
    return again and (again, held(module.block, values))


def _answers(
    module: Analysed,
    found: Microbatches,
    holder: Operation,
    calls: Sequence[Asked],
    given: Sequence[Value],
    asking: Asking,
) -> list[Value]:
    """What answers these calls, whose arrays are `given`, joined over the steps of the copy."""

    def of_step(step: Measurements) -> list[jax.Array]:
        number = step_number(found, [step.known[v] for v in counters(found)])
        own = jnp.asarray(found.members)[number]
        arrays = iter([step.known[v] for v in given])
        return [x for asked in calls for x in step.answer(_of_examples(own, asked, arrays))]

    targets = [Target(holder, i, "") for i in range(asking.gradients)]
    asked = replace(asking, given=[*given, *counters(found)])
    _, made = inside_step(module, found, targets, [[] for _ in targets], asked, of_step)
    holder.erase()
    return loop_with(module, found, made, _joins_of(calls))


def _of_examples(own: jax.Array, asked: Asked, arrays: Iterator[jax.Array]) -> Asked:
    """What was asked, with the next of these arrays, of a step's own examples."""
    whole = asked.kind == "along"
    taken = [x if whole else x[own] for x in (next(arrays) for _ in asked.arrays)]
    finite = None if asked.finite is None else next(arrays)[own]
    return Asked(asked.kind, taken, finite)


def _joins_of(calls: Sequence[Asked]) -> list[Join]:
    """How the answers of steps are joined."""
    return [ROWS if asked.kind == "along" else SUMS for asked in calls for _ in asked.arrays]


def _noting(whole: Measurements, calls: list[Asked]) -> Measurements:
    """The whole's measurements, which note what is asked of them, and answer zeros."""

    def noted(asked: Asked) -> list[jax.Array]:
        calls.append(asked)
        if asked.kind == "along":
            return [jnp.zeros(whole.size, widened(d).real.dtype) for d in asked.arrays]
        means = whole.own_mean()
        return [jnp.zeros_like(mean if asked.kind == "sum" else mean.real) for mean in means]

    return replace(whole, elsewhere=noted)
