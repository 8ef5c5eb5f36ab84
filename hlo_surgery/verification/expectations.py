"""Expectations: what each statistic ought to be, from examples' gradients by the original."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hlo_surgery.module import Port
from hlo_surgery.passes.ir.constants import wide_dtype
from hlo_surgery.passes.measures.measures import MeanOf, OfPositions, PerExampleGradients, Variance
from hlo_surgery.planning.plan import Plan
from hlo_surgery.requests.request import Request, labels_of
from hlo_surgery.statistics.derived import Derived, Statistic, measures_of
from hlo_surgery.verification.inputs import Order
from hlo_surgery.verification.joint import JointExpectations
from hlo_surgery.verification.padding import with_zeros
from hlo_surgery.verification.tolerances import (
    ROUNDED_OPS,
    Array,
    Comparison,
    distance,
    hold_returned,
    widened,
)


def is_held(statistic: Statistic) -> bool:
    """Whether the examples' gradients tell what a statistic ought to be; those of single positions
    are no part.
    """
    return not any(isinstance(measure, OfPositions) for measure in measures_of(statistic))


class Expectations:
    """All statistics of a request. Gradients are kept only where a statistic rests on those of all
    outputs.

    `plan`: by which strategies they are claimed to be made, where that is known. `real`: the
    examples that count.
    """

    def __init__(
        self, request: Request, outputs: Sequence[Port], plan: Plan | None, real: Order
    ) -> None:
        names = [port.name for port in outputs]
        self._each: dict[int, list[Expectation]] = {k: [] for k in request.gradients}
        self._joint = JointExpectations(request, _contracted(request, plan), real)
        position = len(names)
        for name, statistic in request.statistics.items():
            labels = labels_of(name, statistic, request, names)
            if not isinstance(statistic, Derived):
                for i, (k, label) in enumerate(
                    zip(request.gradients, labels, strict=True), position
                ):
                    self._each[k].append(
                        Expectation(label, statistic, i, wide_dtype(outputs[k].dtype), real)
                    )
            elif is_held(statistic):
                self._joint.expect(labels, name, position)
            position += len(labels)

    def add(self, outputs: Mapping[int, Array], roundings: Mapping[int, Array]) -> None:
        """One more example's own gradients and loss, by output number, and up to what each entry is
        known.
        """
        for k, expectations in self._each.items():
            for expectation in expectations:
                expectation.add(outputs[k], roundings[k])
        self._joint.add(outputs, roundings)

    def hold(self, returned: Sequence[Any], tolerance: float) -> list[Comparison]:
        """What a module returned, its own outputs first, against what the statistics ought to
        be.
        """
        each = [
            e.hold(returned[e.position], tolerance) for found in self._each.values() for e in found
        ]
        return [*each, *self._joint.hold(returned, tolerance)]


def _contracted(request: Request, plan: Plan | None) -> frozenset[int]:
    """The gradients, by position, of which a variance is made by contractions."""
    outputs = () if plan is None else plan.outputs
    names = [name for name, s in request.statistics.items() if Variance() in measures_of(s)]
    return frozenset(
        i for i, output in enumerate(outputs) if "square" in map(output.strategies.get, names)
    )


class Expectation:
    """One statistic of one gradient output, and how far rounding may move each entry of it.

    Means are kept as running sums, so that memory does not grow with the number of examples.
    `dtype`: in which the statistic is taken.
    """

    def __init__(
        self,
        name: str,
        statistic: MeanOf | PerExampleGradients,
        position: int,
        dtype: np.dtype[Any],
        real: Order,
    ) -> None:
        self.name, self.position, self._dtype, self._real = name, position, dtype, real
        self._phi = jax.jit(statistic.phi) if isinstance(statistic, MeanOf) else None
        self._values: list[Array] = []
        self._moves: list[Array] = []
        self._sizes: list[Array] = []
        self._count = 0

    def add(self, gradient: Array, rounding: Array) -> None:
        """One more example's gradient, whose entries are known up to `rounding`."""
        value, around = self._of(gradient), _around(gradient, rounding)
        moves = [np.abs(self._of(moved) - value) for moved in around]
        if self._phi is not None:
            moves += [self._own_rounding(x) for x in (gradient, *around)]
        for kept, array in (
            (self._values, value),
            (self._moves, np.max(moves, 0)),
            (self._sizes, np.abs(value)),
        ):
            if self._phi is not None and kept:
                kept[0] += array
            else:
                kept.append(array)
        self._count += 1

    def _own_rounding(self, gradient: Array) -> Array:
        """How far phi itself rounds, such as one whose terms cancel."""
        narrow = jnp.asarray(gradient).astype(self._dtype)
        difference = distance(self._of(narrow), self._of(widened(narrow)))
        return ROUNDED_OPS * np.where(np.isfinite(difference), difference, 0)

    def _of(self, gradient: Any) -> Array:
        return np.array(
            gradient if self._phi is None else widened(self._phi(jnp.asarray(gradient)))
        )

    def hold(self, returned: Any, tolerance: float) -> Comparison:
        """The statistic returned against what it ought to be."""
        stacked = self._phi is None
        kept = self._values, self._moves, self._sizes
        found = [np.stack(x) if stacked else x[0] / self._count for x in kept]
        want, moves, sizes = (with_zeros(x, np.shape(returned), self._real) for x in found)
        return hold_returned(
            "statistic", self.name, returned, want, moves + tolerance * sizes, self._count
        )


def _around(gradient: Array, rounding: Array) -> list[Array]:
    """The gradient with all entries moved by their roundings, each way that there is."""
    return [
        gradient + rounding * d
        for d in ((1, -1, 1j, -1j) if gradient.dtype.kind == "c" else (1, -1))
    ]
