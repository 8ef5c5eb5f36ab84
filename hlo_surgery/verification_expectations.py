"""Expectations: what each statistic ought to be, from the examples' gradients as the original gives them."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hlo_surgery.derived import Derived, Statistic, measures_of
from hlo_surgery.measures import MeanOf, PerToken
from hlo_surgery.request import Request, labels_of
from hlo_surgery.verification_joint import JointExpectations
from hlo_surgery.verification_tolerances import Array, Comparison, hold, largest, widened


def is_held(statistic: Statistic) -> bool:
    """Whether the examples' gradients tell what a statistic ought to be; those of single positions are no part."""
    return not any(isinstance(measure, PerToken) for measure in measures_of(statistic))


class Expectations:
    """All statistics of a request. Gradients are kept only where a statistic rests on those of all outputs."""

    def __init__(self, request: Request, names: Sequence[str]) -> None:
        self._each: dict[int, list[Expectation]] = {k: [] for k in request.gradients}
        self._joint = JointExpectations(request)
        position = len(names)
        for name, statistic in request.statistics.items():
            labels = labels_of(name, statistic, request, names)
            if not isinstance(statistic, Derived):
                for i, (k, label) in enumerate(zip(request.gradients, labels, strict=True), position):
                    self._each[k].append(Expectation(label, statistic, i))
            elif is_held(statistic):
                self._joint.expect(labels, name, position)
            position += len(labels)

    def add(self, outputs: Mapping[int, Array], roundings: Mapping[int, float]) -> None:
        """One more example's own gradients and loss, by output number, and up to what they are known."""
        for k, expectations in self._each.items():
            for expectation in expectations:
                expectation.add(outputs[k], roundings[k])
        self._joint.add(outputs, roundings)

    def hold(self, returned: Sequence[Array], tolerance: float) -> list[Comparison]:
        """What a module returned, its own outputs first, against what the statistics ought to be."""
        each = [e.hold(returned[e.position], tolerance) for found in self._each.values() for e in found]
        return [*each, *self._joint.hold(returned, tolerance)]


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
