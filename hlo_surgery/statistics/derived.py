"""Statistics as values: what each measures of gradients, how it combines, how several are named.

Numbers that statistics take: known ones are checked when given, traced ones vary with each call.

A traced number that is not what it should be makes NaN of the statistic, since there is nobody to
raise an error for.

Trees that a user hands over and that are to be like the gradient: leaf by leaf, by their paths.

By the order of their leaves alone, a list would be taken for a dict of other keys.

Found: what statistics are combined of, as measured, or by definition where that is verified.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer
from jax.tree_util import keystr

from hlo_surgery.passes.ir.constants import Arrays
from hlo_surgery.passes.measures.measures import MeanOf, Measure, PerExampleGradients
from hlo_surgery.passes.measures.moments import Join
from hlo_surgery.wording import integer_of

Number = float | Array


class Bound(NamedTuple):
    """To what norm each example's gradient is clipped, over a group, and whether the sum of them is
    divided by the number of the examples.
    """

    max_norm: Number
    is_mean: bool


def as_float(value: Any) -> float:
    """A known number, or NaN for what is no real number, as text is none."""
    try:
        return math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def traced_number(statistic: str, name: str, value: Any) -> Array:
    """A traced value, if it is one real number; else ValueError."""
    kind: Any = jax.typeof(value)
    if kind.shape or not jnp.issubdtype(kind.dtype, jnp.number) or jnp.iscomplexobj(value):
        raise ValueError(f"{statistic} takes one real number for {name}, not {kind.str_short()}")
    return value


def number(statistic: str, name: str, value: Any) -> Number:
    """A real number, traced or finite; else ValueError."""
    if isinstance(value, Tracer):
        return traced_number(statistic, name, value)
    if not math.isfinite(as_float(value)):
        raise ValueError(f"{statistic} takes one real, finite number for {name}, not {value!r}")
    return as_float(value)


def integer(statistic: str, what: str, value: Any, least: int, most: float = math.inf) -> int:
    """An integer of any library, as Python's; else ValueError, which says `what` it is."""
    found = integer_of(value)
    if found is None or not least <= found <= most:
        raise ValueError(f"{statistic} takes an integer {what}, not {value!r}")
    return found


def flag(statistic: str, name: str, value: Any) -> bool:
    """True or False; else TypeError, as text such as "False" counts as true elsewhere."""
    if not isinstance(value, bool):
        raise TypeError(f"{statistic} takes True or False for {name}, not {value!r}")
    return value


def entries_of(values: Any) -> list[Any]:
    """What a sequence or an array holds; nothing where it is none."""
    try:
        return list(values)
    except TypeError:
        return []


def positive_in(dtype: Any, value: Number) -> Number:
    """A number in a dtype; a traced one is NaN where it is not positive and finite there."""
    if not isinstance(value, Tracer):
        return value
    rounded = jnp.asarray(value, dtype)
    return jnp.where((rounded > 0) & jnp.isfinite(rounded), rounded, jnp.nan)


def like(value: Number, array: Array) -> Number:
    """A number that leaves the dtype of the array as it is."""
    return value.astype(array.dtype) if isinstance(value, Tracer) else value


def shown(value: Any) -> str:
    """A number in the name of a statistic."""
    return "traced" if isinstance(value, Tracer) else str(value)


IsLeaf = Callable[[Any], bool]
Path = tuple[Any, ...]


def leaves_like(gradient: Any, given: Any, what: str, is_leaf: IsLeaf | None = None) -> list[Any]:
    """The leaves of a tree in the order of the gradient's, each that at the same path.

    `gradient`: any pytree; of a dumped module a dict by the outputs' names, in their order.
    `what`: whose argument it is, for the ValueError where one has leaves that the other has not.

    >>> from collections import OrderedDict
    >>> leaves_like(OrderedDict(w=0, b=0), {"b": 1, "w": 2}, "f")
    [2, 1]
    """
    wanted = list(_by_path(gradient))
    found = _by_path(given, is_leaf)
    if set(wanted) != set(found):
        raise ValueError(
            f"what {what} takes must be like the gradient, of a dumped module a dict by the names "
            f"of its outputs: it has {_told(list(found))}, the gradient has {_told(wanted)}"
        )
    return [found[path] for path in wanted]


def _by_path(tree: Any, is_leaf: IsLeaf | None = None) -> dict[Path, Any]:
    return dict(jax.tree.leaves_with_path(tree, is_leaf=is_leaf))


def _told(paths: list[Path]) -> str:
    shown = [keystr(path) or "one array" for path in paths[:4]]
    more = ["..."] if len(paths) > len(shown) else []
    return ", ".join([*shown, *more]) or "nothing"


class Found(Protocol):
    """What has been computed of the examples' gradients, one entry for each gradient output."""

    @property
    def size(self) -> int:
        """B."""
        ...

    @property
    def count(self) -> Any:
        """How many of the examples are real, a number or a traced one; 1 where none is."""
        ...

    def of(self, measure: Measure) -> Arrays:
        """A measure of each output."""
        ...

    def mean(self) -> Arrays:
        """The mean of the examples' gradients, for a statistic that is `about_mean`."""
        ...

    def weighted(self, weights: Arrays, finite: Array | None = None) -> Arrays:
        """The sum over b of w_b g_b, with weights [B] for each output; examples that are not
        `finite` are left out.
        """
        ...

    def weighted_squares(self, weights: Arrays, finite: Array | None = None) -> Arrays:
        """The sum over b of |w_b g_b|**2, with weights as in `weighted`."""
        ...

    def summed(self, function: Callable[[Arrays], Any]) -> Any:
        """The sum over b of a function of all gradients of one example, a list in the order of the
        outputs; the function's arrays, each summed.
        """
        ...

    def along(self, directions: Arrays) -> Arrays:
        """The inner product of each example's gradient with a direction like it, [B]; with m of
        them, [m, *], [B, m].
        """
        ...

    def rotated_squares(self, bases: Sequence[Any]) -> Arrays:
        """The mean over b of (P' g_b Q)**2, with P and Q of each output."""
        ...

    def losses(self) -> Array:
        """Each example's own loss, [B]."""
        ...

    def crossed(self) -> Array:
        """Which examples meet others as the program runs, [B]."""
        ...


# Which gradients belong together: all, each alone, or groups by label, of outputs by name or
# position.
Per = Literal["global", "parameter"] | Mapping[str, Sequence[str | int]] | Any
Groups = Sequence[Sequence[int]]
# What a statistic says, to be given this of what is found.
SAID_BY = {
    "mean": "about_mean",
    "weighted": "reweights",
    "weighted_squares": "reweights",
    "along": "reweights",
    "rotated_squares": "reweights",
    "summed": "wholes",
    "losses": "losses",
}


def not_yet(found: Found, groups: Groups) -> Arrays:
    """What a statistic `of_tree` is before the tree is known."""
    raise AssertionError("the gradient's tree is not known yet")


@dataclass(frozen=True, eq=False)
class Derived:
    """A statistic made of measures of every gradient output.

    `combine(found, groups)` returns an array for each gradient (`like="gradient"`), for each group
    (`like="group"`), or for each leaf of the pytree `returns` (`like="own"`). `reweights`: it needs
    sums of the examples' gradients with weights of its own, and `wholes` sums of functions of all
    gradients of one example; `joins`: how those of parts of a batch make that of the whole, None
    where they rest on the whole.
    `about_mean`: it takes the mean gradient. `private`: it bounds what one example does, and
    `bound` says how far, of a sum or mean of clipped gradients.
    `least`: examples it is defined for; a batch of fewer is an error where it `refuses_fewer`, and
    else has NaN. `parts`: the named tuple of several arrays for each
    gradient or group, which `combine` returns one after the other. `of_tree`: the statistic
    itself, once the gradient is known, a pytree of `jax.ShapeDtypeStruct`. `by_example`:
    each of its arrays has a row for each example, which rests on that one alone. `is_measure`: it
    is a measure as that is measured.
    """

    name: str
    combine: Callable[[Found, Groups], Sequence[Array]] = not_yet
    measures: tuple[Measure, ...] = ()
    like: Literal["gradient", "group", "own"] = "gradient"
    per: Per = "global"
    reweights: bool = False
    joins: Join | None = None
    losses: bool = False
    private: bool = False
    bound: Bound | None = None
    about_mean: bool = False
    least: int = 1
    refuses_fewer: bool = True
    wholes: bool = False
    returns: Any = None
    of_tree: Callable[[Any], "Derived"] | None = None
    parts: type[Any] | None = None
    by_example: bool = False
    is_measure: bool = False

    @property
    def takes_sums(self) -> bool:
        """Whether it takes sums of gradients with weights, or of functions of whole ones."""
        return self.reweights or self.wholes

    def __repr__(self) -> str:
        return self.name

    def __post_init__(self) -> None:
        if isinstance(self.per, str) and self.per not in ("global", "parameter"):
            raise ValueError(
                f"per is {self.per!r}; it is 'global', 'parameter', or a dict from label to "
                "outputs, and of a function with statistics a pytree prefix of its gradient"
            )


Statistic = MeanOf | PerExampleGradients | Derived
# As they are asked for: one, or several by name.
Statistics = Statistic | Mapping[str, Statistic]


def known_for(statistic: Statistic, gradient: Any) -> Derived:
    """The statistic of a gradient, a pytree of `jax.ShapeDtypeStruct`, whose tree it may take; a
    measure as what is derived of that alone.
    """
    if isinstance(statistic, Derived):
        return statistic.of_tree(gradient) if statistic.of_tree else statistic
    each = isinstance(statistic, PerExampleGradients)
    kind: Any = {"by_example": each, "is_measure": True}
    return Derived(statistic.name, lambda found, _: found.of(statistic), (statistic,), **kind)


def parts_of(statistic: Statistic) -> tuple[str, ...]:
    """The names of a statistic's arrays for each gradient or group; none where it is one array."""
    parts = statistic.parts if isinstance(statistic, Derived) else None
    return () if parts is None else parts._fields


def results_of(statistic: Derived, found: Any, groups: Groups) -> Arrays:
    """The arrays of a statistic, from the measures of all gradient outputs. TypeError where it
    takes what it has not said that it takes.
    """
    return list(statistic.combine(cast(Any, _Declared(statistic, found)), groups))


class _Declared:
    """`found`, of which a statistic is given what it has said that it takes."""

    def __init__(self, statistic: Derived, found: Any) -> None:
        self._statistic, self._found = statistic, found

    def of(self, measure: Measure) -> Arrays:
        if measure not in self._statistic.measures:
            raise _not_said(self._statistic, f"of({measure})", f"measures=({measure},)")
        return self._found.of(measure)

    def __getattr__(self, name: str) -> Any:
        said = SAID_BY.get(name)
        if said is not None and not getattr(self._statistic, said):
            raise _not_said(self._statistic, f"{name}(...)", f"{said}=True")
        return getattr(self._found, name)


def _not_said(statistic: Derived, taken: str, said: str) -> TypeError:
    return TypeError(
        f"{statistic.name} takes found.{taken}, which is computed for statistics that say so: "
        f"make it by Derived(..., {said})"
    )


def positive(statistic: str, name: str, number: Number) -> Number:
    """The number, if it is a positive, finite one or traced, see `positive_in`; else ValueError."""
    if isinstance(number, Tracer):
        return traced_number(statistic, name, number)
    value = as_float(number)
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{statistic} takes a positive {name} that is finite, not {number!r}")
    return value


def called(statistic: str, per: Per, *arguments: str, default: bool = True) -> str:
    """The statistic as it was called, so that two of a kind have names of their own."""
    grouped = [] if per == "global" else [repr(per) if isinstance(per, str) else "per=..."]
    said = ", ".join([*grouped, *arguments] if default else [*arguments, *grouped])
    return f"{statistic}({said})" if said else statistic


def named(statistics: Statistics) -> dict[str, Statistic]:
    """One statistic under its own name, or a dict as it is. Raises TypeError for anything else."""
    if isinstance(statistics, Statistic):
        return {statistics.name: statistics}
    if _are_named(statistics):
        return dict(statistics)
    raise TypeError(
        f"statistics is {statistics!r}; pass a statistic, such as hlo_surgery.norms(), or a dict "
        'of some by names: {"norms": hlo_surgery.norms(), "squares": hlo_surgery.second_moment()}'
    )


def _are_named(given: Any) -> bool:
    """Whether these are statistics by names, one at least."""
    if not isinstance(given, Mapping) or not given:
        return False
    pairs = cast(Mapping[Any, Any], given).items()
    return all(isinstance(name, str) and isinstance(own, Statistic) for name, own in pairs)
