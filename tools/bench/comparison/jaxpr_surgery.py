"""The paper's jaxpr surgery, for gradients that are one factorable sum: dense layers and biases."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core

MOVES = ("transpose", "reshape", "squeeze")


class NotFactorable(Exception):
    """A gradient is not had by one contraction or sum over the examples alone."""


def with_second_moment(
    loss: Callable[..., jax.Array], structs: Sequence[Any], batch: int
) -> Callable[..., Any]:
    """(gradient, mean of the examples' squared gradients) of a mean loss. Raises NotFactorable.

    Which axes are the examples' is told by their size alone, as the paper's code leaves it to the
    user to know.
    """
    closed, shape = jax.make_jaxpr(jax.grad(loss), return_shape=True)(*structs)
    outputs = [_traced_to_sum(closed.jaxpr, var, batch) for var in closed.jaxpr.outvars]
    tree = jax.tree.structure(shape)

    def function(*args: Any) -> tuple[Any, Any]:
        env = _evaluate(closed, jax.tree.leaves(args))
        gradient = [_read(env, var) for var in closed.jaxpr.outvars]
        # An example's own gradient is the batch size times its term of a mean loss's gradient.
        squares = [batch * _squared(env, *found) for found in outputs]
        return jax.tree.unflatten(tree, gradient), jax.tree.unflatten(tree, squares)

    return function


def _traced_to_sum(jaxpr: core.Jaxpr, var: Any, batch: int) -> tuple[Any, list[Any]]:
    """The equation that sums the examples of a gradient, and those that move its elements after."""
    made_by = {out: eqn for eqn in jaxpr.eqns for out in eqn.outvars}
    moves: list[Any] = []
    while var in made_by and _only_moves(made_by[var]):
        moves.insert(0, made_by[var])
        var = made_by[var].invars[0]
    eqn = made_by.get(var)
    if eqn is None or not _sums_over_examples(eqn, batch):
        name = "argument" if eqn is None else eqn.primitive.name
        raise NotFactorable(f"a gradient's {name} is no sum over examples alone")
    return eqn, moves


def _only_moves(eqn: Any) -> bool:
    if eqn.primitive.name == "reduce_sum":
        return all(eqn.invars[0].aval.shape[axis] == 1 for axis in eqn.params["axes"])
    return eqn.primitive.name in MOVES


def _sums_over_examples(eqn: Any, batch: int) -> bool:
    shape = eqn.invars[0].aval.shape
    if eqn.primitive.name == "dot_general":
        (axes, _), (batched, _) = eqn.params["dimension_numbers"]
        return not batched and [shape[axis] for axis in axes] == [batch]
    return eqn.primitive.name == "reduce_sum" and [shape[axis] for axis in eqn.params["axes"]] == [
        batch
    ]


def _evaluate(closed: core.ClosedJaxpr, arrays: Sequence[Any]) -> dict[Any, Any]:
    """Run a jaxpr, and keep all that it computes."""
    env = dict(
        zip([*closed.jaxpr.constvars, *closed.jaxpr.invars], [*closed.consts, *arrays], strict=True)
    )
    for eqn in closed.jaxpr.eqns:
        results = _bind(eqn, [_read(env, var) for var in eqn.invars])
        env |= zip(
            eqn.outvars, results if eqn.primitive.multiple_results else [results], strict=True
        )
    return env


def _bind(eqn: Any, values: Sequence[Any]) -> Any:
    if "call_jaxpr" in eqn.params:
        return core.jaxpr_as_fun(eqn.params["call_jaxpr"])(*values)
    return eqn.primitive.bind(*values, **eqn.params)


def _read(env: dict[Any, Any], var: Any) -> Any:
    return var.val if isinstance(var, core.Literal) else env[var]


def _squared(env: dict[Any, Any], eqn: Any, moves: Sequence[Any]) -> Any:
    """The same sum of squared operands, moved in the same way."""
    value = _bind(eqn, [_read(env, var) ** 2 for var in eqn.invars])
    for move in moves:
        value = _bind(move, [value])
    return value
