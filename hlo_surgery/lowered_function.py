"""A function of pytrees, lowered: its module for arguments of some kinds, and what that hides.

Users' functions: without host calls of which they hear nothing, on their mesh, in their words.

    debug_print[fmt=h {}] a                                                =>   nothing
    b = cond[branches=({ a. in (a,) } { a. raises in (n,) })] i a          =>   b is a

`jax.debug.print` is of the first kind, and any callback whose results nothing uses. `eqx.error_if`
is of the second: where its callback is called it raises, so that nothing but a is ever returned.

The mesh of the devices that a function's sharding constraints name:

    b = sharding_constraint[sharding=NamedSharding(mesh, P("data"))] a    =>    mesh

What JAX says where a module cannot run as called, in the words of who called it:

    Batching rule for 'call_exported' not implemented   =>   it cannot be mapped by jax.vmap
"""

from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import eval_jaxpr
from jax.extend.core import ClosedJaxpr, Jaxpr, Var
from jax.interpreters.partial_eval import dce_jaxpr
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from hlo_surgery.module import Module, load
from hlo_surgery.passes.emit.export import UNDIFFERENTIABLE
from hlo_surgery.passes.emit.splice import CALLS, nested_equations, trace
from hlo_surgery.public_function import Function
from hlo_surgery.requests.leaves import (
    as_returned,
    explicit_sharding,
    flat_array,
    is_array,
    kind_of,
    returned_kind,
)

# What JAX says of a leaf that it cannot differentiate by or trace.
NO_ARRAY = "is not a valid JAX type"
MODEL_HELP = (
    "jax.grad takes arrays alone, and an argument here holds something else, as models do: pass "
    "the loss to hs.grad, or hs.rewrite(equinox.filter_grad(loss), ...)"
)


@dataclass(frozen=True)
class Lowered:
    """A function's module for arguments of some kinds, and what it hides.

    `result`: the tree that the function returns, of what outputs hide (`returned_kind`).
    `closed_over`: the traced values that are the module's last arguments. `telling`: the function
    of its flat arrays, where it calls its host. `mesh`: what its sharding constraints name.
    `shardings`: of each output, where that is part of its type. `pruned`: whether it calls what was
    exported, which lacks what none of its outputs needs.
    """

    module: Module
    result: Any
    closed_over: list[Any]
    telling: Function | None
    mesh: Any
    shardings: list[Any]
    pruned: bool


def lower(
    fun: Function,
    leaves: list[Any],
    tree: Any,
    platform: str | None = None,
    beside: Sequence[Any] = (),
    *,
    silently: bool = False,
) -> Lowered:
    """The function's module for these arguments, its arrays flat.

    Behind these it takes what is given `beside`, of which the function knows nothing. If
    `silently`, it calls its host only to hear of it.
    """
    shapes: list[Any] = []
    shardings: list[list[Any]] = []
    flat = _flat(fun, leaves, tree)

    def noted(*arrays: Any) -> Any:
        result = flat(*arrays)
        shapes.append(jax.tree.map(returned_kind, result))
        shardings.append([explicit_sharding(jax.typeof(x)) for x in jax.tree.leaves(result)])
        return result

    structs = _structs([*leaves, *beside])
    try:
        traced, closed_over = trace(noted, *structs)
    except TypeError as problem:
        if NO_ARRAY in str(problem) and not all(map(is_array, leaves)):
            problem.add_note(MODEL_HELP)
        raise
    equations = list(nested_equations(traced.jaxpr.jaxpr))
    if any(map(_hides, equations)):
        noted = _changed(noted, structs, _opened)
        traced, closed_over = trace(noted, *structs)
        equations = list(nested_equations(traced.jaxpr.jaxpr))
    called = {eqn.primitive.name for eqn in equations}
    calls = called & CALLS
    if calls and silently:
        traced, closed_over = trace(_changed(noted, structs, _silent), *structs)
    told = _telling(flat, _structs(leaves), calls) if calls else None
    lowered = traced.lower(lowering_platforms=(platform or jax.default_backend(),))
    module = load(lowered.as_text(debug_info=True))
    mesh = named_mesh(traced.jaxpr.jaxpr)
    pruned = "call_exported" in called
    return Lowered(module, shapes[-1], closed_over, told, mesh, shardings[-1], pruned)


def _structs(leaves: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
    """What stands for the arrays among leaves."""
    return [
        jax.ShapeDtypeStruct(
            kind.shape, kind.dtype, weak_type=kind.weak_type, sharding=explicit_sharding(kind)
        )
        for kind in map(kind_of, filter(is_array, leaves))
    ]


def _flat(fun: Function, leaves: list[Any], tree: Any) -> Function:
    """The function of its arrays alone, what else it takes being as it is."""
    fixed = [None if is_array(leaf) else (leaf,) for leaf in leaves]

    def flat(*arrays: Any) -> Any:
        remaining = iter(arrays)
        whole = [next(remaining) if leaf is None else leaf[0] for leaf in fixed]
        args, kwargs = jax.tree.unflatten(tree, whole)
        return fun(*args, **kwargs)

    return flat


def made_of(fun: Function, leaves: list[Any], tree: Any) -> frozenset[int]:
    """The numbers of those arrays among the leaves that a function's result is made of; none where
    it takes arrays apart that are not there yet.
    """
    try:
        traced = jax.make_jaxpr(_flat(fun, leaves, tree))(*_structs(leaves)).jaxpr
    except jax.errors.JAXTypeError:
        return frozenset()
    used = {id(x) for eqn in traced.eqns for x in eqn.invars} | {id(x) for x in traced.outvars}
    return frozenset(n for n, x in enumerate(traced.invars) if id(x) in used)


def _telling(own: Function, structs: Sequence[Any], calls: Container[str]) -> Function:
    """The function of its flat arrays, of which it takes the first ones, and all that it returns
    flat, calling its host on the way.
    """
    kinds = list[str]()
    jax.eval_shape(lambda *a: kinds.extend(map(returned_kind, a)), *structs)

    def calling(*arrays: Any) -> list[Any]:
        results = own(*(as_returned(*pair) for pair in zip(kinds, arrays, strict=False)))
        flat = list(map(flat_array, jax.tree.leaves(results)))
        if "pure_callback" in calls:
            # It has no effect, and raises only if something that rests on it is asked for.
            jax.debug.callback(_ask_for, [jnp.ravel(result)[:1] for result in flat])
        return flat

    return calling


def _ask_for(_: Any) -> None:
    """Nothing is done with what was computed for it."""


EFFECTS = frozenset(["DebugEffect", "OrderedDebugEffect", "IOEffect", "OrderedIOEffect"])
# Of Equinox, what its callbacks call where an error is to be raised.
RAISING = "equinox._errors._error.<locals>.raises"
Change = Callable[[Jaxpr], Jaxpr]


def _changed(function: Function, structs: Sequence[Any], change: Change) -> Function:
    """The function of such arguments, changed as it is traced."""
    made, results = jax.make_jaxpr(function, return_shape=True)(*structs)
    changed = change(made.jaxpr)

    def evaluated(*arrays: Any) -> Any:
        outputs: Any = eval_jaxpr(changed, made.consts, *arrays)
        return jax.tree.unflatten(jax.tree.structure(results), outputs)

    return evaluated


def _silent(jaxpr: Jaxpr) -> Jaxpr:
    """A function without those of its host calls of which it hears nothing."""
    quiet = _quiet(jaxpr)
    return dce_jaxpr(quiet, [True] * len(quiet.outvars), instantiate=True)[0]


def _hides(eqn: Any) -> bool:
    """Whether a primitive is a JAX function, of Equinox, that shows in the lowering alone."""
    function = getattr(eqn.primitive.impl, "func", eqn.primitive.impl)
    return str(getattr(function, "__module__", "")).startswith("equinox.internal._primitive")


def _opened(jaxpr: Jaxpr) -> Jaxpr:
    """A function with the functions that primitives hide as calls."""
    eqns = [_call(eqn) if _hides(eqn) else eqn for eqn in jaxpr.eqns]
    return jaxpr.replace(
        eqns=[eqn.replace(params=_of_inner(_opened, eqn.params)) for eqn in eqns],
        effects=set().union(jaxpr.effects, *[eqn.effects for eqn in eqns]),
    )


def _call(eqn: Any) -> Any:
    """A call of the function that a primitive is."""
    function = jax.jit(partial(eqn.primitive.impl, **eqn.params))
    made = jax.make_jaxpr(function)(*[v.aval for v in eqn.invars]).jaxpr
    call = made.eqns[0]
    if [*call.invars] != [*made.invars]:
        return eqn
    return eqn.replace(primitive=call.primitive, params=call.params, effects=call.effects)


def _of_inner(change: Change, params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _mapped(change, value) for name, value in params.items()}


def _quiet(jaxpr: Jaxpr) -> Jaxpr:
    """A function whose calls have no effect, and are there for what is made of their results."""
    passed: dict[Any, Any] = {}
    eqns: list[Any] = []
    for eqn in jaxpr.eqns:
        operands = [_renamed(v, passed) for v in eqn.invars]
        moved = _passed_on(eqn, operands)
        if moved is None:
            params, left = _of_inner(_quiet, eqn.params), _lasting(eqn.effects)
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


def _mapped(change: Change, value: Any) -> Any:
    if isinstance(value, ClosedJaxpr):
        return value.replace(jaxpr=change(value.jaxpr))
    if isinstance(value, Jaxpr):
        return change(value)
    if isinstance(value, tuple):
        parts = [_mapped(change, part) for part in value]
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


def among_devices(mesh: Any, function: Function) -> Function:
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


# What to say where JAX says that a module has no rule for a transformation.
NO_RULES = {
    "Batching rule": "a function with statistics cannot be mapped by jax.vmap; call it for each, "
    "in a Python loop or in jax.lax.map",
    "custom_vjp": UNDIFFERENTIABLE,
}

OTHER_DEVICE = (
    "target={!r} is another device than the function runs on: leave target out to run here; "
    "hs.explain plans for another device, and .module(...) is the module for it"
)
HAS_KERNEL = (
    "the plan has a kernel for JAX's default device, and the function is to run on another: name "
    "that one, as in target='cpu', or force strategy='lift' or 'loop', which run on any"
)


def run_as_function(run: Function, arrays: Sequence[Any]) -> Any:
    """The outputs. Raises NotImplementedError in `jax.vmap`, TypeError in `jax.jvp`."""
    try:
        return run(*arrays)
    except (NotImplementedError, TypeError) as problem:
        said = next((text for rule, text in NO_RULES.items() if rule in str(problem)), None)
        if said is None:
            raise
        raise type(problem)(said) from None


@contextmanager
def running_here(target: str | None) -> Generator[None]:
    """Raises ValueError where JAX says that a module is for another device than it is to run on."""
    try:
        yield
    except ValueError as problem:
        if "was exported for platforms" not in str(problem):
            raise
        raise ValueError(OTHER_DEVICE.format(target) if target else HAS_KERNEL) from None
