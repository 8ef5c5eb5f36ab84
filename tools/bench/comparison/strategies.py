"""Every strategy forced, and whether the order of their times is the predicted one."""

from collections.abc import Iterable, Sequence
from itertools import combinations

import hlo_surgery as hs
from hlo_surgery.plan import Plan, duration
from tools.bench.comparison.methods import (
    Candidate,
    DoesNotApply,
    Method,
    plain,
    surgery,
    with_statistics,
)
from tools.bench.comparison.runs import Row
from tools.models.problem import Problem

# Times that differ by less count as equal.
TIE = 1.1
STRATEGIES = ("square", "lift", "loop")


def forced(strategy: str) -> Method:
    """Second moments of all gradients by one strategy, with what it is predicted to take more."""

    def method(problem: Problem, target: str | None) -> Sequence[Candidate]:
        function = with_statistics(problem, hs.second_moment(), strategy=strategy, target=target)
        try:
            seconds = predicted(function.explain(*problem.structs))
        except ValueError as reason:
            raise DoesNotApply(str(reason)) from None
        return [Candidate(function, f"predicted {duration(seconds)}", seconds)]

    return method


def predicted(plan: Plan) -> float:
    """Seconds beside the plain gradient, of what the plan takes for each output."""
    taken = [
        (output, strategy) for output in plan.outputs for strategy in output.strategies.values()
    ]
    return sum(output.predicted[strategy].seconds for output, strategy in taken)


FORCED: dict[str, Method] = {
    "plain": plain,
    "surgery": surgery,
    **{name: forced(name) for name in STRATEGIES},
}


def agreement(tables: Sequence[Sequence[Row]]) -> Iterable[str]:
    """Lines that say in how many cells and pairs the orders agree, and list the others."""
    cells = [[(_agree(a, b), a, b) for a, b in combinations(_ordered(rows), 2)] for rows in tables]
    cells = [cell for cell in cells if cell]
    pairs = [pair for cell in cells for pair in cell]
    yield f"order of strategies as predicted, ties within {TIE - 1:.0%}:"
    yield f"  {_share([all(agree for agree, _, _ in cell) for cell in cells])} of cells"
    yield f"  {_share([agree for agree, _, _ in pairs])} of pairs"
    yield from (
        f"  not in {a.problem.title}: {_text(a)}, {_text(b)}" for agree, a, b in pairs if not agree
    )


def _ordered(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.predicted is not None and row.seconds]


def _agree(a: Row, b: Row) -> bool:
    first, second = a.seconds or 0, b.seconds or 0
    tie = max(first, second) < TIE * min(first, second)
    return tie or (first < second) == ((a.predicted or 0) < (b.predicted or 0))


def _share(agree: Sequence[bool]) -> str:
    return f"{sum(agree)} of {len(agree)} ({sum(agree) / max(len(agree), 1):.0%})"


def _text(row: Row) -> str:
    return (
        f"{row.method} {(row.seconds or 0) * 1e3:.4g} ms (predicted {duration(row.predicted or 0)})"
    )
