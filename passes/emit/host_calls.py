"""Host calls: given a traced function, the same without those of which it hears nothing.

    debug_print[fmt=h {}] a                                                =>   nothing
    b = cond[branches=({ a. in (a,) } { a. raises in (n,) })] i a          =>   b is a

`jax.debug.print` is of the first kind, and any callback whose results nothing uses. `eqx.error_if`
is of the second: where its callback is called it raises, so that nothing but a is ever returned.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.core import eval_jaxpr
from jax.extend.core import ClosedJaxpr, Jaxpr, Var
from jax.interpreters.partial_eval import dce_jaxpr

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
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in _inner(eqn.params.values()):
            yield from nested_equations(inner)


def silent(function: Callable[..., Any], *structs: jax.ShapeDtypeStruct) -> Callable[..., Any]:
    """The function of such arguments, without those of its host calls of which it hears nothing."""
    made, results = jax.make_jaxpr(function, return_shape=True)(*structs)
    without = _without_host_calls(made.jaxpr)

    def told_nothing(*arrays: Any) -> Any:
        outputs: Any = eval_jaxpr(without, made.consts, *arrays)
        return jax.tree.unflatten(jax.tree.structure(results), outputs)

    return told_nothing


def _without_host_calls(jaxpr: Jaxpr) -> Jaxpr:
    quiet = _quiet(jaxpr)
    return dce_jaxpr(quiet, [True] * len(quiet.outvars), instantiate=True)[0]


def _quiet(jaxpr: Jaxpr) -> Jaxpr:
    """A function whose calls have no effect, and are there for what is made of their results."""
    passed: dict[Any, Any] = {}
    eqns: list[Any] = []
    for eqn in jaxpr.eqns:
        operands = [_renamed(v, passed) for v in eqn.invars]
        moved = _passed_on(eqn, operands)
        if moved is None:
            params = {name: _mapped(_quiet, value) for name, value in eqn.params.items()}
            left = _lasting(eqn.effects)
            eqns.append(eqn.replace(invars=operands, params=params, effects=left))
        else:
            passed.update(zip(eqn.outvars, moved, strict=True))
    results = [_renamed(v, passed) for v in jaxpr.outvars]
    return jaxpr.replace(eqns=eqns, outvars=results, effects=_lasting(jaxpr.effects))


def _lasting(effects: Iterable[Any]) -> set[Any]:
    return {effect for effect in effects if type(effect).__name__ not in EFFECTS}


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
