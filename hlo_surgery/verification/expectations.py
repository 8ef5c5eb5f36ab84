"""Expectations: what each statistic ought to be, from examples' gradients by the original.

Expectations of statistics that rest on all outputs' gradients, or several measures of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hlo_surgery.module import Port
from hlo_surgery.passes.ir.constants import wide_dtype
from hlo_surgery.passes.measures.measures import MeanOf, Measure, OfPositions, Variance
from hlo_surgery.plan import Plan
from hlo_surgery.requests.request import Request, labels_of
from hlo_surgery.statistics.derived import Derived, results_of
from hlo_surgery.verification.found import Stacked, moved, ways_of
from hlo_surgery.verification.inputs import Order, with_zeros
from hlo_surgery.verification.tolerances import (
    ROUNDED_OPS,
    Array,
    Comparison,
    distance,
    hold_returned,
    widened,
)

# By output number.
Outputs = Mapping[int, Array]


class JointExpectations:
    """Statistics by their definition, and how far they move as the gradients are rounded in a few
    patterns of signs. `names`: those in the request; `places`: the label and the position of each
    array that is returned for them.
    """

    def __init__(
        self,
        request: Request,
        names: Sequence[str],
        places: Sequence[tuple[str, int]],
        contracted: frozenset[int],
        real: Order,
    ) -> None:
        self._request, self._names, self._places = request, names, places
        self._contracted, self._real = contracted, real
        self._each: list[Outputs] = []
        self._roundings: list[Outputs] = []

    def add(self, outputs: Outputs, roundings: Outputs) -> None:
        """One more example's own gradients and loss, and up to what each entry is known."""
        self._each.append(outputs)
        self._roundings.append(roundings)

    def hold(self, returned: Sequence[Any], tolerance: float) -> list[Comparison]:
        """Compare every array of every statistic."""
        found = Stacked(*self._stacked(self._each), contracted=self._contracted)
        wanted = self._results(found)
        moves = [np.zeros(want.shape) for want in wanted]
        for other in moved(found, *self._stacked(self._roundings), tolerance):
            triples = zip(moves, self._results(other), wanted, strict=True)
            # What rounding makes of NaN, or NaN of it, has no bound.
            moves = [
                np.maximum(m, np.nan_to_num(distance(x, want), nan=np.inf, posinf=np.inf))
                for m, x, want in triples
            ]
        return [
            _held(label, returned[position], want, move, tolerance, self._real)
            for (label, position), want, move in zip(self._places, wanted, moves, strict=True)
        ]

    def _stacked(self, each: Sequence[Outputs]) -> tuple[list[Array], Array]:
        """Of all examples, the gradients of each output, and the losses."""
        gradients, losses = (
            [np.stack([own[k] for own in each]) for k in outputs]
            for outputs in (self._request.gradients, self._request.losses)
        )
        return gradients, losses[0] if losses else np.zeros(len(self._real))

    def _results(self, found: Stacked) -> list[Array]:
        """The arrays of all statistics, in order."""
        asked = self._request
        made = (results_of(asked.statistics[n], found, asked.groups[n]) for n in self._names)
        return [widened(array) for arrays in made for array in arrays]


def _held(
    label: str, got: Any, want: Array, moves: Array, tolerance: float, real: Order
) -> Comparison:
    """Entries that rounding moves without bound, such as 0 / 0, may be anything."""
    want, moves = (with_zeros(x, np.shape(got), real) for x in (want, moves))
    got, want = (np.where(np.isinf(moves), np.zeros_like(x), x) for x in (np.asarray(got), want))
    return hold_returned("statistic", label, got, want, moves + tolerance * np.abs(want), len(real))


def is_held(statistic: Derived) -> bool:
    """Whether the examples' gradients tell what a statistic ought to be; those of single positions
    are no part.
    """
    return not any(isinstance(measure, OfPositions) for measure in statistic.measures)


def expectations(
    request: Request, outputs: Sequence[Port], plan: Plan | None, real: Order
) -> list["Expectation | JointExpectations"]:
    """All statistics of a request. Gradients are kept only where a statistic rests on those of all
    outputs.

    `plan`: by which strategies they are claimed to be made, where that is known. `real`: the
    examples that count.
    """
    position = len(outputs)
    each, joint, places = list[Expectation](), list[str](), list[tuple[str, int]]()
    for name, statistic in request.statistics.items():
        labels = labels_of(name, statistic, request)
        own = list(zip(labels, range(position, position + len(labels)), strict=True))
        if statistic.is_measure:
            pairs, (own_measure,) = zip(request.gradients, own, strict=True), statistic.measures
            each += [Expectation(*place, own_measure, k, outputs[k], real) for k, place in pairs]
        elif is_held(statistic):
            joint.append(name)
            places += own
        position += len(labels)
    if not joint:
        return [*each]
    return [*each, JointExpectations(request, joint, places, _contracted(request, plan), real)]


def _contracted(request: Request, plan: Plan | None) -> frozenset[int]:
    """The gradients, by position, of which a variance is made by contractions."""
    outputs = () if plan is None else plan.outputs
    names = [name for name, s in request.statistics.items() if Variance() in s.measures]
    return frozenset(
        i for i, output in enumerate(outputs) if "square" in map(output.strategies.get, names)
    )


class Expectation:
    """One statistic of one gradient output, and how far rounding may move each entry of it.

    Means are kept as running sums, so that memory does not grow with the number of examples.
    `position`: where it is returned; `k`: the number of the output.
    """

    def __init__(
        self,
        name: str,
        position: int,
        statistic: Measure,
        k: int,
        output: Port,
        real: Order,
    ) -> None:
        self._name, self._position, self._k, self._real = name, position, k, real
        self._dtype = wide_dtype(output.dtype)
        self._phi = jax.jit(statistic.phi) if isinstance(statistic, MeanOf) else None
        # Values, how far they move, and their magnitudes, as [3, *]: of each example, or summed.
        self._kept: list[Array] = []
        self._count = 0

    def add(self, outputs: Outputs, roundings: Outputs) -> None:
        """One more example's own gradients and loss, and up to what each entry is known."""
        gradient = outputs[self._k]
        value, around = self._of(gradient), _around(gradient, roundings[self._k])
        moves = [np.abs(self._of(moved) - value) for moved in around]
        if self._phi is not None:
            moves += [self._own_rounding(x) for x in (gradient, *around)]
        own = np.stack([value, np.max(moves, 0), np.abs(value)])
        if self._phi is not None and self._kept:
            self._kept[0] += own
        else:
            self._kept.append(own)
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

    def hold(self, returned: Sequence[Any], tolerance: float) -> list[Comparison]:
        """The statistic returned against what it ought to be."""
        got = returned[self._position]
        kept = np.stack(self._kept, 1) if self._phi is None else self._kept[0] / self._count
        want, moves, sizes = (with_zeros(x, np.shape(got), self._real) for x in kept)
        allowed = np.real(moves + tolerance * sizes)
        return [hold_returned("statistic", self._name, got, want, allowed, self._count)]


def _around(gradient: Array, rounding: Array) -> list[Array]:
    """The gradient with all entries moved by their roundings, each way that there is."""
    return [gradient + rounding * way for way in ways_of(gradient)]
