"""Expectations: what a statistic ought to be, built up example by example from gradients of the original."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hlo_surgery.statistics import MeanOf, Statistic
from hlo_surgery.verification_tolerances import Array, Comparison, hold, largest, widened


class Expectation:
    """One statistic of one gradient output, and how far the rounding of the gradients may move each entry of it."""

    def __init__(self, name: str, statistic: Statistic, position: int) -> None:
        self.name, self.position = name, position
        self._phi = jax.jit(statistic.phi) if isinstance(statistic, MeanOf) else None
        self._values: list[Array] = []
        self._moves: list[Array] = []
        self._count = 0

    def add(self, gradient: Array, rounding: float) -> None:
        """One more example's gradient, which is known up to `rounding`."""
        value = self._of(gradient)
        directions = (1, -1, 1j, -1j) if gradient.dtype.kind == "c" else (1, -1)
        moves = [np.abs(self._of(gradient + rounding * d) - value) for d in directions]
        self._append(value, np.max(moves, 0))

    def _append(self, value: Array, moves: Array) -> None:
        """Means are kept as running sums, so that memory does not grow with the number of examples."""
        if self._phi is not None and self._values:
            self._values[0] += value
            self._moves[0] += moves
        else:
            self._values.append(value)
            self._moves.append(moves)
        self._count += 1

    def _of(self, gradient: Any) -> Array:
        return np.array(gradient if self._phi is None else widened(self._phi(jnp.asarray(gradient))))

    def hold(self, returned: Array, tolerance: float) -> Comparison:
        """The statistic returned against what it ought to be."""
        stacked = self._phi is None
        want, moves = (np.stack(x) if stacked else x[0] / self._count for x in (self._values, self._moves))
        return hold("statistic", self.name, returned, want, moves + tolerance * largest(want))
