"""Statistics as values: what each measures of gradients, how it combines, how several are named."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
from jax.core import Tracer

from hlo_surgery.passes.measures.joins import Join
from hlo_surgery.passes.measures.measures import MeanOf, Measure, PerExampleGradients
from hlo_surgery.statistics.found import Found
from hlo_surgery.statistics.traced_numbers import Number, as_float, traced_number

# Which gradients belong together: all, each alone, or groups by label, of outputs by name or
# position.
Per = Literal["global", "parameter"] | Mapping[str, Sequence[str | int]] | Any
Groups = Sequence[Sequence[int]]


@dataclass(frozen=True, eq=False)
class Derived:
    """A statistic made of measures of every gradient output.

    `combine(found, groups)` returns an array for each gradient (`like="gradient"`) or for each
    group (`like="group"`). `reweights`: it needs sums of the examples' gradients with weights of
    its own; `joins`: how those of parts of a batch make that of the whole, None where the weights
    rest on the whole.
    `crossed`: it says which examples met others. `least`: examples it is defined for.
    """

    name: str
    combine: Callable[[Found, Groups], Sequence[jax.Array]]
    measures: tuple[Measure, ...] = ()
    like: Literal["gradient", "group"] = "gradient"
    per: Per = "global"
    reweights: bool = False
    joins: Join | None = None
    losses: bool = False
    private: bool = False
    crossed: bool = False
    least: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.per, str) and self.per not in ("global", "parameter"):
            raise ValueError(
                f"per is {self.per!r}; it is 'global', 'parameter', or a dict from label to "
                "outputs, and of a function with statistics a pytree prefix of its gradient"
            )


Statistic = MeanOf | PerExampleGradients | Derived


def measures_of(statistic: Statistic) -> tuple[Measure, ...]:
    """What has to be computed of each gradient output for a statistic."""
    return statistic.measures if isinstance(statistic, Derived) else (statistic,)


def results_of(statistic: Statistic, found: Found, groups: Groups) -> list[jax.Array]:
    """The arrays of a statistic, from the measures of all gradient outputs."""
    return (
        list(statistic.combine(found, groups))
        if isinstance(statistic, Derived)
        else found.of(statistic)
    )


def positive(statistic: str, name: str, number: Number) -> Number:
    """The number, if it is a positive, finite one or traced, see `positive_in`; else ValueError."""
    if isinstance(number, Tracer):
        return traced_number(statistic, name, number)
    value = as_float(number)
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{statistic} takes a positive {name} that is finite, not {number!r}")
    return value


def named(statistics: Statistic | Mapping[str, Statistic]) -> dict[str, Statistic]:
    """One statistic under its own name, or a dict as it is. Raises TypeError for anything else."""
    if isinstance(statistics, Statistic):
        return {statistics.name: statistics}
    if not isinstance(statistics, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"statistics is {statistics!r}; pass a statistic, such as "
            f"{_calling(statistics)}, or a dict of them"
        )
    wanted = dict(statistics)
    for name, statistic in wanted.items():
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"statistics has the key {name!r}; keys are names, such as 'squares': text that "
                "the results go by"
            )
        if not isinstance(statistic, Statistic):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"statistics[{name!r}] is {statistic!r}; pass a statistic, such as "
                f"{_calling(statistic)}"
            )
    if not wanted:
        raise ValueError("no statistic is asked for; pass at least one, such as second_moment()")
    return wanted


def _calling(wrong: Any) -> str:
    """What was perhaps meant: one of this package's functions, called."""
    is_own = str(getattr(wrong, "__module__", "")).startswith("hlo_surgery.")
    return f"{wrong.__name__}(...)" if is_own and callable(wrong) else "second_moment()"
