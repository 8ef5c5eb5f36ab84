"""Second pass: microbatches gone over once more, for what rests on what all of them have.

    %g, %n = while { .. stack norms }  ;  %w = weights of %n
        =>  .. ; %s = while { .. ; add %d, (%u with its examples weighted by %w) }

So sums with weights, and inner products with the mean gradient, take no more memory than one step
does, and the time of the gradient once more.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from hlo_surgery.passes.emit.rebuild import copy_before
from hlo_surgery.passes.emit.scopes import AGAIN
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.element_types import widened
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.loops.microbatches import Microbatches, find_microbatches
from hlo_surgery.passes.measures.joins import ROWS, SUMS, Join
from hlo_surgery.passes.rewriting.analysed import Analysed, classify_again
from hlo_surgery.passes.rewriting.answers import Asking, Target
from hlo_surgery.passes.rewriting.measurements import Measurements
from hlo_surgery.passes.rewriting.microbatch_steps import (
    counters,
    held,
    inside_step,
    loop_with,
    step_number,
)


@dataclass(frozen=True)
class Call:
    """What a statistic asks of all examples: their sum with weights, [B] for each gradient, or that
    of their squares, of those that are `finite`; or their products with directions like the
    gradients.
    """

    arrays: Sequence[jax.Array]
    finite: jax.Array | None
    kind: Literal["sum", "squares", "products"]

    @property
    def flat(self) -> list[jax.Array]:
        """All arrays of it."""
        return [*self.arrays, *([] if self.finite is None else [self.finite])]

    def given(self, arrays: Iterator[jax.Array]) -> "Call":
        """The same of other arrays."""
        own = [next(arrays) for _ in self.arrays]
        return replace(self, arrays=own, finite=None if self.finite is None else next(arrays))


@dataclass(frozen=True)
class Rehearsed(Measurements):
    """Measurements that note which sums with weights are asked of them, and have `answers` to
    these, or zeros.
    """

    calls: list[Call]
    answers: Iterator[jax.Array] | None

    def weighted(
        self, weights: Sequence[jax.Array], finite: jax.Array | None = None
    ) -> list[jax.Array]:
        """The sum over b of w_b g_b."""
        self.calls.append(Call(weights, finite, "sum"))
        return self._answer([jnp.zeros_like(mean) for mean in self.own_mean()])

    def weighted_squares(
        self, weights: Sequence[jax.Array], finite: jax.Array | None = None
    ) -> list[jax.Array]:
        """The sum over b of |w_b g_b|**2."""
        self.calls.append(Call(weights, finite, "squares"))
        return self._answer([jnp.zeros_like(mean.real) for mean in self.own_mean()])

    def along(self, directions: Sequence[jax.Array]) -> list[jax.Array]:
        """The inner product of each example's gradient with a direction."""
        self.calls.append(Call(directions, None, "products"))
        return self._answer([jnp.zeros(self.size, widened(d).real.dtype) for d in directions])

    def _answer(self, zeros: list[jax.Array]) -> list[jax.Array]:
        return zeros if self.answers is None else [next(self.answers) for _ in zeros]


def rehearsed(
    found: Measurements, calls: list[Call], answers: Iterator[jax.Array] | None = None
) -> Rehearsed:
    """The same measurements, with answers if they are known."""
    chosen = (found.measured, found.chosen, found.known, found.values)
    return Rehearsed(found.examples, found.number, *chosen, calls, answers)


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
    sums, end = found.nest[0], mlir.return_operation(module.block)
    results = mlir.results(sums.loop)
    loop = copy_before(sums.loop, mlir.operands(sums.loop), end, AGAIN)
    made = {result: loop.results[results.index(result)] for result in sums.added}
    for op in sums.tail:
        copied = copy_before(op, [made.get(v, v) for v in op.operands], end, AGAIN)
        made |= zip(mlir.results(op), mlir.results(copied), strict=True)
    values = [made.get(v, v) for v in gradients]
    classify_again(module, asking.examples.real or ())
    again = find_microbatches(module.axes, values)
    return None if again is None else Copied(again, held(module.block, values))


def answers_in_steps(
    module: Analysed, copied: Copied, calls: Sequence[Call], given: Sequence[Value], asking: Asking
) -> list[Value]:
    """What answers these calls, whose arrays are `given`, joined over the steps of the copy."""
    found, number = copied.found, asking.gradients
    known = [*given, *counters(found)]
    targets = [Target(copied.holder, i, "") for i in range(number)]
    inside = partial(_of_step, found, calls, given)
    asked = replace(asking, given=known)
    _, made = inside_step(module, found, targets, [[]] * number, asked, inside)
    copied.holder.erase()
    return loop_with(module, found, made, joins_of(calls))


def joins_of(calls: Sequence[Call]) -> list[Join]:
    """How the answers of steps are joined."""
    return [ROWS if call.kind == "products" else SUMS for call in calls for _ in call.arrays]


def _of_step(
    found: Microbatches, calls: Sequence[Call], given: Sequence[Value], step: Measurements
) -> list[jax.Array]:
    """The answers of one step, whose examples have their own weights."""
    number = step_number(found, [step.known[v] for v in counters(found)])
    own = jnp.asarray(found.members)[number]
    arrays = iter([step.known[v] for v in given])
    answers: list[jax.Array] = []
    for call in (call.given(arrays) for call in calls):
        if call.kind == "products":
            answers += step.along(call.arrays)
            continue
        finite = None if call.finite is None else call.finite[own]
        of = step.weighted if call.kind == "sum" else step.weighted_squares
        answers += of([weight[own] for weight in call.arrays], finite)
    return answers
