"""A gradient function, rewritten: lowered, its module given statistics, and called as before."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from hlo_surgery.frameworks.models import as_pytrees, of_pytrees, refuse_torch
from hlo_surgery.frameworks.nnx_models import update_models
from hlo_surgery.lowered_function import (
    Lowered,
    among_devices,
    lower,
    made_of,
    run_as_function,
    running_here,
    telling,
)
from hlo_surgery.module import Module
from hlo_surgery.plan import Plan
from hlo_surgery.public_function import public
from hlo_surgery.requests.gradient_outputs import refuse_more_numbers, refuse_updated
from hlo_surgery.requests.in_axes import (
    Key,
    arguments_by_key,
    leaf_axes,
    named_arrays,
    refuse_segments,
)
from hlo_surgery.requests.leaves import (
    NO_GRADIENT,
    ambient_target,
    as_returned,
    check_flags,
    example_shards,
    flags_among,
    flat_array,
    is_array,
    numbered,
    signature,
    trace_context,
    typed,
)
from hlo_surgery.requests.options import PlanningChoices, PlanningOptions, Way
from hlo_surgery.requests.request import Request, check_words, make_request
from hlo_surgery.rewriting.autotune import ALWAYS, LARGEST, measured
from hlo_surgery.rewriting.diagnostics import told_if_slow, warn_of_unnamed
from hlo_surgery.rewriting.pipeline import rewritten
from hlo_surgery.rewriting.results import grouped, shardings_of, tree_of
from hlo_surgery.statistics.derived import Derived, Statistic, known_for, named
from hlo_surgery.statistics.weighted import Relation, sensitivity

Statistics = Statistic | Mapping[str, Statistic]


@dataclass(frozen=True)
class Options:
    """What `grad` and `rewrite` are asked, as they were asked it."""

    batch: Sequence[Key]
    in_axes: Any
    statistics: Statistics
    loss_reduction: str
    on_mixing: str
    is_real: Any
    rows_per_example: int
    segments: Any
    planning: PlanningOptions
    loss: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        """Raises ValueError or TypeError for what can be seen to be wrong before there are
        arguments.
        """
        named(self.statistics)
        check_words(self.loss_reduction, self.on_mixing)
        refuse_segments(self.segments)
        PlanningChoices(**self.planning)


@dataclass(frozen=True)
class Asked:
    """A function lowered, and what is asked of its module. `names`: what the user calls its
    arguments; `known`, `numbers`: the statistics, and the outputs, as the gradient's tree.
    """

    lowered: Lowered
    request: Request
    names: list[str]
    known: Mapping[str, Statistic]
    numbers: Any


@dataclass(frozen=True)
class Rewritten:
    """A module in place of a function; the rest as in `Lowered`. `numbers`: its gradients' outputs,
    as the gradient's tree. `own`: the function itself, of its flat arrays, where it is to be called
    beside the module.
    """

    module: Module
    result: Any
    closed_over: list[Any]
    shardings: Sequence[Any]
    numbers: Any = None
    mesh: Any = None
    own: Callable[..., Sequence[Any]] | None = None

    @cached_property
    def run(self) -> Callable[..., Any]:
        """What the function returns, and the statistics, of flat arrays.

        XLA computes once what module and function both do, as far as no host call lies before it.
        """
        own, mesh = self.own, self.mesh
        module = self.module.jitted if mesh is None else among_devices(mesh, self.module.on_mesh)
        if own is None:
            return module

        def run(*arrays: Any) -> list[Any]:
            results = own(*arrays)
            return [*results, *module(*arrays)[len(results) :]]

        return jax.jit(run)

    def returned(self, outputs: Sequence[Any]) -> Any:
        """The outputs of `run` as the function returns them."""
        placed = [typed(*pair) for pair in zip(outputs, self.shardings, strict=True)]
        flat = jax.tree.unflatten(jax.tree.structure(self.result), placed)
        return jax.tree.map(as_returned, self.result, flat)


class WithStatistics:
    """A function that returns gradients, made to return statistics too. Rewritten as often as
    `jax.jit` would trace.
    """

    def __init__(
        self, fun: Callable[..., Any], pick: Callable[[Any], Any], options: Options
    ) -> None:
        self._fun, self._pick, self._options = of_pytrees(fun), pick, options
        # Sorted by name, as the leaves of a dict are.
        self._statistics = dict(sorted(named(options.statistics).items()))
        self._axes: dict[Any, dict[int, int]] = {}
        self._rewritten: dict[Any, Rewritten] = {}
        self.__doc__ = getattr(fun, "__doc__", None)

    def __deepcopy__(self, memo: dict[int, Any]) -> "WithStatistics":
        """Itself, as of any function."""
        return self

    def __repr__(self) -> str:
        asked = ", ".join(map(repr, self._statistics.values()))
        return f"<gradient function of {getattr(self._fun, '__name__', 'a loss')}, with {asked}>"

    @public
    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """The function's own result, and the statistics."""
        pytrees = as_pytrees((args, kwargs))
        leaves = jax.tree.leaves(pytrees)
        arrays = [flat_array(leaf) for leaf in leaves if is_array(leaf)]
        rewritten = self._lookup(pytrees)
        flags = self._flags(*pytrees)
        for array in flags:
            check_flags(self._options.is_real, array)
        outputs = self._run(rewritten, [*arrays, *flags])
        (result, changed), statistics = rewritten.returned(outputs)
        update_models((args, kwargs), pytrees, changed)
        return result, statistics

    def _run(self, rewritten: Rewritten, arrays: Sequence[Any]) -> Sequence[Any]:
        # Where it has not been asked for yet, it is compiled now, unless that is traced.
        words = "compiling the gradient with its statistics"
        slowly = nullcontext() if "run" in vars(rewritten) else told_if_slow(words)
        with slowly, running_here(self._options.planning.get("target")):
            closed_over = map(flat_array, rewritten.closed_over)
            return run_as_function(rewritten.run, [*arrays, *closed_over])

    @public
    def explain(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for these arguments, which prints."""
        plan = self._lookup(as_pytrees((args, kwargs))).module.plan
        assert plan is not None
        return plan

    @public
    def plan(self, *args: Any, **kwargs: Any) -> Any:
        """The strategy of each gradient for these arguments, a pytree like the gradient, such as
        {"w1": "square", "out": "lift"}, for each statistic; `hs.explain` says more.
        """
        made = self._lookup(as_pytrees((args, kwargs)))
        assert made.module.plan is not None
        outputs, tree = made.module.plan.outputs, jax.tree.structure(made.numbers)
        return self._each(
            {n: tree.unflatten(o.strategies[n] for o in outputs) for n in self._statistics}
        )

    @public
    def sensitivity(self, relation: Relation | Any, *args: Any, **kwargs: Any) -> Any:
        """How far the clipped sum or mean moves at most, in L2, between batches of which one lacks
        an example ("add or remove one"), has another in its place ("replace one"), or has one that
        counts as zero ("replace special"); or by one of `dp_accounting.NeighboringRelation`. Of
        several statistics, of each that is one.

        Of a mean over B, or with `per`, the function's arguments tell B and the groups. That B is
        the number of rows, which both batches have: one without an example, such as a mask leaves
        out, is counted. Raises ValueError where there is no such bound, as with `nan_safe=False`,
        and of a mean with `is_real`, whose B is data.
        """
        bounded = {n: s for n, s in self._statistics.items() if isinstance(s, Derived) and s.bound}
        if not bounded:
            raise ValueError(
                "nothing bounds how far one example moves these statistics; ask for clipped_sum or "
                "clipped_mean, with nan_safe as it is by default"
            )
        request = self.asked(*args, **kwargs)[0].request if args or kwargs else None
        return self._each({n: _sensitivity(s, n, relation, request) for n, s in bounded.items()})

    @public
    def module(self, *args: Any, **kwargs: Any) -> Module:
        """The rewritten module for these arguments: its text, to save it, its plan."""
        return self._lookup(as_pytrees((args, kwargs))).module

    def asked(self, *args: Any, **kwargs: Any) -> tuple[Asked, list[Any]]:
        """The function's own module for these arguments, with what is asked, and its arrays."""
        pytrees = as_pytrees((args, kwargs))
        leaves, tree = jax.tree.flatten(pytrees)
        flags = self._flags(*pytrees)
        asked = self._asked(leaves, tree, flags, self._example_axes(leaves, tree), 1)
        leaves += [*flags, *asked.lowered.closed_over]
        return asked, _given(asked.lowered.module, leaves)

    def of_copies(
        self, pytrees: Any, request: Request, examples: Sequence[int], count: int
    ) -> tuple[Module, list[list[Any]]]:
        """The function's own module for a batch of so many copies of one example, and its arrays
        for each of these examples. `pytrees`: the arguments and keywords of a batch.
        """
        leaves, tree = jax.tree.flatten(as_pytrees(pytrees))
        batches = [_copies(leaves, request, example, count) for example in examples]
        made = lower(self._fun, batches[0], tree, silently=True)
        return made.module, [_given(made.module, [*b, *made.closed_over]) for b in batches]

    def _flags(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        return [] if self._options.is_real is None else [self._flag(*args, **kwargs)]

    def _flag(self, *args: Any, **kwargs: Any) -> Any:
        return flags_among(self._options.is_real, args, kwargs)

    def _lookup(self, pytrees: Any) -> Rewritten:
        leaves, tree = jax.tree.flatten(pytrees)
        flags = self._flags(*pytrees)
        kinds = (tree, tuple(map(signature, [*leaves, *flags])))
        if kinds not in self._axes:
            refuse_torch(leaves)
            self._axes[kinds] = self._example_axes(leaves, tree)
        batch = self._axes[kinds]
        arrays = [leaf for leaf in leaves if is_array(leaf)]
        shards = self._options.planning.get("shards") or example_shards(arrays, batch)
        key = (*kinds, shards, trace_context())
        known, measures = self._rewritten.get(key), self._measures([*arrays, *flags])
        if known is not None and (
            not measures or (known.module.plan and known.module.plan.measured)
        ):
            return known
        make = partial(self._rewrite, leaves, tree, flags, batch, shards)
        made = known or make()
        if measures and not made.closed_over:
            made = self._fastest(made, make, [*map(flat_array, arrays), *flags])
        # What is traced around one call is of no use to another.
        if not made.closed_over:
            self._rewritten[key] = made
        return made

    def _measures(self, arrays: Sequence[Any]) -> bool:
        """Whether strategies are to be measured, and can be: not by what is traced."""
        asked = self._options.planning.get("autotune", False)
        return asked and not any(isinstance(array, Tracer) for array in arrays)

    def _fastest(
        self, planned: Rewritten, make: Callable[[Way], Rewritten], arrays: Sequence[Any]
    ) -> Rewritten:
        """The planned module, or one by a strategy whose call takes less."""
        assert planned.module.plan is not None
        largest = max((o.lifted_bytes for o in planned.module.plan.outputs), default=0)
        ways: list[Way] = ["auto", *(w for w in ALWAYS if w != "lift" or largest <= LARGEST)]

        @cache
        def made(way: Way) -> Rewritten:
            return planned if way == "auto" else make(way)

        # Made as it is called: of what was measured before the fastest alone is.
        calls = {way: lambda way=way: self._run(made(way), arrays) for way in ways}
        seconds = measured(planned.module.code, calls)
        fastest = made(next(iter(seconds)))
        assert fastest.module.plan is not None
        fastest.module.plan = replace(fastest.module.plan, measured=seconds)
        return fastest

    def _rewrite(
        self,
        leaves: list[Any],
        tree: Any,
        flags: list[Any],
        batch: dict[int, int],
        shards: int,
        strategy: Way | None = None,
    ) -> Rewritten:
        asked = self._asked(leaves, tree, flags, batch, shards, strategy)
        made, known, numbers = asked.lowered, asked.known, asked.numbers
        warn_of_unnamed(made.module, asked.request, asked.names)
        module, more = rewritten(made.module, asked.request, asked.names)
        results = made.result, self._statistics_tree(known, jax.tree.structure(numbers))
        told = telling(self._fun, leaves, tree, made.calls) if made.calls else None
        placed = shardings_of(made.shardings, known, numbers)
        return Rewritten(
            module, results, [*made.closed_over, *more], placed, numbers, made.mesh, told
        )

    def _asked(
        self,
        leaves: list[Any],
        tree: Any,
        flags: list[Any],
        batch: dict[int, int],
        shards: int,
        strategy: Way | None = None,
    ) -> Asked:
        options = self._options
        planning: PlanningOptions = {**options.planning, "shards": shards}
        if strategy is not None:
            planning["strategy"], planning["autotune"] = strategy, False
        if planning.get("target") is None:
            planning["target"] = ambient_target()
        platform = PlanningChoices(**planning).platform
        made = lower(self._fun, leaves, tree, platform, flags, silently=True)
        lowered, shape = made.module, made.result
        count = sum(map(is_array, leaves))
        is_real = count if flags else None
        own, _ = numbered(shape)
        numbers = _of_floats(self._pick(own), jax.tree.leaves(shape))
        picked = jax.tree.leaves(numbers)
        if self._pick is all_of_it:
            refuse_more_numbers(lowered, batch, picked)
            refuse_updated(lowered, picked)
        kinds = jax.tree.map(partial(_kind, lowered), numbers)
        known = {name: known_for(s, kinds) for name, s in self._statistics.items()}
        statistics = {name: grouped(s, numbers) for name, s in known.items()}
        loss = None if options.loss is None else _single(options.loss(own))
        how = (options.loss_reduction, options.on_mixing, planning, loss, is_real)
        # What is lowered here has all that was traced of the loss, also what no output needs.
        given: Any = {"pruned": made.pruned, "rows_per_example": options.rows_per_example}
        asked = make_request(lowered, batch, statistics, picked, *how, **given)
        if flags:
            asked = replace(asked, real_of=made_of(self._flag, leaves, tree))
        given_arrays = named_arrays(arguments_by_key(*jax.tree.unflatten(tree, leaves)))
        names = [name for name, _ in given_arrays]
        return Asked(made, asked, names, known, numbers)

    def _statistics_tree(self, statistics: Mapping[str, Statistic], gradient: Any) -> Any:
        return self._each({n: tree_of(statistic, gradient) for n, statistic in statistics.items()})

    def _each(self, of_statistics: Mapping[str, Any]) -> Any:
        """What there is of each statistic by its name; of the only one that was asked, itself."""
        alone = isinstance(self._options.statistics, Statistic)
        return next(iter(of_statistics.values())) if alone else of_statistics

    def _example_axes(self, leaves: list[Any], tree: Any) -> dict[int, int]:
        """Example axis by number of the flat array argument."""
        args, kwargs = jax.tree.unflatten(tree, leaves)
        options = self._options
        axes = (options.batch, options.in_axes, options.rows_per_example)
        return leaf_axes(args, kwargs, *axes, self._fun)


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


def _kind(lowered: Module, number: int) -> jax.ShapeDtypeStruct:
    """What an output of the module is."""
    port = lowered.outputs[number]
    return jax.ShapeDtypeStruct(port.shape, port.dtype)


def _sensitivity(statistic: Derived, name: str, relation: Any, request: Request | None) -> Any:
    """That of one clipped sum or mean, from the request where that must tell."""
    bound = statistic.bound
    assert bound is not None
    if request is None and (bound.is_mean or statistic.per != "global"):
        raise TypeError(
            f"the arguments tell the sensitivity of {name}: pass them behind the relation, as in "
            'f.sensitivity("replace one", params, x)'
        )
    if request is not None and request.is_real is not None and bound.is_mean:
        raise ValueError(
            f"with is_real {name} is divided by the number of the real examples, which is data: "
            "take clipped_sum, and divide by a number that is fixed"
        )
    known = (1, 1) if request is None else (len(request.groups[name]), request.size)
    return sensitivity(bound, relation, *known)


def all_of_it(outputs: Any) -> Any:
    """Where everything that is returned is a gradient."""
    return outputs


def _of_floats(numbers: Any, kinds: Sequence[str]) -> Any:
    """The numbers of gradients, None for those of integers."""
    return jax.tree.map(lambda n: None if kinds[n] == NO_GRADIENT else n, numbers)


def _single(picked: Any) -> int:
    """The number of the one output that was picked as the loss."""
    if not isinstance(picked, int):
        raise ValueError(
            "loss picks several outputs; it is one real number, as in loss=lambda outputs: "
            "outputs[0]"
        )
    return picked


def refuse_others(name: str, function: Any) -> None:
    """Raises TypeError for a function that nothing here has made."""
    if callable(function):
        raise TypeError(
            f"{name} takes a function made by hs.grad, hs.value_and_grad or hs.rewrite, not "
            f"{function!r}; of jax.jit(f) pass f itself, of a train step "
            "hs.value_and_grad(loss, statistics=...), and of one for PyTorch call f.explain(*args)"
        )
