"""A gradient function and what is asked of it: for the arguments of a call its own module, and the
request for it.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from hlo_surgery.frameworks.models import as_pytrees, of_pytrees
from hlo_surgery.lowered_function import Lowered, lower, made_of
from hlo_surgery.module import Module
from hlo_surgery.public_function import Function
from hlo_surgery.requests.gradient_outputs import refuse_more_numbers, refuse_updated
from hlo_surgery.requests.groups import grouped
from hlo_surgery.requests.in_axes import (
    Key,
    arguments_by_key,
    leaf_axes,
    named_arrays,
)
from hlo_surgery.requests.leaves import (
    NO_GRADIENT,
    ambient_target,
    flags_among,
    flat_array,
    is_array,
    numbered,
    signature,
)
from hlo_surgery.requests.options import PlanningChoices, PlanningOptions, Way
from hlo_surgery.requests.request import Request, check_words, make_request
from hlo_surgery.requests.segments import Segments, check_segments, segments_among
from hlo_surgery.statistics.derived import Derived, Statistic, Statistics, known_for, named

# Where something is in what a function returns.
Pick = Callable[[Any], Any]


class Call(NamedTuple):
    """The arguments of a call, flat, and what a module takes beside them, where that is asked: the
    flags of which examples are real, and ids of rows.
    """

    leaves: list[Any]
    tree: Any
    flags: list[Any]
    segments: Segments

    @property
    def beside(self) -> list[Any]:
        """What a module takes beside the arguments."""
        return [*self.flags, *self.segments.ids]

    @property
    def arguments(self) -> tuple[Any, Any]:
        """Those given by position, and by name."""
        return jax.tree.unflatten(self.tree, self.leaves)

    @property
    def arrays(self) -> list[Any]:
        """All that a module takes."""
        return [*filter(is_array, self.leaves), *self.beside]

    @property
    def signature(self) -> Any:
        """What a rewriting depends on."""
        kinds = tuple(map(signature, [*self.leaves, *self.beside]))
        return self.tree, self.segments.kind, kinds

    @property
    def is_traced(self) -> bool:
        """Whether an array of it is."""
        return any(isinstance(array, Tracer) for array in self.arrays)


@dataclass(frozen=True)
class Asked:
    """A function lowered, and what is asked of its module. `names`: what the user calls its
    arguments; `known`, `numbers`: the statistics, and the outputs, as the gradient's tree.
    """

    lowered: Lowered
    request: Request
    names: list[str]
    known: Mapping[str, Derived]
    numbers: Any


@dataclass(frozen=True)
class AskedFunction:
    """A function that returns gradients, and what is asked of it. `pick`, `loss`: where gradients
    are, and the loss, in what it returns; the rest as `grad` and `rewrite` are asked it.
    """

    given: Function
    pick: Pick
    batch: Sequence[Key]
    in_axes: Any
    asked_for: Statistics
    loss_reduction: str
    on_mixing: str
    is_real: Any
    rows_per_example: int
    segments: Any
    planning: PlanningOptions
    loss: Pick | None = None

    def __post_init__(self) -> None:
        """Raises ValueError or TypeError for what can be seen to be wrong before there are
        arguments.
        """
        check_words(self.loss_reduction, self.on_mixing)
        check_segments(self.segments, self.in_axes, self.rows_per_example)
        PlanningChoices(**self.planning)

    @cached_property
    def fun(self) -> Function:
        """The function, of pytrees."""
        return of_pytrees(self.given)

    @cached_property
    def statistics(self) -> dict[str, Statistic]:
        """Sorted by name, as the leaves of a dict are."""
        return dict(sorted(named(self.asked_for).items()))

    def each(self, of_statistics: Mapping[str, Any]) -> Any:
        """What there is of each statistic by its name; of the only one that was asked, itself."""
        alone = isinstance(self.asked_for, Statistic)
        return next(iter(of_statistics.values())) if alone else of_statistics

    def call(self, pytrees: Any) -> Call:
        """A call with these arguments and keywords."""
        flags = [] if self.is_real is None else [self._flag(*pytrees[0], **pytrees[1])]
        leaves, tree = jax.tree.flatten(pytrees)
        return Call(leaves, tree, flags, self._segments(*pytrees))

    def _segments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Segments:
        if self.segments is None:
            return Segments({}, {}, ())
        given = arguments_by_key(args, kwargs)
        return segments_among(self.segments(*args, **kwargs), given, self.batch, self.fun)

    def _flag(self, *args: Any, **kwargs: Any) -> Any:
        return flags_among(self.is_real, args, kwargs)

    def example_axes(self, call: Call) -> Segments:
        """Example axis, or which ids, by number of the flat array argument."""
        if self.segments is not None:
            return replace(call.segments, ids=())
        axes = (self.batch, self.in_axes, self.rows_per_example, self.fun)
        return Segments(leaf_axes(arguments_by_key(*call.arguments), *axes), {}, ())

    def asked(self, call: Call, batch: Segments, shards: int, strategy: Way | None = None) -> Asked:
        """The function's own module, and what is asked of it with the examples on so many devices,
        by another strategy than is asked, if one is given.
        """
        planning = self._planning(shards, strategy)
        platform = PlanningChoices(**planning).platform
        made = lower(self.fun, call.leaves, call.tree, platform, call.beside, silently=True)
        own, _ = numbered(made.result)
        hidden = jax.tree.leaves(made.result)
        # None for gradients of integers.
        numbers = jax.tree.map(lambda n: None if hidden[n] == NO_GRADIENT else n, self.pick(own))
        picked = jax.tree.leaves(numbers)
        if self.pick is all_of_it:
            refuse_more_numbers(made.module, {**batch.axes, **batch.rows}, picked)
            refuse_updated(made.module, picked)
        ports = made.module.outputs
        kinds = jax.tree.map(
            lambda n: jax.ShapeDtypeStruct(ports[n].shape, ports[n].dtype), numbers
        )
        known = {name: known_for(s, kinds) for name, s in self.statistics.items()}
        statistics = {name: grouped(s, numbers) for name, s in known.items()}
        loss = None if self.loss is None else self.loss(own)
        if not isinstance(loss, int | None):
            raise ValueError(
                "loss picks several outputs; it is one real number, as in loss=lambda outputs: "
                "outputs[0]"
            )
        count = len(call.arrays) - len(call.beside)
        is_real = count if call.flags else None
        how = (self.loss_reduction, self.on_mixing, planning, loss, is_real)
        # What is lowered here has all that was traced of the loss, also what no output needs.
        given: Any = {"pruned": made.pruned, "rows_per_example": self.rows_per_example}
        if self.segments is not None:
            ids = count + len(call.flags)
            given["segments"] = {number: ids + k for number, k in batch.rows.items()}
        request = make_request(made.module, batch.axes, statistics, picked, *how, **given)
        if call.flags:
            request = replace(request, real_of=made_of(self._flag, call.leaves, call.tree))
        named = named_arrays(arguments_by_key(*call.arguments))
        return Asked(made, request, [name for name, _ in named], known, numbers)

    def _planning(self, shards: int, strategy: Way | None) -> PlanningOptions:
        planning: PlanningOptions = {**self.planning, "shards": shards}
        if strategy is not None:
            planning |= {"strategy": strategy, "autotune": False}
        if planning.get("target") is None:
            planning["target"] = ambient_target()
        return planning

    def asked_with_arrays(self, pytrees: Any) -> tuple[Asked, list[Any]]:
        """What is asked of one device, and the arrays that the function's own module takes."""
        call = self.call(pytrees)
        asked = self.asked(call, self.example_axes(call), 1)
        lowered = asked.lowered
        return asked, _given(lowered.module, [*call.arrays, *lowered.closed_over])

    def of_copies(
        self, pytrees: Any, request: Request, examples: Sequence[int], count: int
    ) -> tuple[Module, list[list[Any]]]:
        """The function's own module for a batch of so many copies of one example, and its arrays
        for each of these examples. `pytrees`: the arguments and keywords of a batch.
        """
        leaves, tree = jax.tree.flatten(as_pytrees(pytrees))
        batches = [_copies(leaves, request, example, count) for example in examples]
        made = lower(self.fun, batches[0], tree, silently=True)
        return made.module, [_given(made.module, [*b, *made.closed_over]) for b in batches]


def _given(module: Module, leaves: Sequence[Any]) -> list[Any]:
    """The arrays among leaves as the module takes them, numbers too."""
    arrays = map(flat_array, filter(is_array, leaves))
    return [np.asarray(x, p.dtype) for x, p in zip(arrays, module.arguments, strict=True)]


def _copies(leaves: Sequence[Any], request: Request, example: int, count: int) -> list[Any]:
    """The leaves of a batch of so many copies of an example."""
    numbers = itertools.count()

    def copied(leaf: Any) -> Any:
        axis = request.batch.get(next(numbers)) if is_array(leaf) else None
        if axis is None:
            return leaf
        rows = leaf.shape[axis] // request.size
        own = jnp.arange(example * rows, (example + 1) * rows)
        return jnp.take(leaf, jnp.tile(own, count), axis)

    return list(map(copied, leaves))


def all_of_it(outputs: Any) -> Any:
    """Where everything that is returned is a gradient."""
    return outputs
