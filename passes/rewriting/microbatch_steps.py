"""Microbatch steps: what is asked of the examples of one step, in the step, and joined over all.

while { .. return add %c, %u }   =>   while { %n = norms of %u's examples ; .. stack %n }
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp

from hlo_surgery.passes.axes.classes import Batched
from hlo_surgery.passes.emit.rebuild import (
    add_carries,
    copy_before,
    extend_results,
    extend_return,
    swap_carries,
)
from hlo_surgery.passes.emit.scopes import STEPS, set_scope
from hlo_surgery.passes.emit.splice import splice
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.closure import closure
from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.mlir import Operation, Value, ir
from hlo_surgery.passes.loops.loop_sums import LoopSums
from hlo_surgery.passes.loops.microbatches import Microbatches
from hlo_surgery.passes.loops.scaled_stacks import scale_in_loops
from hlo_surgery.passes.measures.joins import Join
from hlo_surgery.passes.measures.measure import Measure
from hlo_surgery.passes.rewriting.analysed import Analysed
from hlo_surgery.passes.rewriting.answers import Answer, Asking, Target
from hlo_surgery.passes.rewriting.measurements import Measurements
from hlo_surgery.passes.rewriting.replacement import Finish, block_statistics
from hlo_surgery.passes.strategies.task import Examples


def inside_step(
    module: Analysed,
    found: Microbatches,
    targets: Sequence[Target],
    measures: Sequence[Sequence[Measure]],
    asking: Asking,
    inside: Finish,
) -> tuple[list[Answer], list[Value]]:
    """What is asked of the examples of one step, in the body: measures, and what `inside` makes."""
    examples = _of_one_step(module, found, asking.examples)
    shares = _shares(module, found, [target.value for target in targets], asking.examples)
    holder = held(found.body, shares)
    if not asking.reweights:
        scale_in_loops(found.axes, holder)
    parts = [Target(holder, i, target.name) for i, target in enumerate(targets)]
    asked = replace(asking, examples=examples)
    finish = partial(_made_inside, measures, inside)
    answers, made = block_statistics(found.axes, found.body, parts, measures, asked, finish)
    holder.erase()
    return answers, made


def _made_inside(
    measures: Sequence[Sequence[Measure]], inside: Finish, found: Measurements
) -> list[jax.Array]:
    gradients = measures[: found.number]
    each = {measure: found.of(measure) for own in gradients for measure in own}
    pairs = zip(gradients, found.own_mean(), strict=True)
    arrays = [m.of_part(each[m][i], mean) for i, (own, mean) in enumerate(pairs) for m in own]
    losses = zip(measures[found.number :], found.measured[found.number :], strict=True)
    arrays += [measured[measure] for own, measured in losses for measure in own]
    return [*arrays, *inside(found)]


def _of_one_step(module: Analysed, found: Microbatches, examples: Examples) -> Examples:
    """The examples of a step; where some are padding, means are over all the batch's real ones."""
    is_mean = examples.is_mean or found.size == 1
    if examples.real is None:
        return Examples(found.size, is_mean)
    flags, count = examples.real
    first = mlir.operations(found.body)[0]

    def of_step(real: jax.Array, *numbers: jax.Array) -> list[jax.Array]:
        return [real[jnp.asarray(found.members)[step_number(found, numbers)]]]

    own = splice([flags, *counters(found)], of_step, first, scope=STEPS)
    found.axes.count = module.axes.count
    return Examples(found.size, is_mean, (own[0], count))


def _shares(
    module: Analysed, found: Microbatches, gradients: Sequence[Value], examples: Examples
) -> list[Value]:
    """What one step adds to each gradient, as the gradient of the step's own batch."""
    end = mlir.return_operation(found.body)
    constants = dict[Value, Value]()
    for sums in found.nest:
        constants |= _held_before(sums)
    made = dict[Value, Value]()
    for sums in reversed(found.nest):
        made |= {result: _sum(found, values, made, end) for result, values in sums.added.items()}
        for op in sums.tail:
            kinds = zip(op.operands, module.axes.at(op), strict=True)
            taken = [
                made[v] if module.axes.is_sum(known) else constants.get(v, v) for v, known in kinds
            ]
            copies = _copied(op, taken, end)
            for old, new in copies.items():
                if module.axes.is_sum(module.axes.of(old)):
                    found.axes.assume(new, _of_step(found, op))
            made |= copies
    shares = [made[v] if v in made else _nothing(v, end) for v in gradients]
    return [_scaled(found, share, examples, end) for share in shares]


def _nothing(gradient: Value, before: Operation) -> Value:
    """What a step adds to a gradient that is no sum of the loop's: they all vanish."""
    shape, dtype = mlir.shape(gradient), dtype_of(gradient)
    return splice([], lambda: [jnp.zeros(shape, dtype)], before, scope=STEPS)[0]


def _held_before(sums: LoopSums) -> dict[Value, Value]:
    """Constants for the tail, made before the loop: what it results in without any example, as of
    a loop before it that makes nothing else, since all steps need to know it.
    """
    made = _constants_before(sums) if sums.constants else {}
    for op in sums.held:
        made |= _copied(op, [made.get(v, v) for v in op.operands], sums.loop)
    return made


def _constants_before(sums: LoopSums) -> dict[Value, Value]:
    copied = copy_before(sums.loop, mlir.operands(sums.loop), sums.loop, STEPS)
    results, body = mlir.results(sums.loop), cast(Any, copied.regions[1].blocks[0])
    end = mlir.return_operation(body)
    for number in (results.index(result) for result in sums.added):
        end.operands[number] = body.arguments[number]
    return {value: copied.results[results.index(value)] for value in sums.constants}


def _sum(
    found: Microbatches, added: Sequence[Value], made: Mapping[Value, Value], end: Operation
) -> Value:
    """What a step adds to a sum, of which a loop within `made` some."""
    values = [made.get(value, value) for value in added if not is_splat(value, 0)]
    total = values[0] if values else _nothing(added[0], end)
    for value in values[1:]:
        with mlir.context(), end.location, ir.InsertionPoint(end):
            op = ir.Operation.create("stablehlo.add", results=[total.type], operands=[total, value])
        set_scope(op, STEPS, end)
        found.axes.assume(op.results[0], _of_step(found, op))
        total = op.results[0]
    return total


def _of_step(found: Microbatches, op: Operation) -> Batched:
    """The class of what is a step's share: a sum over its examples, or its single one's own."""
    return Batched(frozenset(found.axes.batch), site=op)


def _copied(op: Operation, operands: Sequence[Value], before: Operation) -> dict[Value, Value]:
    """The results of a copy, by those of the op."""
    copied = copy_before(op, operands, before, STEPS)
    return dict(zip(mlir.results(op), mlir.results(copied), strict=True))


def _scaled(found: Microbatches, share: Value, examples: Examples, end: Operation) -> Value:
    """A step's share of a mean over the batch, as the mean over the step. Padding is counted by
    numbers of the whole batch, but where a step has one example, whose gradient is as it is.
    """
    if not examples.is_mean or (examples.real and found.size > 1):
        return share
    count = [examples.real[1]] if examples.real else []

    def scaled(x: jax.Array, *real: jax.Array) -> list[jax.Array]:
        factor = real[0].astype(x.dtype) if real else jnp.asarray(found.steps, x.dtype)
        return [x * factor]

    made = splice([share, *count], scaled, end, scope=STEPS)[0]
    found.axes.assume(made, found.axes.of(share))
    return made


def held(block: mlir.Block, values: Sequence[Value]) -> Operation:
    """An op that has these values for operands as long as loops in its block are rebuilt."""
    end = mlir.return_operation(block)
    with mlir.context(), end.location, ir.InsertionPoint(end):
        return ir.Operation.create(
            mlir.BARRIER, results=[v.type for v in values], operands=list(values)
        )


def loop_with(
    module: Analysed, found: Microbatches, made: Sequence[Value], joins: Sequence[Join]
) -> list[Value]:
    """The results of the loop rebuilt so that it also joins what is made in its steps."""
    kinds = [(mlir.shape(v), dtype_of(v)) for v in made]

    def started() -> list[jax.Array]:
        pairs = zip(joins, kinds, strict=True)
        return [join.start(shape, dtype, found.steps) for join, (shape, dtype) in pairs]

    def added(*operands: jax.Array) -> list[jax.Array]:
        states, news = operands[: len(made)], operands[len(made) : 2 * len(made)]
        step = step_number(found, operands[2 * len(made) :])
        pairs = zip(joins, states, news, strict=True)
        return [join.add(state, new, step) for join, state, new in pairs]

    carried = [splice([], started, found.nest[0].loop, scope=STEPS)]
    for sums in found.nest:
        carried.append(add_carries(sums.loop, carried[-1]))
    end = mlir.return_operation(found.body)
    joined = splice([*carried[-1], *made, *counters(found)], added, end, scope=STEPS)
    known = module.axes.by_value, [module.axes.trained]
    for sums, initial in zip(reversed(found.nest), reversed(carried[:-1]), strict=True):
        extend_return(mlir.return_operation(sums.body), joined)
        renewed = extend_results(sums.loop, initial, len(initial), *known)
        joined = mlir.results(renewed)[len(renewed.results) - len(initial) :]
    return joined


def turn_sums(loop: Operation, numbers: Sequence[int], outputs: Sequence[Value]) -> None:
    """The sums of a loop, its carries of these numbers, in the opposite order of the outputs that
    are made of them.

    XLA gives the memory of outputs to sums of their size, in order, and a sum that is used before
    an output is made cannot have that: where each is scaled behind the loop, one output after the
    other, sums in the same order have half of it. So it is on CPU, with JAX 0.10.2.
    """
    results = set(mlir.results(loop))
    made_of = [closure([output], partial(_operands_behind, results)) for output in outputs]
    by_type: dict[str, list[int]] = {}
    for number in sorted(numbers):
        by_type.setdefault(str(loop.results[number].type), []).append(number)
    for places in by_type.values():
        held = list(places)
        wanted = sorted(places, key=lambda n: -_first(made_of, loop.results[n]))
        for i, number in enumerate(wanted):
            k = held.index(number)
            if k != i:
                swap_carries(loop, places[i], places[k])
                held[i], held[k] = held[k], held[i]


def _operands_behind(results: Container[Value], value: Value) -> list[Value]:
    """What a value behind a loop is made of; of the loop's results no more is asked."""
    op = None if value in results else mlir.defining_operation(value)
    return [] if op is None else mlir.operands(op)


def _first(made_of: Sequence[Container[Value]], value: Value) -> int:
    """The first of the outputs that are made of a value."""
    return next((i for i, values in enumerate(made_of) if value in values), len(made_of))


def counters(found: Microbatches) -> list[Value]:
    """The number of the step in each of the loops, in the body of the innermost."""
    return [sums.step for sums in found.nest]


def step_number(found: Microbatches, numbers: Sequence[jax.Array]) -> jax.Array:
    """The step's number among those of all loops, from its number in each."""
    step = jnp.zeros((), jnp.int32)
    for sums, number in zip(found.nest, numbers, strict=True):
        step = step * sums.trips + number.astype(jnp.int32)
    return step
