"""Hoist stacks: given a loop that stacks contractions, stacked operands contracted behind it.

    %g = while (%c) { dynamic_update_slice %c, (dot_general %h_i, %l_i over b), %i }
    =>  %H, %L = while { stack %h_i, %l_i } ; %g = dot_general %H, %L over b, batched over i

So a scan over layers leaves its gradients where the weights of the examples, which rest on all
layers, are known.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp

from hlo_surgery.passes.dataflow.counters import counter_values
from hlo_surgery.passes.dataflow.linked import behind_barriers
from hlo_surgery.passes.dataflow.numbers import Numbers, values_over
from hlo_surgery.passes.emit.scopes import HOISTED_STACK
from hlo_surgery.passes.emit.splice import splice
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.loops.hoist_accumulations import Term, after_loop, contract, term_of
from hlo_surgery.passes.loops.lift_values import reached_values
from hlo_surgery.passes.loops.scanned_gradients import Scan, scanned_carry
from hlo_surgery.passes.loops.step_stacks import (
    Source,
    Stacked,
    Stacks,
    operand_sources,
    resolve,
    write_stacks,
)
from hlo_surgery.passes.terms.axes import Axes


@dataclass(frozen=True)
class Slice:
    """What a loop stacks as one of its results: a contraction for each step."""

    scan: Scan
    term: Term


def hoist_stacks(axes: Axes, block: mlir.Block, outputs: Sequence[Value]) -> bool:
    """Hoist what the outputs rest on, out of the loops of this block. True if anything changed.

    Ops and values are new then, and must be classified again.
    """
    reached = reached_values(axes, outputs)
    loops = [op for op in mlir.operations(block) if op.name == "stablehlo.while"]
    hoisted = [_hoist(axes, loop, reached) for loop in loops]
    return any(hoisted)


def _hoist(axes: Axes, loop: Operation, reached: set[Value]) -> bool:
    counters = counter_values(loop)
    if not counters:
        return False
    numbers = [i for i, result in enumerate(loop.results) if behind_barriers(result) in reached]
    slices = [found for i in numbers if (found := _slice(axes, loop, i)) is not None]
    if not slices:
        return False
    stacks = Stacks(counters, _order(slices[0], counters))
    plans: list[tuple[Slice, list[Source]]] = []
    for found in slices:
        sources = operand_sources(loop, [found.term.site], stacks)
        if sources and {s.order for s in sources[0] if isinstance(s, Stacked)} == {
            _order(found, counters).order
        }:
            plans.append((found, sources[0]))
    if not plans:
        return False
    renewed, made = write_stacks(axes, loop, stacks, reached)
    for found, sources in plans:
        _contract_behind(renewed, found, [resolve(s, made) for s in sources])
    return True


def _slice(axes: Axes, loop: Operation, number: int) -> Slice | None:
    scan = scanned_carry(axes, loop.results[number])
    term = term_of(axes, loop.regions[1].blocks[0], scan.write.operands[1]) if scan else None
    return Slice(scan, term) if scan and term else None


def _order(found: Slice, counters: dict[Value, Numbers]) -> Stacked:
    """The order in which the loop stacks a contraction, and so has to stack its operands."""
    index, numbers = found.scan.index, values_over(found.scan.index, counters)
    return Stacked(index, -1, index, () if numbers is None else tuple(numbers.tolist()))


def _contract_behind(
    loop: Operation, found: Slice, sources: list[tuple[Value, int | None]]
) -> None:
    """Make the carry idle, and its result all steps' contractions at once, behind the loop."""
    term, number = found.term, found.scan.number
    values = list(dict.fromkeys([*(v for v, _ in sources), *term.others]))

    def contracted(*operands: jax.Array) -> list[jax.Array]:
        known = dict(zip(values, operands, strict=True))

        def of_step(*step: jax.Array) -> jax.Array:
            return contract(term, list(step), known)

        dims = [dim for _, dim in sources]
        each = jax.vmap(of_step, in_axes=dims)(*(known[v] for v, _ in sources))
        return [jnp.moveaxis(each, 0, found.scan.dim).reshape(mlir.shape(loop.results[number]))]

    (stack,) = splice(values, contracted, after_loop(loop), term.site.op, scope=HOISTED_STACK)
    body = cast(Any, loop.regions[1].blocks[0])
    mlir.return_operation(body).operands[number] = body.arguments[number]
    loop.results[number].replace_all_uses_with(stack)
