"""Splice: given a block's values and a JAX function of them, its ops before an op, and its results.

return %g                 =>   %s = multiply %g, %g      (lowered from lambda g: g * g)
                               return %g

Scopes: what an added op is for, as the name in its location, which XLA keeps into profiles.

multiply %g, %g    =>    multiply %g, %g   loc("hlo_surgery/second_moment/['w']/square")

Closed over: a function that reaches for traced values around it, traced with these as arguments.

f(x) = x * c, with c traced outside    =>    f'(x, c') = x * c', to be called on (x, c)

`jax.jit` does so for itself, but hides which values they are. Those that are known stay constants
of the program.

Main's signature: given a function, further arguments, and what else it returns.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast
from urllib.parse import quote, unquote

import jax
import numpy as np
from jax import Array
from jax.core import Tracer, eval_jaxpr
from jax.extend.core import Jaxpr, jaxprs_in_params

from hlo_surgery.passes.emit.export import in_clean_config
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import Arrays, dtype_of, elements
from hlo_surgery.passes.ir.mlir import (
    Attributes,
    Operation,
    Operations,
    Value,
    Values,
    func,
    ir,
    stablehlo,
)
from hlo_surgery.passes.ir.modules import inline_calls, move_body

ROOT = "hlo_surgery"
ANY = "*"
LISTED = 2
# In the names of what is traced, JAX's name stack holds these among its own words.
_TAG = re.compile(rf"{ROOT}\.(statistic|output|strategy)=([\w.%~-]*)")
# What parts a location's name, and where XLA cuts it off.
_PARTING = str.maketrans("/@", "||")


@dataclass(frozen=True)
class Scope:
    """What an op is for: a strategy or stage of the rewriting, an output, a statistic; `*` where
    several have it in common.
    """

    strategy: str = ANY
    output: str = ANY
    statistic: str = ANY

    def __str__(self) -> str:
        parts = (self.statistic, self.output, self.strategy)
        return "/".join([ROOT, *map(in_location, parts)])


def in_location(name: str) -> str:
    """A name as it stands in a location.

    >>> in_location("['linear/~']")
    "['linear|~']"
    """
    return name.translate(_PARTING)


# Stages that outputs and statistics have in common.
LIFT, HOIST, HOISTED_STACK, STACK, STEPS, PADDING = map(
    Scope, ("lift", "hoist", "hoisted stack", "stack", "microbatches", "padding")
)


def within(part: str, names: Iterable[str]) -> AbstractContextManager[Any]:
    """What is traced within is for the `statistic`, `output` or `strategy` of these names."""
    each = list(dict.fromkeys(names))
    tag = f"{ROOT}.{part}={quote(_listed(each), safe='')}"
    return jax.named_scope(tag) if each else nullcontext()


def _listed(names: Sequence[str]) -> str:
    more = len(names) - LISTED
    return "+".join(names[:LISTED]) + (f"+{more} more" if more > 0 else "")


def scope_of(op: Operation) -> Scope | None:
    """What an op was added for; None of an op of the original."""
    for name in _names(cast(Any, op.location)):
        parts = name.split("/")
        if parts[0] == ROOT and len(parts) == 4:
            return Scope(parts[3], parts[2], parts[1])
    return None


def location_for(scope: Scope, source: Operation) -> ir.Location:
    """The location of an op that is added for this, and stands for one of the program."""
    with mlir.context():
        return ir.Location.name(str(scope), source.location)


def keep_names_alone(ops: Iterable[Operation]) -> None:
    """Forget which of our own lines ops were traced at. JAX has its name stack outside of them."""
    for op in ops:
        names, location = list[str](), cast(Any, op.location)
        while isinstance(location, ir.NameLoc):
            names.append(str(location.name_str))
            location = location.child_loc
        with mlir.context():
            cast(Any, op).location = ir.Location.name("/".join(names))


def set_traced_scopes(
    ops: Operations, scope: Scope, sources: Mapping[str, Operation], source: Operation
) -> None:
    """Say of ops that were traced what they are for; `sources`: for which op those of an output
    stand. What JAX shares, as constants, is for what uses it.
    """
    known: dict[Operation, Scope] = {}
    for op in reversed(ops):
        own = _tagged(scope, tuple(_names(cast(Any, op.location))))
        users = (user for result in op.results for user in mlir.users(result) if user in known)
        known[op] = own or next((known[user] for user in users), scope)
    # Most ops share theirs with many others, and to make a location takes longer than to find it.
    places = {
        own: location_for(own, sources.get(own.output, source)) for own in set(known.values())
    }
    for op, own in known.items():
        cast(Any, op).location = places[own]


@lru_cache(maxsize=1024)
def _tagged(scope: Scope, names: tuple[str, ...]) -> Scope | None:
    """A scope with the innermost tag of each part, from inner names to outer; None without any."""
    found = {part: text for name in reversed(names) for part, text in _TAG.findall(name)}
    tags = {part: _unquoted(text) for part, text in found.items()}
    return replace(scope, **tags) if tags else None


# Names are many, since each ends in what its op does; tags are few.
_unquoted = lru_cache(maxsize=4096)(unquote)


def _names(location: Any) -> Iterator[str]:
    """The names in a location, those of a callee before those of its call."""
    pending = [location]
    while pending:
        match current := pending.pop():
            case ir.NameLoc():
                yield str(current.name_str)
                pending.append(current.child_loc)
            case ir.CallSiteLoc():
                pending += [current.caller, current.callee]
            case _:
                pass


# Traced values by their id, each with the argument of main that stands for it, in the order of
# these.
ClosedOver = dict[int, tuple[Any, Value]]


def trace(function: Callable[..., Any], *structs: jax.ShapeDtypeStruct) -> tuple[Any, list[Any]]:
    """The function traced as by `jax.jit(function).trace`, with further arguments behind; and what
    to pass for them.
    """
    traced: Any = jax.jit(function, keep_unused=True).trace(*structs)
    if len(traced.jaxpr.in_avals) == len(structs):
        return traced, []
    made, results = jax.make_jaxpr(function, return_shape=True)(*structs)
    consts: list[Any] = made.consts
    closed_over = [const for const in consts if isinstance(const, Tracer)]

    def opened(*arrays: Any) -> Any:
        further = iter(arrays[len(structs) :])
        known = [next(further) if isinstance(const, Tracer) else const for const in consts]
        outputs: Any = eval_jaxpr(made.jaxpr, known, *arrays[: len(structs)])
        return jax.tree.unflatten(jax.tree.structure(results), outputs)

    kinds: list[Any] = [jax.typeof(const) for const in closed_over]
    further = [jax.ShapeDtypeStruct(k.shape, k.dtype, weak_type=k.weak_type) for k in kinds]
    return jax.jit(opened, keep_unused=True).trace(*structs, *further), closed_over


# The attribute of a result that a rewriting has added: the statistic's label. It outlives names
# and locations, and says of a file what was done to it.
STATISTIC = "hlo_surgery.statistic"


def add_argument(function: func.FuncOp, kind: ir.Type) -> Value:
    """A further argument of a function, the last."""
    block = cast(Any, mlir.body(function))
    with mlir.context(), ir.Location.unknown():
        made = cast(Value, block.add_argument(kind, ir.Location.unknown()))
        if "arg_attrs" in function.attributes:
            known = mlir.entries(function.operation, "arg_attrs")
            function.attributes["arg_attrs"] = ir.ArrayAttr.get([*known, ir.DictAttr.get({})])
        _retype(function)
    return made


def set_results(
    function: func.FuncOp, values: Values, attributes: Sequence[dict[str, str]]
) -> None:
    """Make the function return these values, the last of them with new string attributes."""
    block = mlir.body(function)
    old = mlir.return_operation(block)
    with mlir.context(), old.location:
        known = mlir.entries(function.operation, "res_attrs")
        missing = len(values) - len(attributes) - len(known)
        known += [ir.DictAttr.get({})] * missing
        for named in attributes:
            strings: Attributes = {k: ir.StringAttr.get(v) for k, v in named.items()}
            known.append(ir.DictAttr.get(strings))
        function.attributes["res_attrs"] = ir.ArrayAttr.get(known)
        with ir.InsertionPoint(old):
            func.ReturnOp(list(values))
        old.erase()
        _retype(function)


def _retype(function: func.FuncOp) -> None:
    """Give a function the type of what its block takes and returns."""
    block = mlir.body(function)
    outputs = [v.type for v in mlir.return_operation(block).operands]
    kind = ir.FunctionType.get([a.type for a in block.arguments], outputs)
    function.attributes["function_type"] = ir.TypeAttr.get(kind)


TELLING = (
    "a statistic calls its host (as jax.debug.print and jax.pure_callback do), which a rewritten "
    "module cannot; print what f returns instead"
)

Replacement = Callable[..., Arrays]
CONVERT, FLOATS = "stablehlo.convert", {np.dtype(np.float32), np.dtype(np.float64)}


def splice(
    values: Values,
    replacement: Replacement,
    before: Operation,
    source: Operation | None = None,
    closed_over: ClosedOver | None = None,
    scope: Scope | None = None,
    sources: Mapping[str, Operation] | None = None,
    platform: str | None = None,
) -> list[Value]:
    """Trace `replacement` and move its ops in front of `before`. They stand for `source`, or, as
    far as they are for one output, for its op in `sources`, and take its source line; `scope` says
    what they are added for. `platform`: which alone they are for, as kernels are.

    Traced values that it closes over become arguments of main, where `closed_over` keeps count of
    them. Raises ValueError where it calls its host.
    """
    structs = [jax.ShapeDtypeStruct(mlir.shape(v), dtype_of(v)) for v in values]
    code, tracers = in_clean_config(lambda: _lowered(replacement, structs, platform))
    lowered = mlir.parse(code)
    mlir.run_passes(lowered, "func.func(chlo-legalize-to-stablehlo)")
    keep_names_alone(mlir.all_operations(lowered))
    inline_calls(lowered)
    _narrow_constants(lowered)
    ops = mlir.nested_operations(mlir.main_function(lowered).operation)
    stands_for = source or before
    if scope is None:
        for op in ops:
            cast(Any, op).location = stands_for.location
    else:
        set_traced_scopes(ops, scope, sources or {}, stands_for)
    further = _further_arguments(lowered, tracers, before, closed_over)
    return move_body(mlir.main_function(lowered), [*values, *further], before)


def splice_known(
    values: Iterable[Value],
    function: Callable[[Mapping[Value, Array]], Arrays],
    before: Operation,
    source: Operation | None = None,
    **how: Any,
) -> list[Value]:
    """The same of a function that is given the arrays by these values, each of them once."""
    taken = list(dict.fromkeys(values))

    def replacement(*arrays: Array) -> Arrays:
        return function(dict(zip(taken, arrays, strict=True)))

    return splice(taken, replacement, before, source, **how)


def _narrow_constants(module: mlir.Module) -> None:
    """Have numbers of Python in the type that they are converted to: as JAX has 64 bits here, they
    are of these, which not every device has.
    """
    for op in mlir.all_operations(module):
        known = op.name == CONVERT and mlir.made_by(op.operands[0], "stablehlo.constant")
        if not known or mlir.shape(op.result):
            continue
        dtypes = {dtype_of(op.operands[0]), dtype_of(op.result)}
        if dtypes <= FLOATS:
            number = elements(known).astype(dtype_of(op.result))
            with mlir.context(), op.location, ir.InsertionPoint(op):
                made = stablehlo.constant(cast(Any, ir.DenseElementsAttr).get(number))
            mlir.replace(op, [cast(Value, made)])


def _lowered(
    replacement: Replacement, structs: Sequence[jax.ShapeDtypeStruct], platform: str | None
) -> tuple[bytes, list[Any]]:
    traced, tracers = trace(replacement, *structs)
    # All that is spliced is ours, but for what statistics are made of.
    if primitives(traced.jaxpr.jaxpr) & CALLS:
        raise ValueError(TELLING)
    platforms = None if platform is None else (platform,)
    return mlir.to_bytecode(traced.lower(lowering_platforms=platforms).compiler_ir()), tracers


def _further_arguments(
    lowered: mlir.Module, tracers: Sequence[Any], before: Operation, closed_over: ClosedOver | None
) -> Values:
    """The argument of main for each traced value, one for each value however often it is met."""
    if not tracers:
        return []
    assert closed_over is not None, (
        "only statistics are the user's, and may close over traced values"
    )
    main, parameters = (
        mlir.enclosing_function(before),
        mlir.body(mlir.main_function(lowered)).arguments,
    )
    for tracer, parameter in zip(tracers, list(parameters)[-len(tracers) :], strict=True):
        if id(tracer) not in closed_over:
            closed_over[id(tracer)] = tracer, add_argument(main, parameter.type)
    return [closed_over[id(tracer)][1] for tracer in tracers]


# Those by which a function calls its host.
CALLS = frozenset(["debug_callback", "debug_print", "io_callback", "pure_callback"])


def primitives(jaxpr: Jaxpr) -> set[str]:
    """The names of all primitives of a function and of what it calls."""
    return {eqn.primitive.name for eqn in nested_equations(jaxpr)}


def nested_equations(jaxpr: Jaxpr) -> Iterator[Any]:
    """All equations of a function and of what it calls, each before those within it."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jaxprs_in_params(eqn.params):
            yield from nested_equations(inner)
