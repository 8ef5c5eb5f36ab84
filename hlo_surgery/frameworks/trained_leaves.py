"""Trained leaves: of a model that holds functions, flags and integers too, what has a gradient.

{"w": f32[3], "count": i32[], "activation": tanh}    =>  {"w": f32[3], "count": None, ..}
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.frameworks.nnx_models import (
    holds_models,
    is_model,
    nnx_transform,
    parameters_of,
    with_parameters,
)
from hlo_surgery.requests.leaves import is_array, kind_of


def is_trained(leaf: Any) -> bool:
    """Whether a leaf has a gradient: arrays and numbers of floats or complex numbers have."""
    return is_array(leaf) and jnp.issubdtype(kind_of(leaf).dtype, jnp.inexact)


def trained(tree: Any) -> Any:
    """The tree with None for every leaf that has no gradient; of a model of flax.nnx, its
    parameters.

    >>> trained({"w": 1.5, "count": 2, "activation": abs})
    {'activation': None, 'count': None, 'w': 1.5}
    """
    if is_model(tree):
        return parameters_of(tree)
    return jax.tree.map(lambda leaf: leaf if is_trained(leaf) else None, tree)


def with_trained(tree: Any, part: Any) -> Any:
    """The tree with these for its trained leaves; `part` is such a tree as `trained` makes. A model
    of flax.nnx is given them, and is the same one.

    >>> with_trained({"w": 1.5, "count": 2}, {"w": 3.0, "count": None})
    {'count': 2, 'w': 3.0}
    """
    if is_model(tree):
        return with_parameters(tree, part)
    leaves, structure = jax.tree.flatten(tree)
    new = iter(jax.tree.leaves(part))
    return structure.unflatten(next(new) if is_trained(leaf) else leaf for leaf in leaves)


def differentiated(
    transform: Callable[..., Any],
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    has_aux: bool,
) -> Callable[..., Any]:
    """`jax.grad` or `jax.value_and_grad` of fun by its trained leaves, with None for all others.

    An argument without any is left to JAX, which says so; a model of flax.nnx to flax.nnx.
    """
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
    return {is_trained(leaf) for leaf in jax.tree.leaves(tree)} == {True, False}
