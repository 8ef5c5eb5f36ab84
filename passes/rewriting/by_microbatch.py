"""By microbatch: statistics of gradients that a loop adds up, made in the steps of that loop.

    while (%c = %zero) { add %c, %u } ; %g = multiply %c, %scale
        =>  while (.., %s = %zero) { .. ; %s + phi of each example's part of (multiply %u, %scale) }

Each step is a batch of its own, of which no more is in memory than of any other of its size. What
rests on what all steps have, as weights by norms of the whole batch, takes a second pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np

from hlo_surgery.passes.emit.scopes import STEPS
from hlo_surgery.passes.emit.splice import Replacement, splice
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.loops.microbatches import Microbatches, find_microbatches
from hlo_surgery.passes.measures.joins import MEANS, SPREADS, SUMS, Join
from hlo_surgery.passes.measures.measure import Measure
from hlo_surgery.passes.rewriting.analysed import Analysed
from hlo_surgery.passes.rewriting.answers import Answer, Asking, Target
from hlo_surgery.passes.rewriting.measurements import Measurements, Staged
from hlo_surgery.passes.rewriting.microbatch_steps import inside_step, loop_with, turn_sums
from hlo_surgery.passes.rewriting.replacement import Finish, block_statistics
from hlo_surgery.passes.rewriting.second_pass import (
    Call,
    Copied,
    answers_in_steps,
    copied_loops,
    joins_of,
    rehearsed,
)
from hlo_surgery.passes.strategies.task import Examples


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
        return list(
            dict.fromkeys([*self.values, *self.outputs, *(self.asking.examples.real or ())])
        )

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
    found_joins = [measure.join for each in measures for measure in each]
    known = [join for join in found_joins if join is not None]
    # Steps of unequal numbers of real examples have spreads of unequal weight.
    uneven = asking.examples.real is not None and SPREADS in known
    if asking.examples.size == 1 or len(known) < len(found_joins) or uneven:
        return None
    found = find_microbatches(module.axes, [target.value for target in targets])
    if found is None or not all(_is_counted(found, t.value, asking.examples) for t in targets):
        return None
    gradients = [target.value for target in targets[: asking.gradients]]
    copied = copied_loops(module, found, gradients, asking) if staged.again else None
    if staged.again and copied is None:
        return None
    sums = [mlir.results(found.nest[0].loop).index(result) for result in found.nest[0].added]
    joins = _unscaled([*known, *staged.joins], asking.examples)
    answers, made = inside_step(module, found, targets, measures, asking, staged.inside)
    values = loop_with(module, found, made, joins)
    outputs = [target.value for target in targets]
    joined = _Joined(found, joins, values, outputs, measures, asking)
    results = _behind(module, joined, staged, copied)
    loop = mlir.defining_operation(values[0]) if values else None
    if loop is not None:
        turn_sums(loop, sums, [target.value for target in targets])
    return [replace(a, trips=a.trips * found.steps, gradient=None) for a in answers], results


def _is_counted(found: Microbatches, gradient: Value, examples: Examples) -> bool:
    """Whether the gradient's type holds the number by which a step's share of it is scaled."""
    if not examples.is_mean or mlir.is_at_least_float32(gradient):
        return True
    dtype = dtype_of(gradient)
    if found.size == 1 and examples.real:
        return False
    return dtype.kind == "c" or int(np.asarray(found.steps).astype(dtype)) == found.steps


def _unscaled(joins: Sequence[Join], examples: Examples) -> list[Join]:
    """Where examples are padding, each step's mean is over all that are real already."""
    return [SUMS if join is MEANS and examples.real else join for join in joins]


def _ended(
    found: Microbatches, joins: Sequence[Join], states: Sequence[jax.Array]
) -> list[jax.Array]:
    pairs = zip(joins, states, strict=True)
    return [join.end(state, found.members) for join, state in pairs]


def _behind(
    module: Analysed, joined: _Joined, staged: Staged, copied: Copied | None
) -> list[Value]:
    """All statistics, from what the loop has joined, and its copy."""
    calls = list[Call]()
    again = [] if copied is None else _again(module, joined, staged, copied, calls)
    members, given = copied.found if copied else joined.found, joined.operands

    def replacement(*operands: jax.Array) -> list[jax.Array]:
        whole, made = joined.of(operands[: len(given)])
        answers = _ended(members, joins_of(calls), operands[len(given) :])
        return list(staged.behind(rehearsed(whole, [], iter(answers)), made))

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


def _again(
    module: Analysed, joined: _Joined, staged: Staged, copied: Copied, calls: list[Call]
) -> list[Value]:
    """What all statistics ask, put into `calls`, of the examples' gradients: the second pass."""

    def asked(*operands: jax.Array) -> list[jax.Array]:
        whole, made = joined.of(operands)
        staged.behind(rehearsed(whole, calls), made)
        return [x for call in calls for x in call.flat]

    given = _spliced(joined.operands, asked, copied.loop, joined.asking)
    return answers_in_steps(module, copied, calls, given, joined.asking)
