"""Runs of the original module on batches made from one, compared with what a rewritten module returns."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hlo_surgery.module import Module
from hlo_surgery.request import Request
from hlo_surgery.verification_expectations import Expectations
from hlo_surgery.verification_inputs import Order, copies, disjoint_changes, perturbed, pick_examples
from hlo_surgery.verification_tolerances import Array, Comparison, epsilon, hold, largest, relative_tolerance, widened

Each = Callable[[Sequence[int]], Iterable[int]]
# A program rounds at each of its ops, not at its inputs alone.
ROUNDED_OPS = 4


class NotFinite(Exception):
    """The original itself returns NaN or infinity. `comparisons`: those made before."""

    comparisons: tuple[Comparison, ...] = ()


class Runs:
    """The original on one batch, and how far rounding moves each of its outputs there. Raises NotFinite."""

    def __init__(self, original: Module, request: Request, inputs: Sequence[Any]) -> None:
        self.original, self.request, self.inputs = original, request, inputs
        self.names = [port.name for port in original.outputs]
        self.tolerance = relative_tolerance(epsilon(original))
        self.plain = self.run(inputs, "these inputs")
        # An input rounded once shows what remains of a gradient that vanishes but for rounding.
        rounded = self.run(perturbed(inputs, epsilon(original) / 2), "these inputs")
        self.rounding = [ROUNDED_OPS * largest(a - b) for a, b in zip(self.plain, rounded, strict=True)]

    def run(self, arrays: Sequence[Any], what: str) -> list[Array]:
        """The original's outputs. Raises NotFinite."""
        outputs = [widened(output) for output in self.original.call(*arrays)]
        wrong = [n for n, output in zip(self.names, outputs, strict=True) if not np.isfinite(output).all()]
        if wrong:
            raise NotFinite(f"the original returns NaN or infinity on {what}, in {', '.join(wrong)}; {self._advice()}")
        return outputs

    def _advice(self) -> str:
        named = zip(self.original.arguments, self.inputs, strict=True)
        wrong = [port.name for port, array in named if np.isnan(widened(array)).any()]
        return f"the inputs hold NaN in {', '.join(wrong)}" if wrong else "give it inputs on which it is finite"

    def second_differences(self) -> list[Comparison]:
        """The worst of a few pairs of sets of examples, for each gradient output and an examples' loss."""
        if self.request.size == 1:
            return []
        found = [self._second_difference(*pair) for pair in disjoint_changes(self.request.size)]
        return [max(tried, key=lambda c: c.share) for tried in zip(*found, strict=True)]

    def _second_difference(self, first: Order, second: Order) -> list[Comparison]:
        both = first + second - np.arange(self.request.size)
        one, other, two = (
            self.run(pick_examples(self.inputs, self.request.batch, order), "a batch of some of these examples")
            for order in (first, second, both)
        )
        return [self._vanishing(k, (self.plain[k], one[k], other[k], two[k])) for k in self._held]

    def _vanishing(self, k: int, runs: tuple[Array, Array, Array, Array]) -> Comparison:
        plain, one, other, two = runs
        allowed = len(runs) * (self.rounding[k] + self.tolerance * max(map(largest, runs)))
        return hold("second difference", self.names[k], plain + two, one + other, allowed)

    def compare(self, rewritten: Module, each: Each) -> tuple[Comparison, ...]:
        """Outputs, second differences, the mean of the copies' gradients, and statistics, in this order."""
        returned = [widened(output) for output in rewritten.call(*self.inputs)]
        expected = Expectations(self.request, self.names)
        sums = {k: np.zeros_like(self.plain[k]) for k in self._held}
        scales = [largest(output) for output in self.plain]
        try:
            for example in each(range(self.request.size)):
                found = self._of_example(example)
                for k, output in found.items():
                    sums[k] += output / self.request.size
                    scales[k] = max(scales[k], self._terms * largest(output))
                expected.add(found, {k: self.rounding[k] + self.tolerance * largest(x) for k, x in found.items()})
            differences = self.second_differences()
        except NotFinite as problem:
            problem.comparisons = self._outputs(returned, scales)
            raise
        means = [self._mean_of_copies(k, mean, scales[k]) for k, mean in sums.items()]
        return (*self._outputs(returned, scales), *differences, *means, *expected.hold(returned, self.tolerance))

    def _outputs(self, returned: Sequence[Array], scales: Sequence[float]) -> tuple[Comparison, ...]:
        """`scales`: the largest entry of each output or, as its sum may cancel, of the examples' gradients."""
        triples = zip(self.names, returned, self.plain, strict=False)
        allowed = [noise + self.tolerance * scale for noise, scale in zip(self.rounding, scales, strict=True)]
        return tuple(hold("output", *triple, a) for triple, a in zip(triples, allowed, strict=True))

    def _mean_of_copies(self, k: int, mean: Array, scale: float) -> Comparison:
        """Equal to the batch gradient unless an example's gradient depends on its place in the batch."""
        allowed = self.rounding[k] + self.tolerance * scale
        return hold("mean of copies", self.names[k], mean * self._terms, self.plain[k], allowed)

    @property
    def _terms(self) -> int:
        """How many means of the examples' gradients make the batch gradient."""
        return self.request.size if self.request.loss_reduction == "sum" else 1

    @property
    def _held(self) -> tuple[int, ...]:
        """The outputs that have a part for each example: the gradients, and the loss where it is asked for."""
        return (*self.request.gradients, *self.request.losses)

    def _of_example(self, example: int) -> dict[int, Array]:
        """The example's own gradients and loss, by output number."""
        batch = copies(self.inputs, self.request.batch, example, self.request.size)
        outputs = self.run(batch, f"copies of example {example}")
        return {k: outputs[k] / self._terms for k in self._held}
