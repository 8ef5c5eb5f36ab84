"""Reduction: whether a loss is a mean or a sum over the examples, by its gradients of copies.

Let n copies of example b have the gradient f(n). Of a mean all f(n) are alike; of a sum f(n) grows
by as much with each copy, as r + n c_b, r being what examples have no part in. A module is of one
number of examples and cannot tell: a function is lowered for several.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hlo_surgery.module import Module
from hlo_surgery.passes.emit.export import in_clean_config
from hlo_surgery.requests.request import Request
from hlo_surgery.verification.padding import real_examples
from hlo_surgery.verification.runs import NotFinite, Runs
from hlo_surgery.verification.tolerances import Array, Comparison, hold
from hlo_surgery.verification.verdict import Verdict

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
