"""Runs of the original module on batches made from one, compared with a rewritten module's.

Reduction: whether a loss is a mean or a sum over the examples, by its gradients of copies.

Let n copies of example b have the gradient f(n). Of a mean all f(n) are alike; of a sum f(n) grows
by as much with each copy, as r + n c_b, r being what examples have no part in. A module is of one
number of examples and cannot tell: a function is lowered for several.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hlo_surgery.module import Module
from hlo_surgery.passes.emit.export import in_clean_config
from hlo_surgery.requests.request import Request
from hlo_surgery.verification.expectations import expectations
from hlo_surgery.verification.inputs import (
    Order,
    disjoint_changes,
    perturbed,
    pick_examples,
    real_examples,
)
from hlo_surgery.verification.tolerances import (
    ROUNDED_OPS,
    Array,
    Comparison,
    Verdict,
    epsilon,
    hold,
    limits,
    relative_tolerance,
    widened,
)

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
        pairs = zip(self.names, outputs, strict=True)
        wrong = [name for name, output in pairs if not np.isfinite(output).all()]
        if wrong:
            raise NotFinite(
                f"the original returns NaN or infinity on {what}, in {', '.join(wrong)}; give it "
                "inputs on which it is finite"
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

    def second_differences(self) -> list[Comparison]:
        """The worst of a few pairs of sets of examples, for each gradient output and an examples'
        loss.
        """
        if len(self.real) == 1:
            return []
        found = [self._second_difference(*pair) for pair in disjoint_changes(len(self.real))]
        return [max(tried, key=lambda c: c.share) for tried in zip(*found, strict=True)]

    def _second_difference(self, first: Order, second: Order) -> list[Comparison]:
        what, compared = "a batch of some of these examples", list[Comparison]()
        orders = (first, second, first + second - np.arange(len(self.real)))
        runs = [self.plain, *(self.run(self._batch_of(self.real[o]), what) for o in orders)]
        for k in self._held:
            plain, one, other, two = own = [run[k] for run in runs]
            allowed = len(own) * (self.rounding[k] + self.tolerance * np.max(np.abs(own), 0))
            name = self.names[k]
            compared.append(hold("second difference", name, plain + two, one + other, allowed))
        return compared

    def _batch_of(self, examples: Order, arrays: Sequence[Any] | None = None) -> list[Array]:
        """A batch of these examples in the places of the real ones; padding stays, and so does its
        number.
        """
        order = np.arange(self.request.size)
        order[self.real] = examples
        given = self.inputs if arrays is None else arrays
        return pick_examples(given, self.request.batch, order)

    def compare(self, rewritten: Module) -> tuple[Comparison, ...]:
        """Outputs, second differences, the mean of the copies' gradients, and statistics, in this
        order.
        """
        returned = [np.asarray(output) for output in rewritten.call(*self.inputs)]
        expected = expectations(self.request, self.original.outputs, rewritten.plan, self.real)
        share = self._terms / len(self.real)
        means = {k: np.zeros_like(self.plain[k]) for k in self._held}
        allowed = [
            r + self.tolerance * np.abs(x) for r, x in zip(self.rounding, self.plain, strict=True)
        ]
        try:
            for example in self.real.tolist():
                found, roundings = self._of_example(example)
                for k, output in found.items():
                    means[k] += share * output
                    allowed[k] += self.tolerance * share * abs(output)
                for each_of in expected:
                    each_of.add(found, roundings)
            differences = self.second_differences()
        except NotFinite as problem:
            problem.comparisons = self._outputs(returned, allowed)
            raise
        # Equal to the batch gradient unless an example's gradient rests on its place in the batch.
        named = ((k, ("mean of copies", self.names[k])) for k in means)
        copied = [hold(*name, means[k], self.plain[k], allowed[k]) for k, name in named]
        held = (c for each_of in expected for c in each_of.hold(returned, self.tolerance))
        return (*self._outputs(returned, allowed), *differences, *copied, *held)

    def _outputs(self, returned: Sequence[Any], allowed: Sequence[Array]) -> tuple[Comparison, ...]:
        """`allowed`: for each entry; where its sum over the examples cancels, by the terms of
        it.
        """
        triples = zip(self.names, map(widened, returned), self.plain, strict=False)
        return tuple(hold("output", *triple, a) for triple, a in zip(triples, allowed, strict=True))

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
        same, what = np.full(len(self.real), example), f"copies of example {example}"
        outputs = self.run(self._batch_of(same), what)
        rounded = [self._batch_of(same, arrays) for arrays in self._rounded]
        noise, terms = self._rounding(outputs, rounded, what), self._terms
        known = {k: noise[k] + self.tolerance * np.abs(outputs[k]) for k in self._held}
        return {k: outputs[k] / terms for k in known}, {k: x / terms for k, x in known.items()}


# The function's module for so many copies of one example, and its arrays for each of some examples.
OfCopies = Callable[[Request, Sequence[int], int], tuple[Module, list[list[Any]]]]
# So many examples are copied: one alone may have no gradient, as behind a relu.
TRIED = 4
# Copies differ where they do by so many times what rounding may make of them.
CLEAR = 2
WAYS_OUT = {
    "mean": 'pass loss_reduction="mean", or leave it out',
    "sum": (
        'pass loss_reduction="sum", or make the loss a mean, as by jnp.mean(losses); divided by a '
        "number that is written down, a sum is still one"
    ),
}
ALIKE = "the examples that were tried have one and the same gradient, which may be nobody's"
NEITHER = "the gradients of copies are neither those of a mean nor those of a sum"


def on_trust(request: Request) -> str:
    """What nobody has tested, in words."""
    return f"that the loss is a {request.loss_reduction} is taken on trust"


class Untold(Exception):
    """Why it does not show which reduction fits."""


@dataclass(frozen=True)
class Copies:
    """Three runs on batches of copies of one example, of ever more of them: f(n), and how far
    rounding moves it.
    """

    counts: Sequence[int]
    runs: Sequence[Runs]

    def as_mean(self, k: int) -> Comparison:
        """Output k of the second held against that of the first."""
        (one, off), (more, far), _ = self._found(k)
        return hold("mean over copies", self.runs[0].names[k], more, one, off + far)

    def as_sum(self, k: int) -> Comparison:
        """Output k of the third held against what the first two make of it."""
        (one, off), (more, far), (most, farther) = self._found(k)
        few, many, all_of_them = self.counts
        times = (all_of_them - few) / (many - few)
        want, allowed = one + times * (more - one), farther + off + times * (off + far)
        return hold("sum over copies", self.runs[0].names[k], most, want, allowed)

    def differs_from(self, other: "Copies", k: int) -> bool:
        """Whether another example has another gradient."""
        (one, off), (its, far) = self._found(k)[0], other._found(k)[0]
        return hold("", "", one, its, off + far).share > CLEAR

    def _found(self, k: int) -> list[tuple[Array, Array]]:
        return [
            (run.plain[k], run.rounding[k] + run.tolerance * abs(run.plain[k])) for run in self.runs
        ]


def with_reduction(
    verdict: Verdict, request: Request, inputs: Sequence[Any], of_copies: OfCopies
) -> Verdict:
    """A verdict on a function's module, and on whether the loss is the mean or sum that it is said
    to be.
    """
    said = request.loss_reduction
    if request.size == 1:
        return verdict
    try:
        fits, compared = _fitting(request, inputs, of_copies)
    except Untold as problem:
        return replace(verdict, why=f"{verdict.why}; {on_trust(request)}: {problem}")
    held = (*verdict.comparisons, *compared[said])
    if fits == said:
        why = f"{verdict.why}; by copies of single examples the loss is a {said} over them"
        return replace(verdict, why=why, comparisons=held)
    why = f"the loss is a {fits} over the examples, and not a {said}: {WAYS_OUT[fits]}"
    return Verdict("not equivalent", why, held, verdict.taken)


def _fitting(
    request: Request, inputs: Sequence[Any], of_copies: OfCopies
) -> tuple[str, dict[str, list[Comparison]]]:
    """The reduction that fits, and for each what was compared. Raises Untold."""
    found = _copied(request, inputs, of_copies)
    outputs = request.gradients
    mean = [copies.as_mean(k) for copies in found for k in outputs]
    sums = [copies.as_sum(k) for copies in found for k in outputs]
    compared = {"mean": mean, "sum": sums}
    if any(c.share > CLEAR for c in mean) and all(c.passes for c in sums):
        return "sum", compared
    if not all(c.passes for c in mean):
        raise Untold(NEITHER)
    if not any(found[0].differs_from(other, k) for other in found[1:] for k in outputs):
        raise Untold(ALIKE)
    return "mean", compared


def _copied(request: Request, inputs: Sequence[Any], of_copies: OfCopies) -> list[Copies]:
    """Runs on copies of a few real examples. Raises Untold."""
    examples = real_examples(request, inputs)[:TRIED].tolist()
    counts, batches = _called(request, examples, of_copies)
    alone = [replace(request, size=n, is_real=None) for n in counts]

    def runs(example: int) -> Copies:
        pairs = zip(batches, alone, strict=True)
        return Copies(counts, [Runs(module, r, arrays[example]) for (module, arrays), r in pairs])

    try:
        return in_clean_config(lambda: list(map(runs, range(len(examples)))))
    except NotFinite as problem:
        raise Untold(str(problem)) from None


def _called(
    request: Request, examples: Sequence[int], of_copies: OfCopies
) -> tuple[Sequence[int], list[tuple[Module, list[list[Any]]]]]:
    """The function for batches of three sizes, of which the last is one that what it holds for B
    examples does not fit: one, B and B + 1, or B, 2 B and 3 B where it takes parts of a batch.
    Raises Untold.
    """
    b = request.size
    problems: list[Exception] = []
    for counts in ((1, b, b + 1), (b, 2 * b, 3 * b)):
        try:
            return counts, [of_copies(request, examples, n) for n in counts]
        except Exception as problem:  # whatever a user's function raises
            problems.append(problem)
    first = str(problems[0]).splitlines() or [""]
    raise Untold(f"with another number of rows it raises {type(problems[0]).__name__}: {first[0]}")
