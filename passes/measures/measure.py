"""A measure: what a strategy computes of one gradient output; every statistic is made of measures.

Each is what is taken of one example's gradient, and what is made of that of all: of its sum over
the examples, or of its rows, one an example. That is its definition, and how a loop over the
examples has it; other strategies compute it from less.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from hlo_surgery.passes.ir.element_types import widened
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.measures.joins import ROWS, Join
from hlo_surgery.passes.measures.real_examples import Padding, without_padding
from hlo_surgery.passes.measures.taking import Taking
from hlo_surgery.passes.terms.epilogue import Link
from hlo_surgery.passes.terms.steps import GradientSlice, Input

Known = Mapping[Input, jax.Array]


class Measure:
    """What is computed of one gradient. Of itself it says nothing: see `Defined`, `OfPositions`.

    `join`: how that of parts of a batch, as many examples each, becomes that of the whole; None
    where it takes more, as products of examples of several parts.
    """

    join: ClassVar[Join | None] = None

    def of_part(self, found: jax.Array, mean: jax.Array) -> jax.Array:
        """What is joined: the measure of a part, if need be with the mean of its gradients."""
        return found

    def is_stackable(self, behind: Sequence[Link], write: Operation) -> bool:
        """Whether a loop that stacks gradients can stack this of its updates; `write`: the op that
        stacks them, `behind`: what moves and scales the stack.
        """
        return False

    def behind(self, tail: GradientSlice, stack: jax.Array, made: Value, known: Known) -> jax.Array:
        """The measure of a gradient behind a loop that stacks `made`, from the stack of its own."""
        raise NotImplementedError


class OfPositions(Measure):
    """A measure by single positions, which an example's gradient does not tell apart: the strategy
    that makes it is its definition.

    `needs`: what it needs a gradient to be; `help`: what to do where that is not so.
    """

    needs: ClassVar[str]
    help: ClassVar[str]


class PerToken(OfPositions):
    """A proxy for a statistic of the examples: as if each position were one."""

    needs = "a per-token proxy needs a single contraction over examples and positions"
    help = "ask for second_moment or norms: they are exact everywhere"


class Defined(Measure, ABC):
    """A measure that the examples' gradients define.

    `is_sum`: what is taken of each example is summed over them; else it is stacked, [B, ...].
    """

    is_sum: ClassVar[bool] = True
    is_about_mean: ClassVar[bool] = False

    @abstractmethod
    def each(self, gradient: jax.Array, mean: jax.Array | None) -> Any:
        """What is taken of one example's gradient, [*parameter]; arrays. `mean`: of all gradients,
        given if it `is_about_mean`.
        """

    @abstractmethod
    def whole(self, taken: Any, count: Any) -> jax.Array:
        """The measure, from the sum over the `count` real examples, or from rows, 0 for padding."""

    def taking(self, kind: jax.ShapeDtypeStruct) -> Taking:
        """What `each` costs of a gradient of this kind, where that is more than reading it."""
        return Taking()

    def of(self, g: jax.Array, padding: Padding | None = None) -> jax.Array:
        """The definition, on the gradients of all examples at once, [B, *parameter]."""
        count = g.shape[0] if padding is None else padding.count
        mean = _mean(g, padding, count) if self.is_about_mean else None
        rows = self.rows(g, padding, mean)
        return self.whole(jax.tree.map(summed_rows, rows) if self.is_sum else rows, count)

    def rows(self, g: jax.Array, padding: Padding | None, mean: jax.Array | None = None) -> Any:
        """What is taken of each example, [B, ...], zero for padding."""
        rows = jax.vmap(self.each, (0, None))(g, mean)
        return jax.tree.map(partial(without_padding, padding=padding), rows)


def _mean(g: jax.Array, padding: Padding | None, count: Any) -> jax.Array:
    return jnp.sum(without_padding(widened(g), padding), 0) / count


def summed_rows(rows: jax.Array) -> jax.Array:
    """The sum over the examples, in the same dtype."""
    return jnp.sum(rows, 0, dtype=rows.dtype)


class RowMeasure(Defined, ABC):
    """A measure whose rows are what is taken of each example, as it is."""

    is_sum: ClassVar[bool] = False
    join: ClassVar[Join | None] = ROWS

    def whole(self, taken: jax.Array, count: Any) -> jax.Array:
        """All of them."""
        return taken
