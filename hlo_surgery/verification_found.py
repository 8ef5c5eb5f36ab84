"""Gradients of all examples as what statistics are made of: every measure by its definition, in double precision."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hlo_surgery.measures import Measure, PerToken
from hlo_surgery.verification_tolerances import Array

# Random patterns of signs, beside all up and all down: that each of them leaves a number in place is improbable.
PATTERNS = 6


def exact(array: Array) -> Array:
    """The array as it is, for a measure that is known exactly."""
    return array


@dataclass(frozen=True)
class Stacked:
    """The gradients [B, *parameter] of each output, and the examples' losses [B], as `hlo_surgery.measures.Found`.

    `rounded` moves each measure as rounding may.
    """

    gradients: Sequence[Array]
    own_losses: Array
    rounded: Any = exact
    measured: dict[Measure, list[jax.Array]] = field(default_factory=dict[Measure, list[jax.Array]])

    @property
    def size(self) -> int:
        """B."""
        return len(self.gradients[0])

    def of(self, measure: Measure) -> list[jax.Array]:
        """A measure of each output."""
        if isinstance(measure, PerToken):
            raise TypeError(f"{measure} is of the examples' positions, which their gradients do not tell apart")
        if measure not in self.measured:
            self.measured[measure] = [self._round(measure.of(jnp.asarray(g))) for g in self.gradients]
        return self.measured[measure]

    def mean(self) -> list[jax.Array]:
        """The mean of the examples' gradients."""
        return [self._round(np.mean(g, 0)) for g in self.gradients]

    def weighted(self, weights: Sequence[jax.Array], finite: jax.Array | None = None) -> list[jax.Array]:
        """The sum over b of w_b g_b."""
        kept = np.ones(self.size, bool) if finite is None else np.asarray(finite)
        pairs = zip(weights, self.gradients, strict=True)
        return [self._round(np.einsum("b,b...->...", np.asarray(w)[kept], g[kept])) for w, g in pairs]

    def along(self, directions: Sequence[jax.Array]) -> list[jax.Array]:
        """The inner product of each example's gradient with a direction like it, [B]."""
        pairs = zip(directions, self.gradients, strict=True)
        return [self._round(np.real(np.tensordot(g, np.conj(np.asarray(d)), d.ndim))) for d, g in pairs]

    def losses(self) -> jax.Array:
        """Each example's own loss, [B]."""
        return jnp.asarray(self.own_losses)

    def _round(self, array: Any) -> jax.Array:
        return jnp.asarray(self.rounded(np.asarray(array)))


def moved(found: Stacked, roundings: Sequence[Array], loss_roundings: Array, relative: float) -> Iterator[Stacked]:
    """The same with every entry of a gradient moved up or down by its rounding, all together and at random.

    `roundings`: of each output, [B]. Each float measure moves by `relative` of itself.
    """
    generator = np.random.default_rng(2)
    for pattern in range(2 + PATTERNS):

        def signs(array: Array, pattern: int = pattern) -> Array:
            if pattern < 2:
                return np.ones_like(array) * (1, -1)[pattern]
            return generator.choice((1, -1, 1j, -1j) if array.dtype.kind == "c" else (1.0, -1.0), array.shape)

        def rounded(array: Array) -> Array:
            return array * (1 + relative * signs(np.abs(array))) if array.dtype.kind in "fc" else array

        pairs = zip(found.gradients, roundings, strict=True)
        gradients = [g + signs(g) * r.reshape(-1, *[1] * (g.ndim - 1)) for g, r in pairs]
        yield Stacked(gradients, found.own_losses + signs(found.own_losses) * loss_roundings, rounded)
