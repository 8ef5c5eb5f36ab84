"""Second pass: microbatches gone over once more, for what rests on what all of them have.

    %g, %n = while { .. stack norms }  ;  %w = weights of %n
        =>  .. ; %s = while { .. ; add %d, (%u with its examples weighted by %w) }

So sums with weights, and inner products with the mean gradient, take no more memory than one step
does, and the time of the gradient once more.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

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
from hlo_surgery.passes.rewriting.measurements import Measurements
from hlo_surgery.passes.rewriting.microbatch_steps import (
    counters,
    held,
    inside_step,
    loop_with,
    step_number,
)

Method = Callable[..., list[jax.Array]]


class Given(NamedTuple):
    """What a statistic asks all examples with, an array for each gradient: weights, [B], of those
    that are `finite`; or directions.
    """

    arrays: Sequence[jax.Array]
    finite: jax.Array | None = None


Call = tuple[Method, Given]


@dataclass(frozen=True)
class Rehearsed(Measurements):
    """Measurements that note which sums over all examples are asked of them, by which method, and
    have `answers` to these, or zeros.
    """

    calls: list[Call]
    answers: Iterator[jax.Array] | None

    def weighted(
        self, weights: Sequence[jax.Array], finite: jax.Array | None = None
    ) -> list[jax.Array]:
        """The sum over b of w_b g_b."""
        zeros = map(jnp.zeros_like, self.own_mean())
        return self._answer(Measurements.weighted, Given(weights, finite), zeros)

    def weighted_squares(
        self, weights: Sequence[jax.Array], finite: jax.Array | None = None
    ) -> list[jax.Array]:
        """The sum over b of |w_b g_b|**2."""
        zeros = (jnp.zeros_like(mean.real) for mean in self.own_mean())
        return self._answer(Measurements.weighted_squares, Given(weights, finite), zeros)

    def along(self, directions: Sequence[jax.Array]) -> list[jax.Array]:
        """The inner product of each example's gradient with a direction."""
        zeros = (jnp.zeros(self.size, widened(d).real.dtype) for d in directions)
        return self._answer(Measurements.along, Given(directions), zeros)

    def _answer(self, method: Method, given: Given, zeros: Iterator[jax.Array]) -> list[jax.Array]:
        self.calls.append((method, given))
        return list(zeros) if self.answers is None else [next(self.answers) for _ in given.arrays]


def rehearsed(
    found: Measurements, calls: list[Call], answers: Iterator[jax.Array] | None = None
) -> Rehearsed:
    """The same measurements, with answers if they are known."""
    return Rehearsed(**vars(found), calls=calls, answers=answers)


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
    module: Analysed, copied: Copied, calls: Sequence[Call], given: Sequence[Value], asking: Asking
) -> list[Value]:
    """What answers these calls, whose arrays are `given`, joined over the steps of the copy."""
    found, number = copied.found, asking.gradients
    targets = [Target(copied.holder, i, "") for i in range(number)]
    asked = replace(asking, given=[*given, *counters(found)])
    inside = partial(_of_step, found, calls, given)
    _, made = inside_step(module, found, targets, [[]] * number, asked, inside)
    copied.holder.erase()
    return loop_with(module, found, made, joins_of(calls))


def joins_of(calls: Sequence[Call]) -> list[Join]:
    """How the answers of steps are joined."""
    joins = ((ROWS if method is Measurements.along else SUMS, given) for method, given in calls)
    return [join for join, given in joins for _ in given.arrays]


def _of_step(
    found: Microbatches, calls: Sequence[Call], given: Sequence[Value], step: Measurements
) -> list[jax.Array]:
    """The answers of one step, whose examples have their own weights."""
    own = jnp.asarray(found.members)[step_number(found, [step.known[v] for v in counters(found)])]
    methods, kinds = zip(*calls, strict=True) if calls else ((), ())
    arrays: Any = jax.tree.unflatten(jax.tree.structure(kinds), [step.known[v] for v in given])
    answers: list[jax.Array] = []
    for method, asked in zip(methods, arrays, strict=True):
        if method is Measurements.along:
            answers += step.along(asked.arrays)
        else:
            answers += method(step, *jax.tree.map(lambda weights: weights[own], asked))
    return answers
