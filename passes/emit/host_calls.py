"""Host calls: given a traced function, the same without those of which it hears nothing.

    debug_print[fmt=h {}] a                                                =>   nothing
    b = cond[branches=({ a. in (a,) } { a. raises in (n,) })] i a          =>   b is a

`jax.debug.print` is of the first kind, and any callback whose results nothing uses. `eqx.error_if`
is of the second: where its callback is called it raises, so that nothing but a is ever returned.
Libraries have primitives that are functions of JAX, as Lineax's solve is: these are looked into.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
from jax.core import eval_jaxpr
from jax.extend.core import ClosedJaxpr, Jaxpr, Var

CALLS = frozenset(["debug_callback", "debug_print", "io_callback", "pure_callback"])
EFFECTS = frozenset(["DebugEffect", "OrderedDebugEffect", "IOEffect", "OrderedIOEffect"])
# Of Equinox, what its callbacks call where an error is to be raised.
RAISING = "equinox._errors._error.<locals>.raises"


def host_calls(jaxpr: Jaxpr) -> set[str]:
    """The primitives by which a function, or what it calls, calls its host."""
    return primitives(jaxpr) & CALLS


def primitives(jaxpr: Jaxpr) -> set[str]:
    """The names of all primitives of a function and of what it calls."""
    return {eqn.primitive.name for eqn in nested_equations(jaxpr)}


def nested_equations(jaxpr: Jaxpr) -> Iterator[Any]:
    """All equations of a function and of what it calls, each before those within it."""
    for eqn in map(_opened, jaxpr.eqns):
        yield eqn
        for inner in _inner(eqn.params.values()):
            yield from nested_equations(inner)


def _opened(eqn: Any) -> Any:
    """An equation; of a library's primitive that calls the host, a jitted function of JAX's own."""
    implementation = eqn.primitive.impl
    if isinstance(implementation, partial) or implementation.__module__.startswith("jax."):
        return eqn
    function = jax.jit(partial(implementation, **eqn.params))
    try:
        made = jax.make_jaxpr(function)(*(value.aval for value in eqn.invars)).jaxpr
    except (TypeError, ValueError, NotImplementedError):
        return eqn  # It runs on arrays alone, as one of NumPy does: the lowering says what it is.
    if not host_calls(made):
        return eqn
    return made.eqns[-1].replace(invars=eqn.invars, outvars=eqn.outvars)


def silent(function: Callable[..., Any], *structs: jax.ShapeDtypeStruct) -> Callable[..., Any]:
    """The function of such arguments, without those of its host calls of which it hears nothing."""
    made, results = jax.make_jaxpr(function, return_shape=True)(*structs)
    without = _without_host_calls(made.jaxpr)

    def told_nothing(*arrays: Any) -> Any:
        outputs: Any = eval_jaxpr(without, made.consts, *arrays)
        return jax.tree.unflatten(jax.tree.structure(results), outputs)

    return told_nothing


def _without_host_calls(jaxpr: Jaxpr) -> Jaxpr:
    passed: dict[Any, Any] = {}
    eqns: list[Any] = []
    for eqn in map(_opened, jaxpr.eqns):
        operands = [_renamed(v, passed) for v in eqn.invars]
        moved = _passed_on(eqn, operands)
        if moved is None:
            eqns.append(_cleaned(eqn.replace(invars=operands)))
        else:
            passed.update(zip(eqn.outvars, moved, strict=True))
    results = [_renamed(v, passed) for v in jaxpr.outvars]
    kept = _without_unheard(eqns, results)
    own = _effects(jaxpr.effects, (eqn.effects for eqn in kept))
    return jaxpr.replace(eqns=kept, outvars=results, effects=own)


def _renamed(value: Any, passed: Mapping[Any, Any]) -> Any:
    return passed.get(value, value) if isinstance(value, Var) else value


def _passed_on(eqn: Any, operands: Sequence[Any]) -> list[Any] | None:
    """Which of its operands an equation returns, if all that it can do besides is to raise."""
    if eqn.primitive.name != "cond":
        return None
    branches = [branch.jaxpr for branch in eqn.params["branches"]]
    others = [branch for branch in branches if not _raises(branch)]
    if len(others) != 1 or len(branches) == 1 or others[0].eqns:
        return None
    # The first operand is the number of the branch.
    given = dict(zip(others[0].invars, operands[1:], strict=True))
    if any(isinstance(v, Var) and v not in given for v in others[0].outvars):
        return None
    return [_renamed(v, given) for v in others[0].outvars]


def _raises(jaxpr: Jaxpr) -> bool:
    """Whether a function calls, whatever its arguments, what raises."""
    return any(
        eqn.primitive.name == "pure_callback" and _name(eqn.params["callback"]) == RAISING
        for eqn in jaxpr.eqns
    )


def _name(callback: Any) -> str:
    function = getattr(callback, "callback_func", callback)
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"


def _without_unheard(eqns: Sequence[Any], results: Iterable[Any]) -> list[Any]:
    """The equations without calls of which nothing reaches a result, and what is made of those."""
    used = _used(eqns, results)
    lost: set[Any] = set()
    kept: list[Any] = []
    for eqn in eqns:
        unheard = eqn.primitive.name in CALLS and used.isdisjoint(eqn.outvars)
        if unheard or any(v in lost for v in eqn.invars if isinstance(v, Var)):
            lost.update(eqn.outvars)
        else:
            kept.append(eqn)
    return kept


def _used(eqns: Sequence[Any], results: Iterable[Any]) -> set[Any]:
    """The values that results are made of, or what has an effect other than a call."""
    used = {v for v in results if isinstance(v, Var)}
    for eqn in reversed(eqns):
        acts = bool(eqn.effects) and eqn.primitive.name not in CALLS
        if acts or not used.isdisjoint(eqn.outvars):
            used.update(v for v in eqn.invars if isinstance(v, Var))
    return used


def _cleaned(eqn: Any) -> Any:
    """An equation, what it calls being without host calls."""
    params = {name: _mapped(_without_host_calls, value) for name, value in eqn.params.items()}
    inner = list(_inner(params.values()))
    if not inner:
        return eqn
    effects = _effects(eqn.effects, (jaxpr.effects for jaxpr in inner))
    return eqn.replace(params=params, effects=effects)


def _effects(known: Iterable[Any], within: Iterable[Iterable[Any]]) -> set[Any]:
    """The effects that are left: those on the host only as far as something within has them."""
    left = {effect for effects in within for effect in effects}
    return {effect for effect in known if type(effect).__name__ not in EFFECTS or effect in left}


def _inner(params: Iterable[Any]) -> Iterator[Jaxpr]:
    for value in params:
        if isinstance(value, ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, Jaxpr):
            yield value
        elif isinstance(value, tuple):
            yield from _inner(value)


def _mapped(function: Callable[[Jaxpr], Jaxpr], value: Any) -> Any:
    if isinstance(value, ClosedJaxpr):
        return value.replace(jaxpr=function(value.jaxpr))
    if isinstance(value, Jaxpr):
        return function(value)
    if isinstance(value, tuple):
        parts = [_mapped(function, part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value
