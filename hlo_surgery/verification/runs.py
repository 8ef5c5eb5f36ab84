"""Runs of the original module on batches made from one, compared with a rewritten module's."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hlo_surgery.module import Module
from hlo_surgery.requests.request import Request
from hlo_surgery.verification.expectations import Expectations
from hlo_surgery.verification.inputs import Order, disjoint_changes, perturbed, pick_examples
from hlo_surgery.verification.padding import among_padding, real_examples
from hlo_surgery.verification.tolerances import (
    ROUNDED_OPS,
    Array,
    Comparison,
    epsilon,
    hold,
    limits,
    relative_tolerance,
    widened,
)

Each = Callable[[Sequence[int]], Iterable[int]]
# So many times are the inputs rounded in other directions: that all of them leave an entry in place
# is improbable.
PATTERNS = 4


class NotFinite(Exception):
    """The original itself returns NaN or infinity. `comparisons`: those made before."""

    comparisons: tuple[Comparison, ...] = ()


class Runs:
    """The original on one batch, and how far rounding moves each entry of its outputs there. Raises
    NotFinite.
    """

    def __init__(self, original: Module, request: Request, inputs: Sequence[Any]) -> None:
        self.original, self.request, self.inputs = original, request, inputs
        self.real = real_examples(request, inputs)
        self.names = [port.name for port in original.outputs]
        spacing = epsilon(original)
        self.tolerance = relative_tolerance(spacing)
        self._rounded = [
            perturbed(inputs, spacing / 2, seed, request.is_real) for seed in range(PATTERNS)
        ]
        self.plain = self.run(inputs, "these inputs")
        self.rounding = self._rounding(self.plain, self._rounded, "these inputs")

    def run(self, arrays: Sequence[Any], what: str) -> list[Array]:
        """The original's outputs. Raises NotFinite."""
        outputs = [widened(output) for output in self.original.call(*arrays)]
        wrong = [
            n
            for n, output in zip(self.names, outputs, strict=True)
            if not np.isfinite(output).all()
        ]
        if wrong:
            raise NotFinite(
                f"the original returns NaN or infinity on {what}, in {', '.join(wrong)}; "
                f"{self._advice()}"
            )
        return outputs

    def _rounding(
        self, plain: Sequence[Array], batches: Iterable[Sequence[Any]], what: str
    ) -> list[Array]:
        """What inputs rounded once show of each entry: how much of it is the rounding of terms that
        cancel.
        """
        moves = [
            np.full(output.shape, limits(p.dtype)[0])
            for output, p in zip(plain, self.original.outputs, strict=True)
        ]
        for batch in batches:
            pairs = zip(moves, plain, self.run(batch, what), strict=True)
            moves = [np.maximum(m, ROUNDED_OPS * np.abs(a - b)) for m, a, b in pairs]
        return moves

    def _advice(self) -> str:
        named = zip(self.original.arguments, self.inputs, strict=True)
        wrong = [port.name for port, array in named if np.isnan(widened(array)).any()]
        return (
            f"the inputs hold NaN in {', '.join(wrong)}"
            if wrong
            else "give it inputs on which it is finite"
        )

    def second_differences(self) -> list[Comparison]:
        """The worst of a few pairs of sets of examples, for each gradient output and an examples'
        loss.
        """
        if len(self.real) == 1:
            return []
        found = [self._second_difference(*pair) for pair in disjoint_changes(len(self.real))]
        return [max(tried, key=lambda c: c.share) for tried in zip(*found, strict=True)]

    def _second_difference(self, first: Order, second: Order) -> list[Comparison]:
        both = first + second - np.arange(len(self.real))
        one, other, two = (
            self.run(self._batch_of(self.real[order]), "a batch of some of these examples")
            for order in (first, second, both)
        )
        return [self._vanishing(k, (self.plain[k], one[k], other[k], two[k])) for k in self._held]

    def _batch_of(self, examples: Order, arrays: Sequence[Any] | None = None) -> list[Array]:
        """A batch of these examples in the places of the real ones; padding stays, and so does its
        number.
        """
        request = self.request
        order = among_padding(examples, self.real, request.size)
        given = self.inputs if arrays is None else arrays
        return pick_examples(given, dict(request.batch), order)

    def _vanishing(self, k: int, runs: tuple[Array, Array, Array, Array]) -> Comparison:
        plain, one, other, two = runs
        allowed = len(runs) * (self.rounding[k] + self.tolerance * np.max(np.abs(runs), 0))
        return hold("second difference", self.names[k], plain + two, one + other, allowed)

    def compare(self, rewritten: Module, each: Each) -> tuple[Comparison, ...]:
        """Outputs, second differences, the mean of the copies' gradients, and statistics, in this
        order.
        """
        returned = [np.asarray(output) for output in rewritten.call(*self.inputs)]
        expected = Expectations(self.request, self.original.outputs, rewritten.plan, self.real)
        means = {k: np.zeros_like(self.plain[k]) for k in self._held}
        allowed = [
            r + self.tolerance * np.abs(x) for r, x in zip(self.rounding, self.plain, strict=True)
        ]
        try:
            for example in each(self.real.tolist()):
                found, roundings = self._of_example(example)
                for k, output in found.items():
                    means[k] += output * self._terms / len(self.real)
                    allowed[k] += self.tolerance * abs(output) * self._terms / len(self.real)
                expected.add(found, roundings)
            differences = self.second_differences()
        except NotFinite as problem:
            problem.comparisons = self._outputs(returned, allowed)
            raise
        copied = [self._mean_of_copies(k, mean, allowed[k]) for k, mean in means.items()]
        return (
            *self._outputs(returned, allowed),
            *differences,
            *copied,
            *expected.hold(returned, self.tolerance),
        )

    def _outputs(self, returned: Sequence[Any], allowed: Sequence[Array]) -> tuple[Comparison, ...]:
        """`allowed`: for each entry; where its sum over the examples cancels, by the terms of
        it.
        """
        triples = zip(self.names, map(widened, returned), self.plain, strict=False)
        return tuple(hold("output", *triple, a) for triple, a in zip(triples, allowed, strict=True))

    def _mean_of_copies(self, k: int, mean: Array, allowed: Array) -> Comparison:
        """Equal to the batch gradient unless an example's gradient depends on its place in the
        batch.
        """
        return hold("mean of copies", self.names[k], mean, self.plain[k], allowed)

    @property
    def _terms(self) -> int:
        """How many means of the examples' gradients make the batch gradient."""
        return len(self.real) if self.request.loss_reduction == "sum" else 1

    @property
    def _held(self) -> tuple[int, ...]:
        """The outputs that have a part for each example: the gradients, and the loss where it is
        asked for.
        """
        return (*self.request.gradients, *self.request.losses)

    def _of_example(self, example: int) -> tuple[dict[int, Array], dict[int, Array]]:
        """The example's own gradients and loss, by output number, and up to what each entry is
        known.
        """
        same, inputs = np.full(len(self.real), example), (self.inputs, *self._rounded)
        copies = [self._batch_of(same, arrays) for arrays in inputs]
        outputs, allowed = self._known(copies, f"copies of example {example}")
        return (
            {k: x / self._terms for k, x in outputs.items()},
            {k: x / self._terms for k, x in allowed.items()},
        )

    def _known(
        self, batches: Sequence[Sequence[Any]], what: str
    ) -> tuple[dict[int, Array], dict[int, Array]]:
        """What is held of a batch, by output number, and up to what each entry is known; behind it
        come the same rounded.
        """
        plain, *rounded = batches
        outputs = self.run(plain, what)
        noise = self._rounding(outputs, rounded, what)
        allowed = {k: noise[k] + self.tolerance * np.abs(outputs[k]) for k in self._held}
        return {k: outputs[k] for k in self._held}, allowed
