"""Carried: a loop, or loops within each other, that carry more, by JAX functions.

%r = while (%c) { .. }   =>   %r, %s = while (%c, %d = start()) { .. ; go_on(%d, %x) }
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.passes.emit.rebuild import add_carries, extend_results, extend_return
from hlo_surgery.passes.emit.scopes import STACK, Scope
from hlo_surgery.passes.emit.splice import Replacement, splice
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.terms.axes import Axes


def carried(
    axes: Axes,
    nest: Sequence[Operation],
    start: Callable[[], Sequence[jax.Array]],
    go_on: Replacement,
    taken: Sequence[Value],
    scope: Scope,
    known: Sequence[dict[Value, Any]] = (),
    sets: Sequence[set[Value]] = (),
) -> tuple[Operation, list[Value]]:
    """The outermost of these loops, rebuilt, and what it results in further. A step of the
    innermost goes on from the state that is carried to that of all steps, with values that it has
    `taken`. What is `known` of the loops' results, and the `sets` that they are in, are renewed.
    """
    states = [splice([], start, nest[0], scope=scope)]
    for loop in nest:
        states.append(add_carries(loop, states[-1]))
    end = mlir.return_operation(nest[-1].regions[1].blocks[0])
    values, renewed = splice([*states[-1], *taken], go_on, end, scope=scope), nest[0]
    for loop, initial in zip(reversed(nest), reversed(states[:-1]), strict=True):
        extend_return(mlir.return_operation(loop.regions[1].blocks[0]), values)
        of_results = [*axes.by_value, *known], [axes.trained, *sets]
        renewed = extend_results(loop, initial, len(initial), *of_results)
        values = mlir.results(renewed)[len(renewed.results) - len(initial) :]
    return renewed, values


@dataclass(frozen=True)
class Part:
    """A step's value, stacked at `index` of so many `places`: along a dimension of its own, of size
    1, or else along a new first one.
    """

    value: Value
    index: Value
    places: int
    dim: int | None = None

    def empty(self) -> jax.Array:
        """The stack before any step."""
        shape, d = mlir.shape(self.value), self.dim
        own = (1, *shape) if d is None else shape
        return jnp.zeros((*own[: d or 0], self.places, *own[(d or 0) + 1 :]), dtype_of(self.value))

    def put(self, stack: jax.Array, value: jax.Array, index: jax.Array) -> jax.Array:
        """The stack with a step's value."""
        part = value[None] if self.dim is None else value
        return jax.lax.dynamic_update_slice_in_dim(
            stack, part, index, self.dim or 0, allow_negative_indices=False
        )


def stacked(
    axes: Axes,
    loop: Operation,
    parts: Sequence[Part],
    known: Sequence[dict[Value, Any]] = (),
    sets: Sequence[set[Value]] = (),
) -> tuple[Operation, list[Value]]:
    """The loop rebuilt so that it stacks these, and the stacks."""

    def start() -> list[jax.Array]:
        return [part.empty() for part in parts]

    def go_on(*operands: jax.Array) -> list[jax.Array]:
        each = (operands[k :: len(parts)] for k in range(len(parts)))
        return [part.put(*state) for part, state in zip(parts, each, strict=True)]

    taken = [*(part.value for part in parts), *(part.index for part in parts)]
    return carried(axes, [loop], start, go_on, taken, STACK, known, sets)
