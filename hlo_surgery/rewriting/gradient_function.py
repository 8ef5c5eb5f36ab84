"""A gradient function with statistics: rewritten as often as it is needed, and called."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any

import jax

from hlo_surgery.frameworks.models import as_pytrees, refuse_torch
from hlo_surgery.frameworks.nnx_models import update_models
from hlo_surgery.lowered_function import among_devices, run_as_function, running_here
from hlo_surgery.module import Module
from hlo_surgery.plan import Plan
from hlo_surgery.public_function import Function
from hlo_surgery.requests.leaves import (
    as_returned,
    check_flags,
    example_shards,
    flat_array,
    trace_context,
    typed,
)
from hlo_surgery.requests.options import Way
from hlo_surgery.requests.request import Request
from hlo_surgery.requests.segments import Segments, check_ids
from hlo_surgery.rewriting.asked_function import Asked, AskedFunction, Call
from hlo_surgery.rewriting.autotune import ALWAYS, LARGEST, measured
from hlo_surgery.rewriting.pipeline import rewritten
from hlo_surgery.rewriting.results import shardings_of, tree_of
from hlo_surgery.statistics.derived import Derived, named
from hlo_surgery.statistics.weighted import Relation, sensitivity


@dataclass(frozen=True)
class Rewritten:
    """A module in place of a function; the rest as in `Lowered`. `numbers`: its gradients' outputs,
    as the gradient's tree. `own`: the function itself, of its flat arrays, where it is to be called
    beside the module. `size`: B, where ids say whose rows are.
    """

    module: Module
    result: Any
    closed_over: list[Any]
    shardings: Sequence[Any]
    numbers: Any = None
    mesh: Any = None
    own: Callable[..., Sequence[Any]] | None = None
    size: int = 0

    @property
    def plan(self) -> Plan:
        """That of the module."""
        assert self.module.plan is not None
        return self.module.plan

    @cached_property
    def run(self) -> Function:
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

    def __init__(self, asked_function: AskedFunction) -> None:
        named(asked_function.asked_for)
        self.asked_function = asked_function
        self._axes: dict[Any, Segments] = {}
        self._rewritten: dict[Any, Rewritten] = {}
        self.__doc__ = getattr(asked_function.given, "__doc__", None)

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """The function's own result, and the statistics."""
        pytrees = as_pytrees((args, kwargs))
        call = self.asked_function.call(pytrees)
        rewritten = self._lookup(call)
        for array in call.flags:
            check_flags(self.asked_function.is_real, array)
        if rewritten.size:
            check_ids(call.segments.ids, rewritten.size)
        (result, changed), statistics = rewritten.returned(self._run(rewritten, call))
        update_models((args, kwargs), pytrees, changed)
        return result, statistics

    def _run(self, rewritten: Rewritten, call: Call) -> Sequence[Any]:
        with running_here(self.asked_function.planning.get("target")):
            arrays = map(flat_array, [*call.arrays, *rewritten.closed_over])
            return run_as_function(rewritten.run, list(arrays))

    def _made(self, args: Any, kwargs: Any) -> Rewritten:
        return self._lookup(self.asked_function.call(as_pytrees((args, kwargs))))

    def explain(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for these arguments, which prints."""
        return self._made(args, kwargs).plan

    def plan(self, *args: Any, **kwargs: Any) -> Any:
        """The strategy of each gradient for these arguments, a pytree like the gradient, such as
        {"w1": "square", "out": "lift"}, for each statistic; `hs.explain` says more.
        """
        made = self._made(args, kwargs)
        outputs, tree = made.plan.outputs, jax.tree.structure(made.numbers)
        names = self.asked_function.statistics
        return self.asked_function.each(
            {n: tree.unflatten(o.strategies[n] for o in outputs) for n in names}
        )

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
        statistics = self.asked_function.statistics.items()
        bounded = {n: s for n, s in statistics if isinstance(s, Derived) and s.bound}
        if not bounded:
            raise ValueError(
                "nothing bounds how far one example moves these statistics; ask for clipped_sum or "
                "clipped_mean, with nan_safe as it is by default"
            )
        request = self.asked(*args, **kwargs)[0].request if args or kwargs else None
        return self.asked_function.each(
            {n: _sensitivity(s, n, relation, request) for n, s in bounded.items()}
        )

    def module(self, *args: Any, **kwargs: Any) -> Module:
        """The rewritten module for these arguments: its text, to save it, its plan."""
        return self._made(args, kwargs).module

    def asked(self, *args: Any, **kwargs: Any) -> tuple[Asked, list[Any]]:
        """The function's own module for these arguments, with what is asked, and its arrays."""
        return self.asked_function.asked_with_arrays(as_pytrees((args, kwargs)))

    def _lookup(self, call: Call) -> Rewritten:
        planning, kinds = self.asked_function.planning, call.signature
        if kinds not in self._axes:
            refuse_torch(call.leaves)
            self._axes[kinds] = self.asked_function.example_axes(call)
        batch = self._axes[kinds]
        shards = planning.get("shards") or example_shards(call.arrays, batch.axes)
        key = (*kinds, shards, trace_context())
        known = self._rewritten.get(key)
        # Strategies are not measured by what is traced.
        measures = planning.get("autotune", False) and not call.is_traced
        if known is not None and (not measures or known.plan.measured):
            return known
        make = partial(self._rewrite, call, batch, shards)
        made = known or make()
        if measures and not made.closed_over:
            made = self._fastest(made, make, call)
        # What is traced around one call is of no use to another.
        if not made.closed_over:
            self._rewritten[key] = made
        return made

    def _fastest(
        self, planned: Rewritten, make: Callable[[Way], Rewritten], call: Call
    ) -> Rewritten:
        """The planned module, or one by a strategy whose call takes less."""
        largest = max((o.lifted_bytes for o in planned.plan.outputs), default=0)
        ways: list[Way] = ["auto", *(w for w in ALWAYS if w != "lift" or largest <= LARGEST)]

        @cache
        def made(way: Way) -> Rewritten:
            return planned if way == "auto" else make(way)

        # Made as it is called: of what was measured before the fastest alone is.
        calls = {way: lambda way=way: self._run(made(way), call) for way in ways}
        seconds = measured(planned.module.code, calls)
        fastest = made(next(iter(seconds)))
        fastest.module.plan = replace(fastest.plan, measured=seconds)
        return fastest

    def _rewrite(
        self, call: Call, batch: Segments, shards: int, strategy: Way | None = None
    ) -> Rewritten:
        asked = self.asked_function.asked(call, batch, shards, strategy)
        made, known, numbers = asked.lowered, asked.known, asked.numbers
        module, more = rewritten(made.module, asked.request, asked.names)
        tree = jax.tree.structure(numbers)
        results = (
            made.result,
            self.asked_function.each({n: tree_of(s, tree) for n, s in known.items()}),
        )
        placed = shardings_of(made.shardings, known, numbers)
        size = asked.request.size if batch.rows else 0
        own = ([*made.closed_over, *more], placed, numbers, made.mesh, made.telling, size)
        return Rewritten(module, results, *own)


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


def refuse_others(name: str, function: Any) -> None:
    """Raises TypeError for a function that nothing here has made."""
    if callable(function):
        raise TypeError(
            f"{name} takes a function made by hs.grad, hs.value_and_grad or hs.rewrite, not "
            f"{function!r}; of jax.jit(f) pass f itself, of a train step "
            "hs.value_and_grad(loss, statistics=...), and of one for PyTorch call f.explain(*args)"
        )
