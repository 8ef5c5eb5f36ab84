"""Host calls: given a traced function, the same without those of which it hears nothing.

    debug_print[fmt=h {}] a                                                =>   nothing
    b = cond[branches=({ a. in (a,) } { a. raises in (n,) })] i a          =>   b is a

`jax.debug.print` is of the first kind, and any callback whose results nothing uses. `eqx.error_if`
is of the second: where its callback is called it raises, so that nothing but a is ever returned.

Named mesh: given a traced function, the mesh of the devices that its sharding constraints name.

b = sharding_constraint[sharding=NamedSharding(mesh, P("data"))] a    =>    mesh
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import eval_jaxpr
from jax.extend.core import ClosedJaxpr, Jaxpr, Var
from jax.interpreters.partial_eval import dce_jaxpr
from jax.sharding import AxisType, NamedSharding, PartitionSpec

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


def named_mesh(jaxpr: Jaxpr) -> Any:
    """The first of several, which are on the same devices; None where there is none. Where
    `jax.shard_map` has a kernel, its mesh counts as named.

    Inside `jax.shard_map` a function runs on one device's part, and there is none either.
    """
    around = jax.sharding.get_abstract_mesh()
    if AxisType.Manual in around.axis_types:
        return None
    named = map(_mesh_of, nested_equations(jaxpr))
    return next((mesh for mesh in named if mesh is not None), None)


def among_devices(mesh: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of arrays, jitted for the devices of a mesh, wherever on it its arrays lie.

    `jax.jit` looks for devices in the constraints that it traces, and sees none in a module.
    """

    def on_mesh(first: Any, *others: Any) -> Any:
        if AxisType.Explicit not in mesh.axis_types:
            anywhere = PartitionSpec(*[PartitionSpec.UNCONSTRAINED] * jnp.ndim(first))
            first = jax.lax.with_sharding_constraint(first, NamedSharding(mesh, anywhere))
        return function(first, *others)

    return jax.jit(on_mesh)


def _mesh_of(eqn: Any) -> Any:
    """The mesh that an equation names; None where it names none."""
    if eqn.primitive.name in ("sharding_constraint", "reshard"):
        shardings = [v for v in eqn.params.values() if isinstance(v, NamedSharding)]
        return shardings[0].mesh if shardings and not shardings[0].mesh.empty else None
    has_kernel = eqn.primitive.name == "shard_map" and any(
        inner.primitive.name == "pallas_call" for inner in nested_equations(eqn.params["jaxpr"])
    )
    # In the module too each device has the kernel to itself.
    return eqn.params["mesh"] if has_kernel else None
