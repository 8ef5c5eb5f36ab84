"""Flax NNX models: objects that share variables and change as they run, as pytrees that do neither.

(model, x)    =>  (ModelState(variables, structure), x)         a tied variable is there once

A model taken for the pytree that it is as well would be untied, and what it changes as it runs, as
the number of keys that its dropout has drawn, would be lost.
"""

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import jax

from hlo_surgery.public_function import Function


@jax.tree_util.register_static
class Structure(NamedTuple):
    """What flax.nnx says of several models but for their variables, and which of them this is."""

    graph: Any
    number: int


class ModelState(NamedTuple):
    """What stands for a model. The first has the variables of all of them together."""

    variables: Any
    structure: Structure


def is_model(x: Any) -> bool:
    """Whether something is an object of flax.nnx: a module, a stream of keys, a metric."""
    nnx = sys.modules.get("flax.nnx")
    # What they have in common was called Object before Flax 0.12.
    return nnx is not None and isinstance(x, getattr(nnx, "Pytree", nnx.Object))


def names_parts(argnums: Any) -> bool:
    """Whether what is differentiated by are parts of models, as flax.nnx names them."""
    nnx = sys.modules.get("flax.nnx")
    named = argnums if isinstance(argnums, tuple | list) else [argnums]
    return nnx is not None and any(isinstance(x, nnx.DiffState) for x in cast(Any, named))


def models_in(tree: Any) -> tuple[Any, ...]:
    """Such objects in a pytree."""
    return tuple(filter(is_model, jax.tree.leaves(tree, is_leaf=is_model)))


def as_states(tree: Any) -> Any:
    """The pytree with a ModelState for each model."""
    if "flax.nnx" not in sys.modules:
        return tree
    models = models_in(tree)
    if not models:
        return tree
    graph, variables = _nnx().split(models)
    states = (ModelState(None if i else variables, Structure(graph, i)) for i in range(len(models)))
    leaves, outside = jax.tree.flatten(tree, is_leaf=is_model)
    return outside.unflatten(next(states) if is_model(leaf) else leaf for leaf in leaves)


def models_of(states: Any) -> Any:
    """The pytree with models for its states, which are all that were made together."""
    first = _first(states)
    if first is None:
        return states
    models = _nnx().merge(first.structure.graph, first.variables)
    leaves, outside = jax.tree.flatten(states, is_leaf=_is_state)
    return outside.unflatten(models[x.structure.number] if _is_state(x) else x for x in leaves)


def values_of(states: Any) -> list[Any]:
    """What the variables of all models hold."""
    first = _first(states)
    return [] if first is None else jax.tree.leaves(first.variables)


def changed_values(before: Sequence[Any], states: Any, models: Any) -> list[Any]:
    """What the variables of models hold now that were made of states; None for what they held
    `before`. Raises ValueError where more of a model has changed than its variables.
    """
    old, after = _first(states), as_states(models)
    new = _first(after)
    if old is not None and (new is None or new.structure != old.structure):
        raise ValueError(
            "the function adds variables to its model, or changes what is no variable of it; "
            "only the values of variables are handed back: make them all in the model's __init__"
        )
    pairs = zip(values_of(after), before, strict=True)
    return [None if value is held else value for value, held in pairs]


def update_models(tree: Any, states: Any, changed: Sequence[Any]) -> None:
    """Give the models of a tree the values that have changed; `states` is `as_states(tree)`."""
    first = _first(states)
    if first is None or all(value is None for value in changed):
        return
    old, structure = jax.tree.flatten(first.variables)
    new = [o if n is None else n for o, n in zip(old, changed, strict=True)]
    _nnx().update(models_in(tree), structure.unflatten(new))


def parameters_of(model: Any) -> Any:
    """The state of a model's parameters."""
    return _nnx().state(model, _nnx().Param)


def with_parameters(model: Any, parameters: Any) -> Any:
    """The same model, which now has these."""
    _nnx().update(model, parameters)
    return model


def nnx_transform(transform: Function) -> Function:
    """flax.nnx's own `grad` for `jax.grad`, and `value_and_grad` for JAX's: by its parameters."""
    return getattr(_nnx(), transform.__name__)


def _nnx() -> Any:
    return sys.modules["flax.nnx"]


def _is_state(x: Any) -> bool:
    return isinstance(x, ModelState)


def _first(states: Any) -> ModelState | None:
    return next((x for x in jax.tree.leaves(states, is_leaf=_is_state) if _is_state(x)), None)
