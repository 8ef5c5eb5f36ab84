"""A function of pytrees, lowered: its module for arguments of some kinds, and what that hides."""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.module import Module, load
from hlo_surgery.passes.emit.splice import CALLS, primitives, trace
from hlo_surgery.requests.leaves import (
    as_returned,
    explicit_sharding,
    flat_array,
    is_array,
    kind_of,
    returned_kind,
)
from hlo_surgery.users_functions import named_mesh, silent

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
    `closed_over`: the traced values that are the module's last arguments. `calls`: how the
    function calls its host. `mesh`: what its sharding constraints name. `shardings`: of each
    output, where that is part of its type. `pruned`: whether it calls what was exported, which
    lacks what none of its outputs needs.
    """

    module: Module
    result: Any
    closed_over: list[Any]
    calls: frozenset[str]
    mesh: Any
    shardings: list[Any]
    pruned: bool


def lower(
    fun: Callable[..., Any],
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
    called = primitives(traced.jaxpr.jaxpr)
    calls = called & CALLS
    if calls and silently:
        traced, closed_over = trace(silent(noted, *structs), *structs)
    lowered = traced.lower(lowering_platforms=(platform or jax.default_backend(),))
    module = load(lowered.as_text(debug_info=True))
    mesh = named_mesh(traced.jaxpr.jaxpr)
    pruned = "call_exported" in called
    return Lowered(module, shapes[-1], closed_over, frozenset(calls), mesh, shardings[-1], pruned)


def _structs(leaves: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
    """What stands for the arrays among leaves."""
    return [
        jax.ShapeDtypeStruct(
            kind.shape, kind.dtype, weak_type=kind.weak_type, sharding=explicit_sharding(kind)
        )
        for kind in map(kind_of, filter(is_array, leaves))
    ]


def _flat(fun: Callable[..., Any], leaves: list[Any], tree: Any) -> Callable[..., Any]:
    """The function of its arrays alone, what else it takes being as it is."""
    fixed = [None if is_array(leaf) else (leaf,) for leaf in leaves]

    def flat(*arrays: Any) -> Any:
        remaining = iter(arrays)
        whole = [next(remaining) if leaf is None else leaf[0] for leaf in fixed]
        args, kwargs = jax.tree.unflatten(tree, whole)
        return fun(*args, **kwargs)

    return flat


def made_of(fun: Callable[..., Any], leaves: list[Any], tree: Any) -> frozenset[int]:
    """The numbers of those arrays among the leaves that a function's result is made of; none where
    it takes arrays apart that are not there yet.
    """
    try:
        traced = jax.make_jaxpr(_flat(fun, leaves, tree))(*_structs(leaves)).jaxpr
    except jax.errors.JAXTypeError:
        return frozenset()
    used = {id(x) for eqn in traced.eqns for x in eqn.invars} | {id(x) for x in traced.outvars}
    return frozenset(n for n, x in enumerate(traced.invars) if id(x) in used)


def telling(
    fun: Callable[..., Any], leaves: list[Any], tree: Any, calls: Container[str]
) -> Callable[..., list[Any]]:
    """The function of its flat arrays, of which it takes the first ones, and all that it returns
    flat, calling its host on the way.
    """
    own, kinds = _flat(fun, leaves, tree), list[str]()
    jax.eval_shape(lambda *a: kinds.extend(map(returned_kind, a)), *_structs(leaves))

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
