"""The measures: means, variances and sums over the examples' gradients, and rows, one of each.

Taking: what it costs to take a measure of one example's gradient, once that is there.

A measure: what a strategy computes of one gradient output; every statistic is made of measures.

Each is what is taken of one example's gradient, and what is made of that of all: of its sum over
the examples, or of its rows, one an example. That is its definition, and how a loop over the
examples has it; other strategies compute it from less.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from hlo_surgery.passes.emit.export import as_asked
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import dtype_of, wide_dtype, widened
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.measures.moments import (
    MEANS,
    ROWS,
    SPREADS,
    Join,
    central_moment,
    squared_magnitude,
    without_padding,
)
from hlo_surgery.passes.terms.epilogue import (
    Does,
    Phi,
    Reading,
    keeps_norms,
    moved_statistic,
    only_moves,
)
from hlo_surgery.passes.terms.scaling import joint_norm, norms_of_rows
from hlo_surgery.passes.terms.steps import Given, GradientSlice


class TakingCost(NamedTuple):
    """`flops` of contractions and `held` bytes of results for each example; `drawn`: bytes that are
    made once for all examples taken at a time, as random signs are.
    """

    flops: int = 0
    held: int = 0
    drawn: int = 0


class Measure:
    """What is computed of one gradient. Of itself it says nothing: see `Defined`, `OfPositions`.

    `join`: how that of parts of a batch, as many examples each, becomes that of the whole; None
    where it takes more, as products of examples of several parts.
    """

    join: ClassVar[Join | None] = None

    def of_part(self, found: Array, mean: Array) -> Array:
        """What is joined: the measure of a part, if need be with the mean of its gradients."""
        return found

    def is_stackable(self, behind: Sequence[Reading], write: Operation) -> bool:
        """Whether a loop that stacks gradients can stack this of its updates; `write`: the op that
        stacks them, `behind`: what moves and scales the stack.
        """
        return False

    def behind(self, tail: GradientSlice, stack: Array, made: Value, given: Given) -> Array:
        """The measure of a gradient behind a loop that stacks `made`, from the stack of its own."""
        raise NotImplementedError


def stacks_as_it_is(behind: Sequence[Reading], write: Operation) -> bool:
    """Whether a loop stacks slices one behind the other, and nothing is done to the stack."""
    whole, part = mlir.shape(write.results[0]), mlir.shape(write.operands[1])
    return all(each.does is Does.PASSES for each in behind) and [*part] == [1, *whole[1:]]


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

    def each(self, gradient: Array, mean: Array | None) -> Any:
        """What is taken of one example's gradient, [*parameter]; arrays: itself, unless a measure
        says else. `mean`: of all gradients, given if it `is_about_mean`.
        """
        return gradient

    @abstractmethod
    def whole(self, taken: Any, count: Any) -> Array:
        """The measure, from the sum over the `count` real examples, or from rows, 0 for padding."""

    def taking(self, kind: jax.ShapeDtypeStruct) -> TakingCost:
        """What `each` costs of a gradient of this kind, where that is more than reading it."""
        return TakingCost()

    def of(self, g: Array, real: Array | None = None, count: Any = None) -> Array:
        """The definition, on the gradients of all examples at once, [B, *parameter]; of the `real`
        ones, [B], of which there are so many, 1 at least.
        """
        number = g.shape[0] if count is None else count
        counted = partial(without_padding, real=real)
        mean = jnp.sum(counted(widened(g)), 0) / number if self.is_about_mean else None
        rows = jax.tree.map(counted, jax.vmap(self.each, (0, None))(g, mean))
        return self.whole(jax.tree.map(summed_rows, rows) if self.is_sum else rows, number)


def summed_rows(rows: Array) -> Array:
    """The sum over the examples, in the same dtype."""
    return jnp.sum(rows, 0, dtype=rows.dtype)


class RowMeasure(Defined, ABC):
    """A measure whose rows are what is taken of each example, as it is."""

    is_sum: ClassVar[bool] = False
    join: ClassVar[Join | None] = ROWS

    def whole(self, taken: Array, count: Any) -> Array:
        """All of them."""
        return taken


@dataclass(frozen=True)
class MeanOf(Defined):
    """The mean over the examples of an elementwise function, [*parameter].

    `factorable`: phi(a * b) = phi(a) * phi(b) for all real numbers; `complex_factorable`: for all
    complex ones; `is_given`: whether phi is the user's, and may not be elementwise; `written`: the
    call that made it.
    """

    join: ClassVar[Join | None] = MEANS
    name: str
    phi: Phi
    factorable: bool = False
    complex_factorable: bool = False
    is_given: bool = False
    written: str = field(default="", compare=False)

    def __repr__(self) -> str:
        return self.written or self.name

    @property
    def vanishes_at_zero(self) -> bool:
        """Whether phi(0) = 0; of factorable functions, 1 and 1/|g| do not."""
        with jax.ensure_compile_time_eval():
            return bool((self.phi(jnp.zeros(1, jnp.float32)) == 0).all())

    def factors(self, gradient: Value) -> bool:
        """Whether phi(a * b) = phi(a) * phi(b) for the gradient's kind of numbers."""
        return self.complex_factorable if mlir.is_complex(gradient) else self.factorable

    def each(self, gradient: Array, mean: Array | None) -> Array:
        """Phi of it."""
        return precise_phi(self.phi, wide_dtype(gradient.dtype))(gradient)

    def whole(self, taken: Array, count: Any) -> Array:
        """A count-th of the sum."""
        return taken / count

    def is_stackable(self, behind: Sequence[Reading], write: Operation) -> bool:
        """What scales the gradient scales phi, where that factors."""
        return only_moves(behind) or self.factors(behind[-1].made)

    def behind(self, tail: GradientSlice, stack: Array, made: Value, given: Given) -> Array:
        """Moved as the gradient is, and scaled by phi of what that is scaled by."""
        dtype = wide_dtype(dtype_of(made))
        phi = precise_phi(self.phi, dtype)
        return moved_statistic(tail, {made: stack}, given, phi, dtype)


def _itself(gradient: Array) -> Array:
    return gradient


# Of all examples it is the module's own gradient, unless some of them are padding.
MEAN = MeanOf("mean", _itself, factorable=True, complex_factorable=True)


@dataclass(frozen=True)
class Variance(Defined):
    """The mean over the examples of |g_b - mean|**2, [*parameter]: centred first, so that nothing
    large cancels.
    """

    is_about_mean: ClassVar[bool] = True
    join: ClassVar[Join | None] = SPREADS
    name: str = "variance"

    def of_part(self, found: Array, mean: Array) -> Array:
        """With the mean that it is about."""
        wide = widened(mean)
        return jnp.stack([found.astype(wide.dtype), wide])

    def each(self, gradient: Array, mean: Array | None) -> tuple[Array, Array]:
        """How far off it is, squared and as it is. A mean from the module is rounded."""
        assert mean is not None
        off = widened(gradient) - mean
        return squared_magnitude(off), off

    def whole(self, taken: tuple[Array, Array], count: Any) -> Array:
        """About the mean that the sums tell."""
        square, off = taken
        return central_moment(square / count, off / count)

    def is_stackable(self, behind: Sequence[Reading], write: Operation) -> bool:
        """What scales the gradient scales its variance by the square."""
        return True

    def behind(self, tail: GradientSlice, stack: Array, made: Value, given: Given) -> Array:
        """Moved as the gradient is, and scaled by the square of what that is scaled by."""
        dtype, nothing = wide_dtype(dtype_of(made)), jnp.zeros_like
        return moved_statistic(tail, {made: stack}, given, squared_magnitude, dtype, nothing)


@dataclass(frozen=True)
class PerExampleGradients(RowMeasure):
    """All gradients, [B, *parameter]."""

    name: str = "per_example"
    written: str = field(default="", compare=False)

    def __repr__(self) -> str:
        return self.written or self.name


@dataclass(frozen=True)
class Norms(RowMeasure):
    """Norms of examples' gradients over all elements, [B]; `ord`: 1, 2, any p > 0, infinity."""

    ord: float = 2

    def each(self, gradient: Array, mean: Array | None) -> Array:
        """Its norm, as of one of several under `vmap`."""
        row = widened(gradient)[None]
        return norms_of_rows(row, self.ord, branches=False)[0]

    def is_stackable(self, behind: Sequence[Reading], write: Operation) -> bool:
        """The norm of a stack is that of its slices' norms."""
        return keeps_norms(behind)

    def behind(self, tail: GradientSlice, stack: Array, made: Value, given: Given) -> Array:
        """From the norms of all slices, [steps, B]."""
        return joint_norm(list(stack), self.ord)


@dataclass(frozen=True)
class Gram(Defined):
    """Inner products of the examples' gradients, [B, B]; the real part, for complex parameters."""

    is_sum: ClassVar[bool] = False

    def whole(self, taken: Array, count: Any) -> Array:
        """Products of all pairs."""
        rows = widened(taken).reshape(taken.shape[0], -1)
        return jnp.real(jnp.matmul(rows, rows.conj().T, precision="highest"))


@dataclass(frozen=True)
class TokenMeanOf(PerToken):
    """The mean over examples of phi summed over positions, as if each were an example."""

    phi: Phi


@dataclass(frozen=True)
class TokenNorms(PerToken):
    """The norm of each position's own share of the gradient, [B, *positions]."""


def precise_phi(phi: Phi, dtype: jnp.dtype) -> Phi:
    """Phi of gradients, computed in `dtype` and returned in it, or in the real dtype beside it."""

    def of(gradients: Array) -> Array:
        found = as_asked(phi)(gradients.astype(dtype))
        return found.astype(dtype if jnp.iscomplexobj(found) else jnp.finfo(dtype).dtype)

    return of
