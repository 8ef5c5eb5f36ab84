"""Trained leaves: of a model that holds functions, flags and integers too, what has a gradient.

{"w": f32[3], "count": i32[], "activation": tanh}    =>  {"w": f32[3], "count": None, ..}
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.frameworks.equinox_modules import is_module, is_number
from hlo_surgery.frameworks.nnx_models import (
    holds_models,
    is_model,
    names_parts,
    nnx_transform,
    parameters_of,
    with_parameters,
)
from hlo_surgery.requests.leaves import is_array, kind_of


def trained(tree: Any) -> Any:
    """The tree with None for every leaf that has no gradient; of a model of flax.nnx, its
    parameters.

    >>> trained({"w": 1.5, "count": 2, "activation": abs})
    {'activation': None, 'count': None, 'w': 1.5}
    """
    if is_model(tree):
        return parameters_of(tree)
    leaves, structure = jax.tree.flatten(tree)
    pairs = zip(leaves, are_trained(tree), strict=True)
    return structure.unflatten(leaf if is_trained else None for leaf, is_trained in pairs)


def with_trained(tree: Any, part: Any) -> Any:
    """The tree with these for its trained leaves; `part` is such a tree as `trained` makes. A model
    of flax.nnx is given them, and is the same one.

    >>> with_trained({"w": 1.5, "count": 2}, {"w": 3.0, "count": None})
    {'count': 2, 'w': 3.0}
    """
    if is_model(tree):
        return with_parameters(tree, part)
    leaves, structure = jax.tree.flatten(tree)
    new, pairs = iter(jax.tree.leaves(part)), zip(leaves, are_trained(tree), strict=True)
    return structure.unflatten(next(new) if is_trained else leaf for leaf, is_trained in pairs)


def are_trained(tree: Any) -> list[bool]:
    """Whether each leaf has a gradient: arrays and numbers of floats or complex numbers have, but
    for numbers in a module of Equinox.
    """
    found: list[bool] = []
    for part in jax.tree.leaves(tree, is_leaf=is_module):
        fixed = is_module(part)
        found += [_is_inexact(x) and not (fixed and is_number(x)) for x in jax.tree.leaves(part)]
    return found


def differentiated(
    transform: Callable[..., Any],
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    has_aux: bool,
) -> Callable[..., Any]:
    """`jax.grad` or `jax.value_and_grad` of fun by its trained leaves, with None for all others.

    An argument without any is left to JAX, which says so; a model of flax.nnx to flax.nnx, and
    so is a part of one, which `nnx.DiffState` names.
    """
    if names_parts(argnums):
        return nnx_transform(transform)(fun, argnums=argnums, has_aux=has_aux)
    by_all = transform(fun, argnums, has_aux=has_aux)
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @wraps(by_all)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        named = [args[n] for n in numbers if -len(args) <= n < len(args)]
        if holds_models(named):
            return nnx_transform(transform)(fun, argnums=argnums, has_aux=has_aux)(*args, **kwargs)
        if not any(map(_is_partly_trained, named)):
            return by_all(*args, **kwargs)

        def of_parts(*parts: Any) -> Any:
            whole = list(args)
            for n, part in zip(numbers, parts, strict=True):
                whole[n] = with_trained(args[n], part)
            return fun(*whole, **kwargs)

        places = 0 if isinstance(argnums, int) else tuple(range(len(numbers)))
        return transform(of_parts, places, has_aux=has_aux)(*(trained(args[n]) for n in numbers))

    return gradient


def _is_partly_trained(tree: Any) -> bool:
    """Whether some leaves have a gradient, and others have none."""
    return set(are_trained(tree)) == {True, False}


def _is_inexact(leaf: Any) -> bool:
    return is_array(leaf) and jnp.issubdtype(kind_of(leaf).dtype, jnp.inexact)
