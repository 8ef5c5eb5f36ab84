"""Verification: a rewritten module held against the original one, by running the original on copies of each example.

A batch of B copies of example b has the gradient g_b for a mean loss, and B * g_b for a sum loss. Whether the examples'
gradients exist at all is tested by the mixed second difference: y(x) - y(a changed) - y(b changed) + y(both changed)
vanishes for disjoint sets a and b of examples where y is a sum of the examples' own contributions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hlo_surgery.module import Module, Source, load
from hlo_surgery.passes.carry import in_clean_config
from hlo_surgery.pipeline import rewrite_module
from hlo_surgery.request import Batch, Request, make_request
from hlo_surgery.statistics import Statistic
from hlo_surgery.verification_expectations import Expectation
from hlo_surgery.verification_inputs import copies, disjoint_changes, draw_inputs, perturbed, pick_examples
from hlo_surgery.verification_tolerances import Array, Comparison, epsilon, hold, largest, relative_tolerance, widened

Each = Callable[[Sequence[int]], Iterable[int]]
# A program rounds at each of its ops, not at its inputs alone.
ROUNDED_OPS = 4


@dataclass(frozen=True)
class Verdict:
    """What running the original showed, with every comparison; it prints."""

    verdict: Literal["equivalent", "not equivalent", "not applicable"]
    why: str
    comparisons: tuple[Comparison, ...] = ()

    def __str__(self) -> str:
        from hlo_surgery.report import verdict_text

        return verdict_text(self)


def verify(
    module: Source,
    *,
    batch: Batch,
    statistics: Statistic | Mapping[str, Statistic],
    gradients: Sequence[str | int] | None = None,
    loss_reduction: str = "mean",
    on_mixing: str = "refuse",
    strategy: str = "auto",
    inputs: Sequence[Any] | None = None,
    seed: int = 0,
    each: Each = iter,
) -> Verdict:
    """Rewrite a module and hold what it returns against runs of the original, on `inputs` or on random ones.

    Takes what `rewrite_module` takes, and raises what it raises. `each` goes over the examples' numbers: a place for a
    progress bar. The verdict is "not applicable" where copies of an example do not give its gradient.
    """
    original = load(module)
    request = make_request(original, batch, statistics, gradients, loss_reduction, on_mixing, strategy)
    rewritten = rewrite_module(
        original,
        batch=batch,
        statistics=statistics,
        gradients=gradients,
        loss_reduction=loss_reduction,
        on_mixing=on_mixing,
        strategy=strategy,
    )
    arrays = draw_inputs(original.arguments, seed) if inputs is None else [np.asarray(a) for a in inputs]
    return verify_rewritten(original, rewritten, request, arrays, each)


def verify_rewritten(
    original: Module, rewritten: Module, request: Request, inputs: Sequence[Any], each: Each = iter
) -> Verdict:
    """The verdict on any module that claims to be the original with statistics, in the order of `rewrite_module`."""
    return in_clean_config(lambda: _Runs(original, request, inputs).verdict(rewritten, each))


def second_differences(original: Module, request: Request, inputs: Sequence[Any]) -> list[Comparison]:
    """The mixed second difference of each gradient output: one that does not pass proves it not separable."""
    return in_clean_config(lambda: _Runs(original, request, inputs).second_differences())


class _NotFinite(Exception):
    """The original itself returns NaN or infinity."""


class _Runs:
    """Runs of the original on batches made from one, and what rounding does to its outputs there."""

    def __init__(self, original: Module, request: Request, inputs: Sequence[Any]) -> None:
        self.original, self.request, self.inputs = original, request, inputs
        self.tolerance = relative_tolerance(epsilon(original))
        self.names = [port.name for port in original.outputs]

    def run(self, arrays: Sequence[Any], what: str) -> list[Array]:
        """The original's outputs. Raises _NotFinite."""
        outputs = [widened(output) for output in self.original.call(*arrays)]
        wrong = [n for n, output in zip(self.names, outputs, strict=True) if not np.isfinite(output).all()]
        if wrong:
            raise _NotFinite(f"the original returns NaN or infinity on {what}, in {', '.join(wrong)}{self._nan_inputs()}")
        return outputs

    def _nan_inputs(self) -> str:
        named = zip(self.original.arguments, self.inputs, strict=True)
        wrong = [port.name for port, array in named if np.isnan(widened(array)).any()]
        return f"; the inputs hold NaN in {', '.join(wrong)}" if wrong else "; give it inputs on which it is finite"

    def rounding(self) -> list[float]:
        """How far each output moves where every input is rounded once: what remains of a gradient that vanishes."""
        half = epsilon(self.original) / 2
        first = copies(self.inputs, self.request.batch, 0, self.request.size)
        moves = [
            [largest(a - b) for a, b in zip(self.run(x, what), self.run(perturbed(x, half), what), strict=True)]
            for x, what in ((self.inputs, "these inputs"), (first, "copies of example 0"))
        ]
        return [ROUNDED_OPS * max(pair) for pair in zip(*moves, strict=True)]

    def second_differences(self) -> list[Comparison]:
        """The worst of a few pairs of sets of examples, for each gradient output."""
        if self.request.size == 1:
            return []
        rounding, plain = self.rounding(), self.run(self.inputs, "these inputs")
        found = [self._second_difference(*pair, plain, rounding) for pair in disjoint_changes(self.request.size)]
        return [max(tried, key=lambda c: c.share) for tried in zip(*found, strict=True)]

    def _second_difference(self, first: Any, second: Any, plain: list[Array], rounding: list[float]) -> list[Comparison]:
        both = first + second - np.arange(self.request.size)
        one, other, two = (
            self.run(pick_examples(self.inputs, self.request.batch, order), "other examples of this batch")
            for order in (first, second, both)
        )
        return [self._vanishing(k, (plain[k], one[k], other[k], two[k]), rounding[k]) for k in self.request.gradients]

    def _vanishing(self, k: int, runs: tuple[Array, Array, Array, Array], rounding: float) -> Comparison:
        plain, one, other, two = runs
        allowed = 4 * (rounding + self.tolerance * max(map(largest, runs)))
        return hold("second difference", self.names[k], plain + two, one + other, allowed)

    def verdict(self, rewritten: Module, each: Each) -> Verdict:
        """Everything compared; the original's own trouble makes it not applicable."""
        try:
            return _judge(rewritten, self._compare(rewritten, each))
        except _NotFinite as problem:
            return Verdict("not applicable", str(problem))

    def _compare(self, rewritten: Module, each: Each) -> tuple[Comparison, ...]:
        plain, rounding = self.run(self.inputs, "these inputs"), self.rounding()
        returned = [widened(output) for output in rewritten.call(*self.inputs)]
        expected = self._expectations()
        sums = {k: np.zeros_like(plain[k]) for k in self.request.gradients}
        scales = [largest(output) for output in plain]
        for example in each(range(self.request.size)):
            for k, gradient in self._gradients_of(example).items():
                sums[k] += gradient / self.request.size
                scales[k] = max(scales[k], largest(gradient))
                for expectation in expected[k]:
                    expectation.add(gradient, rounding[k] + self.tolerance * largest(gradient))
        allowed = [rounding[i] + self.tolerance * scale for i, scale in enumerate(scales)]
        outputs = [
            hold("output", name, returned[i], plain[i], allowed[i] * self._terms) for i, name in enumerate(self.names)
        ]
        means = [hold("mean of copies", self.names[k], sums[k], plain[k] / self._terms, allowed[k]) for k in sums]
        statistics = [e.hold(returned[e.position], self.tolerance) for k in sums for e in expected[k]]
        return (*outputs, *self.second_differences(), *means, *statistics)

    @property
    def _terms(self) -> int:
        """How many gradients of one example the batch gradient is the sum of."""
        return self.request.size if self.request.loss_reduction == "sum" else 1

    def _gradients_of(self, example: int) -> dict[int, Array]:
        """g_b by output number."""
        batch = copies(self.inputs, self.request.batch, example, self.request.size)
        outputs = self.run(batch, f"copies of example {example}")
        return {k: outputs[k] / self._terms for k in self.request.gradients}

    def _expectations(self) -> dict[int, list[Expectation]]:
        """What the outputs after the original's ought to be, by number of the gradient output."""
        made: dict[int, list[Expectation]] = {k: [] for k in self.request.gradients}
        position = len(self.names)
        for name, statistic in self.request.statistics.items():
            for k in self.request.gradients:
                made[k].append(Expectation(f"{name}/{self.names[k]}", statistic, position))
                position += 1
        return made


def _judge(rewritten: Module, comparisons: tuple[Comparison, ...]) -> Verdict:
    """Which failure says what: only where the examples' gradients exist can a statistic be wrong."""
    failed = {c.kind: c.name for c in reversed(comparisons) if not c.passes}
    data = rewritten.plan.data if rewritten.plan is not None else ()
    if "output" in failed:
        return Verdict("not equivalent", f"{failed['output']} is not what the original returns", comparisons)
    if data:
        why = f"data of the whole batch is taken as constant ({data[0].op} at {data[0].where}), and copies change it"
        return Verdict("not applicable", why, comparisons)
    if "second difference" in failed:
        why = f"the original is not separable: two sets of examples act on {failed['second difference']} together"
        return Verdict("not equivalent", why, comparisons)
    if "mean of copies" in failed:
        why = f"{failed['mean of copies']} depends on the examples' places in the batch, so copies are not the example"
        return Verdict("not applicable", why, comparisons)
    if "statistic" in failed:
        return Verdict("not equivalent", f"{failed['statistic']} is not that of the examples' gradients", comparisons)
    return Verdict("equivalent", "every statistic is that of the original's gradients on copies of each example", comparisons)
