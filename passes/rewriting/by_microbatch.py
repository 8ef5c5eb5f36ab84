"""By microbatch: statistics of gradients that a loop adds up, made in the steps of that loop.

    while (%c = %zero) { add %c, %u } ; %g = multiply %c, %scale
        =>  while (.., %s = %zero) { .. ; %s + phi of each example's part of (multiply %u, %scale) }

Each step is a batch of its own, of which no more is in memory than of any other of its size. Sums
whose weights rest on what all steps have take the batch as a whole.
"""

from collections.abc import Sequence
from dataclasses import replace

import jax

from hlo_surgery.passes.emit.scopes import STEPS
from hlo_surgery.passes.emit.splice import splice
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.loops.microbatches import Microbatches, find_microbatches
from hlo_surgery.passes.measures.joins import MEANS, SPREADS, SUMS, Join
from hlo_surgery.passes.measures.measure import Measure
from hlo_surgery.passes.rewriting.analysed import Analysed
from hlo_surgery.passes.rewriting.measurements import Measurements, Staged
from hlo_surgery.passes.rewriting.microbatch_steps import inside_step, loop_with
from hlo_surgery.passes.rewriting.replacement import (
    Answer,
    Asking,
    Finish,
    Target,
    block_statistics,
)


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
    real = asking.examples.real
    joins = [measure.join for each in measures for measure in each]
    # Steps of unequal numbers of real examples have spreads of unequal weight.
    uneven = real is not None and SPREADS in joins
    if asking.examples.size == 1 or None in joins or uneven or staged.again:
        return None
    found = find_microbatches(module.axes, [target.value for target in targets])
    if found is None:
        return None
    # Where examples are padding, each step's mean is over all that are real already.
    known = [SUMS if j is MEANS and real else j for j in (*joins, *staged.joins) if j is not None]
    answers, made = inside_step(module, found, targets, measures, asking, staged.inside)
    values = loop_with(module, found, made, known)
    results = _behind(module, found, known, values, targets, measures, asking, staged)
    return [replace(a, trips=a.trips * found.steps, gradient=None) for a in answers], results


def _behind(
    module: Analysed,
    found: Microbatches,
    joins: Sequence[Join],
    joined: Sequence[Value],
    targets: Sequence[Target],
    measures: Sequence[Sequence[Measure]],
    asking: Asking,
    staged: Staged,
) -> list[Value]:
    """All statistics, from what the loop has `joined` of these measures and what else was made."""
    outputs = [target.value for target in targets]
    values = list(dict.fromkeys([*joined, *outputs, *asking.examples.values]))

    def replacement(*operands: jax.Array) -> list[jax.Array]:
        known = dict(zip(values, operands, strict=True))
        pairs = zip(joins, joined, strict=True)
        ended = iter([join.end(known[v], found.members) for join, v in pairs])
        measured = [{m: next(ended) for m in own} for own in measures]
        whole = (asking.examples, asking.gradients, measured, {}, known, outputs)
        return list(staged.behind(Measurements(*whole), list(ended)))

    # What statistics are made of may be the user's own functions.
    return splice(
        values,
        replacement,
        mlir.return_operation(module.block),
        closed_over=asking.closed_over,
        scope=STEPS,
        platform=asking.platform,
    )
