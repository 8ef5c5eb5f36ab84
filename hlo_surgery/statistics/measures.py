"""Measures: what a strategy computes of one gradient output; every statistic is made of measures.

Each is a definition on g, the gradients of all examples at once, [B, *parameter]; strategies
compute it from less.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from hlo_surgery.passes.ir.element_types import widened
from hlo_surgery.passes.strategies.centred_operands import central_moment, squared_magnitude
from hlo_surgery.passes.strategies.scaled_norms import norms_of_rows

Phi = Callable[[jax.Array], jax.Array]


@dataclass(frozen=True)
class MeanOf:
    """The mean over the examples of an elementwise function, [*parameter].

    `factorable`: phi(a * b) = phi(a) * phi(b) for all real numbers; `complex_factorable`: for all
    complex ones; `is_given`: whether phi is the user's, and may not be elementwise.
    """

    name: str
    phi: Phi
    factorable: bool = False
    complex_factorable: bool = False
    is_given: bool = False

    def of(self, g: jax.Array) -> jax.Array:
        """The definition."""
        return jnp.mean(precise(self.phi, g), 0)


@dataclass(frozen=True)
class Variance:
    """The mean over the examples of |g_b - mean|**2, [*parameter]: centred first, so that nothing
    large cancels.
    """

    name: str = "variance"

    def of(self, g: jax.Array) -> jax.Array:
        """The definition."""
        off = widened(g) - jnp.mean(widened(g), 0)
        return central_moment(jnp.mean(squared_magnitude(off), 0), jnp.mean(off, 0))


@dataclass(frozen=True)
class PerExampleGradients:
    """All gradients, [B, *parameter]."""

    name: str = "per_example"

    def of(self, g: jax.Array) -> jax.Array:
        """The definition."""
        return g


@dataclass(frozen=True)
class Norms:
    """Norms of examples' gradients over all elements, [B]; `ord`: 1, 2, any p > 0, infinity."""

    ord: float = 2

    def of(self, g: jax.Array) -> jax.Array:
        """The definition."""
        return norms_of_rows(widened(g), self.ord)


@dataclass(frozen=True)
class Gram:
    """Inner products of the examples' gradients, [B, B]; the real part, for complex parameters."""

    def of(self, g: jax.Array) -> jax.Array:
        """The definition."""
        rows = widened(g).reshape(g.shape[0], -1)
        return jnp.real(jnp.matmul(rows, rows.conj().T, precision="highest"))


@dataclass(frozen=True)
class SumOf:
    """The sum over the examples of a function of one example's gradient, of any shape."""

    name: str
    function: Phi

    def of(self, g: jax.Array) -> jax.Array:
        """The definition."""
        each = jax.vmap(self.function)(g)
        return jnp.sum(each, 0, dtype=each.dtype)


@dataclass(frozen=True)
class TokenMeanOf:
    """The mean over examples of phi summed over positions, as if each were an example."""

    phi: Phi


@dataclass(frozen=True)
class TokenNorms:
    """The norm of each position's own share of the gradient, [B, *positions]."""


Measure = MeanOf | Variance | PerExampleGradients | Norms | Gram | SumOf | TokenMeanOf | TokenNorms
PerToken = TokenMeanOf | TokenNorms


class Found(Protocol):
    """What has been computed of the examples' gradients, one entry for each gradient output."""

    @property
    def size(self) -> int:
        """B."""
        ...

    @property
    def count(self) -> Any:
        """How many of the examples are real, a number or a traced one; 1 where none is."""
        ...

    def of(self, measure: Measure) -> list[jax.Array]:
        """A measure of each output."""
        ...

    def mean(self) -> list[jax.Array]:
        """The mean of the examples' gradients."""
        ...

    def weighted(
        self, weights: Sequence[jax.Array], finite: jax.Array | None = None
    ) -> list[jax.Array]:
        """The sum over b of w_b g_b, with weights [B] for each output; examples that are not
        `finite` are left out.
        """
        ...

    def along(self, directions: Sequence[jax.Array]) -> list[jax.Array]:
        """The inner product of each example's gradient with a direction like it, [B]."""
        ...

    def losses(self) -> jax.Array:
        """Each example's own loss, [B]."""
        ...


def unbiased(count: Any) -> Any:
    """n / (n - 1); NaN where so many examples have no variance."""
    return (
        jnp.where(count > 1, count / jnp.maximum(count - 1, 1), jnp.nan)
        if isinstance(count, jax.Array)
        else count / (count - 1)
    )


def precise(phi: Phi, g: jax.Array) -> jax.Array:
    """Phi of gradients, computed in at least float32 and returned in that precision."""
    wide = widened(g)
    found = phi(wide)
    return found.astype(wide.dtype if jnp.iscomplexobj(found) else jnp.finfo(wide.dtype).dtype)
