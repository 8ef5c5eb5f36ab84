"""Second pass: microbatches gone over once more, for what rests on what all of them have.

    %g, %n = while { .. stack norms }  ;  %w = weights of %n
        =>  .. ; %s = while { .. ; add %d, (%u with its examples weighted by %w) }

So sums with weights, and inner products with the mean gradient, take no more memory than one step
does, and the time of the gradient once more.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp

from hlo_surgery.passes.emit.rebuild import copy_all
from hlo_surgery.passes.emit.scopes import AGAIN
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.element_types import widened
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.loops.microbatches import Microbatches, find_microbatches
from hlo_surgery.passes.measures.joins import ROWS, SUMS, Join
from hlo_surgery.passes.rewriting.analysed import Analysed, classify_again
from hlo_surgery.passes.rewriting.answers import Asking, Target
from hlo_surgery.passes.rewriting.measurements import Asked, Measurements
from hlo_surgery.passes.rewriting.microbatch_steps import (
    counters,
    held,
    inside_step,
    loop_with,
    step_number,
)


@dataclass(frozen=True)
class Copied:
    """A copy of the loops that add up the gradients, at the end of main; `holder` has those of the
    copy for operands.
    """

    found: Microbatches
    holder: Operation

    @property
    def loop(self) -> Operation:
        """The outermost loop."""
        return self.found.nest[0].loop


def copied_loops(
    module: Analysed, found: Microbatches, gradients: Sequence[Value], asking: Asking
) -> Copied | None:
    """A copy of these loops, and of what makes gradients of their sums, classified."""
    sums, made = found.nest[0], dict[Value, Value]()
    copy_all([sums.loop], made, mlir.return_operation(module.block), AGAIN)
    made = {result: made[result] for result in sums.added}
    copy_all(sums.tail, made, mlir.return_operation(module.block), AGAIN)
    values = [made.get(v, v) for v in gradients]
    classify_again(module, asking.examples.real or ())
    again = find_microbatches(module.axes, values)
    return again and Copied(again, held(module.block, values))


def answers_in_steps(
    module: Analysed, copied: Copied, calls: Sequence[Asked], given: Sequence[Value], asking: Asking
) -> list[Value]:
    """What answers these calls, whose arrays are `given`, joined over the steps of the copy."""
    found, number = copied.found, asking.gradients
    targets = [Target(copied.holder, i, "") for i in range(number)]
    asked = replace(asking, given=[*given, *counters(found)])
    inside = partial(_of_step, found, calls, given)
    _, made = inside_step(module, found, targets, [[]] * number, asked, inside)
    copied.holder.erase()
    return loop_with(module, found, made, joins_of(calls))


def joins_of(calls: Sequence[Asked]) -> list[Join]:
    """How the answers of steps are joined."""
    return [ROWS if asked.kind == "along" else SUMS for asked in calls for _ in asked.arrays]


def noting(whole: Measurements, calls: list[Asked]) -> Measurements:
    """The whole's measurements, which note what is asked of them, and answer zeros."""

    def noted(asked: Asked) -> list[jax.Array]:
        calls.append(asked)
        if asked.kind == "along":
            return [jnp.zeros(whole.size, widened(d).real.dtype) for d in asked.arrays]
        means = whole.own_mean()
        return [jnp.zeros_like(mean if asked.kind == "sum" else mean.real) for mean in means]

    return replace(whole, elsewhere=noted)


def answering(whole: Measurements, answers: Iterator[jax.Array]) -> Measurements:
    """The whole's measurements, which have the answers in the order in which they are asked."""
    return replace(whole, elsewhere=lambda asked: [next(answers) for _ in asked.arrays])


def _of_step(
    found: Microbatches, calls: Sequence[Asked], given: Sequence[Value], step: Measurements
) -> list[jax.Array]:
    """The answers of one step, whose examples have their own weights."""
    own = jnp.asarray(found.members)[step_number(found, [step.known[v] for v in counters(found)])]
    arrays = iter([step.known[v] for v in given])
    answers: list[jax.Array] = []
    for kind, known, finite in calls:
        taken = [next(arrays) for _ in (*known, *([] if finite is None else [finite]))]
        if kind != "along":
            taken = [x[own] for x in taken]
        answers += step.answer(Asked(kind, taken[: len(known)], *taken[len(known) :]))
    return answers
