"""Expectations of statistics that rest on all outputs' gradients, or several measures of them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hlo_surgery.requests.request import Request
from hlo_surgery.statistics.derived import results_of
from hlo_surgery.verification.found import Stacked, moved
from hlo_surgery.verification.inputs import Order
from hlo_surgery.verification.padding import with_zeros
from hlo_surgery.verification.tolerances import Array, Comparison, distance, hold_returned, widened


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
