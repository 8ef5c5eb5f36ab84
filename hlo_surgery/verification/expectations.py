"""Expectations: what each statistic ought to be, from examples' gradients by the original.

Expectations of statistics that rest on all outputs' gradients, or several measures of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hlo_surgery.module import Port
from hlo_surgery.passes.ir.constants import wide_dtype
from hlo_surgery.passes.measures.measures import MeanOf, OfPositions, PerExampleGradients, Variance
from hlo_surgery.plan import Plan
from hlo_surgery.requests.request import Request, labels_of
from hlo_surgery.statistics.derived import Derived, Statistic, measures_of, results_of
from hlo_surgery.verification.found import Stacked, moved
from hlo_surgery.verification.inputs import Order, with_zeros
from hlo_surgery.verification.tolerances import (
    ROUNDED_OPS,
    Array,
    Comparison,
    distance,
    hold_returned,
    widened,
)


class JointExpectations:
    """Statistics by their definition, and how far they move as the gradients are rounded in a few
    patterns of signs.
    """

    def __init__(self, request: Request, contracted: frozenset[int], real: Order) -> None:
        self._request, self._contracted, self._real = request, contracted, real
        self._outputs = [*request.gradients, *request.losses]
        self._expected: list[tuple[str, Sequence[str], int]] = []
        self._stacks: dict[int, list[Array]] = {k: [] for k in self._outputs}
        self._roundings: dict[int, list[Array]] = {k: [] for k in self._outputs}

    def expect(self, labels: Sequence[str], name: str, position: int) -> None:
        """A statistic by its name in the request: arrays with these labels are returned from a
        position on.
        """
        self._expected.append((name, labels, position))

    def add(self, outputs: Mapping[int, Array], roundings: Mapping[int, Array]) -> None:
        """One more example's own gradients and loss, by output number, and up to what each entry is
        known.
        """
        for k in self._outputs if self._expected else []:
            self._stacks[k].append(outputs[k])
            self._roundings[k].append(roundings[k])

    def hold(self, returned: Sequence[Any], tolerance: float) -> list[Comparison]:
        """Compare every array of every statistic."""
        if not self._expected:
            return []
        found = self._found()
        wanted = self._results(found)
        moves = [np.zeros(want.shape) for want in wanted]
        for other in self._moved(found, tolerance):
            triples = zip(moves, self._results(other), wanted, strict=True)
            moves = [np.maximum(m, _unbounded(distance(x, want))) for m, x, want in triples]
        places = [(s, p + i) for _, labels, p in self._expected for i, s in enumerate(labels)]
        return [
            _held(label, returned[position], want, move, tolerance, self._real)
            for (label, position), want, move in zip(places, wanted, moves, strict=True)
        ]

    def _found(self) -> Stacked:
        losses = [np.stack(self._stacks[k]) for k in self._request.losses]
        gradients = [np.stack(self._stacks[k]) for k in self._request.gradients]
        own_losses = losses[0] if losses else np.zeros(len(self._real))
        return Stacked(gradients, own_losses, contracted=self._contracted)

    def _moved(self, found: Stacked, tolerance: float) -> Iterator[Stacked]:
        roundings = [np.stack(self._roundings[k]) for k in self._outputs]
        count = len(self._request.gradients)
        losses = roundings[count] if self._request.losses else np.zeros(len(self._real))
        return moved(found, roundings[:count], losses, tolerance)

    def _results(self, found: Stacked) -> list[Array]:
        """The arrays of all statistics, in order."""
        asked = self._request
        names = [name for name, _, _ in self._expected]
        return [
            widened(x)
            for n in names
            for x in results_of(asked.statistics[n], found, asked.groups[n])
        ]


def _unbounded(moves: Array) -> Array:
    """What rounding makes of NaN, or NaN of it, has no bound."""
    return np.where(np.isnan(moves), np.inf, moves)


def _held(
    label: str, got: Any, want: Array, moves: Array, tolerance: float, real: Order
) -> Comparison:
    """Entries that rounding moves without bound, such as 0 / 0, may be anything."""
    want, moves = (with_zeros(x, np.shape(got), real) for x in (want, moves))
    got, want = (np.where(np.isinf(moves), np.zeros_like(x), x) for x in (np.asarray(got), want))
    return hold_returned("statistic", label, got, want, moves + tolerance * np.abs(want), len(real))


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
