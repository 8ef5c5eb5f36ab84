"""PyTorch's modules and tensors: functions of JAX take none.

Equinox modules: of their leaves, Python's own numbers are part of the model, and not traced.

Dropout(p=0.1)      =>  Dropout(p=FixedNumber(0.1))

A layer looks at them as it is traced; elsewhere, as in JAX, such a number is an array.

Traced leaves: a model's arrays, which a jitted function takes, apart from what it fixes.

{"w": f32[3], "activation": tanh}    =>  {"w": f32[3], "activation": None} and tanh

Trained leaves: of a model that holds functions, flags and integers too, what has a gradient.

{"w": f32[3], "count": i32[], "activation": tanh}    =>  {"w": f32[3], "count": None, ..}

Arguments: what a user calls a function with, as pytrees of arrays and of what is static.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hlo_surgery.frameworks.nnx_models import (
    as_states,
    changed_values,
    is_model,
    models_in,
    models_of,
    names_parts,
    nnx_transform,
    parameters_of,
    values_of,
    with_parameters,
)
from hlo_surgery.public_function import Function
from hlo_surgery.requests.leaves import is_array, kind_of


def refuse_torch(leaves: Iterable[Any]) -> None:
    """Raises TypeError where a leaf of the arguments is PyTorch's."""
    for value in leaves:
        kind = type(value)
        if any(base.__module__.partition(".")[0] == "torch" for base in kind.__mro__):
            raise TypeError(
                f"{kind.__module__}.{kind.__qualname__} is of PyTorch, and this takes functions "
                "and arrays of JAX: use hlo_surgery.torch.grad(module, loss, ...)"
            )


@jax.tree_util.register_static
class FixedNumber(NamedTuple):
    """A number as it is; `kind` tells 1 from 1.0 where two are compared."""

    value: Any
    kind: type


def is_module(x: Any) -> bool:
    """Whether something is a module of Equinox."""
    equinox = sys.modules.get("equinox")
    return equinox is not None and isinstance(x, equinox.Module)


def _is_number(leaf: Any) -> bool:
    """Whether it is a number of Python; NumPy's are arrays, though some are Python's as well."""
    return isinstance(leaf, int | float | complex) and not isinstance(leaf, np.generic)


def with_fixed_numbers(tree: Any) -> Any:
    """The tree with a FixedNumber for each number in a module."""
    if "equinox" not in sys.modules:
        return tree

    def of_leaf(leaf: Any) -> Any:
        return FixedNumber(leaf, type(leaf)) if _is_number(leaf) else leaf

    def fixed(part: Any) -> Any:
        return jax.tree.map(of_leaf, part) if is_module(part) else part

    return jax.tree.map(fixed, tree, is_leaf=lambda x: is_module(x) or is_model(x))


def without_fixed_numbers(tree: Any) -> Any:
    """The tree with numbers as they were."""

    def free(part: Any) -> Any:
        return part.value if isinstance(part, FixedNumber) else part

    return jax.tree.map(free, tree, is_leaf=lambda x: isinstance(x, FixedNumber) or is_model(x))


class Fixed(NamedTuple):
    """What jit is told of a tree: its structure, and its leaves but arrays, for which () stands."""

    structure: Any
    leaves: tuple[Any, ...]


def split_traced(
    tree: Any, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[Any, Fixed | None]:
    """The tree's arrays, None standing for what is none, and what is fixed; None where nothing is.
    `is_leaf` as in `jax.tree.flatten`.

    >>> split_traced({"w": 1.5, "activation": abs})[0]
    {'activation': None, 'w': 1.5}
    """
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_leaf)
    fixed = tuple(() if is_array(leaf) else (leaf,) for leaf in leaves)
    if not any(fixed):
        return tree, None
    pairs = zip(leaves, fixed, strict=True)
    arrays = structure.unflatten(None if other else leaf for leaf, other in pairs)
    return arrays, Fixed(structure, fixed)


def with_fixed(arrays: Any, fixed: Fixed | None) -> Any:
    """The tree that was split."""
    if fixed is None:
        return arrays
    traced = iter(jax.tree.leaves(arrays))
    return fixed.structure.unflatten(leaf[0] if leaf else next(traced) for leaf in fixed.leaves)


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
        found += [_is_inexact(x) and not (fixed and _is_number(x)) for x in jax.tree.leaves(part)]
    return found


def differentiated(
    transform: Function,
    fun: Function,
    argnums: int | Sequence[int],
    has_aux: bool,
) -> Function:
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
        if models_in(named):
            return nnx_transform(transform)(fun, argnums=argnums, has_aux=has_aux)(*args, **kwargs)
        # Some leaves have a gradient, and others have none.
        if all(len(set(are_trained(tree))) < 2 for tree in named):
            return by_all(*args, **kwargs)

        def of_parts(*parts: Any) -> Any:
            whole = list(args)
            for n, part in zip(numbers, parts, strict=True):
                whole[n] = with_trained(args[n], part)
            return fun(*whole, **kwargs)

        places = 0 if isinstance(argnums, int) else tuple(range(len(numbers)))
        return transform(of_parts, places, has_aux=has_aux)(*(trained(args[n]) for n in numbers))

    return gradient


def _is_inexact(leaf: Any) -> bool:
    return is_array(leaf) and jnp.issubdtype(kind_of(leaf).dtype, jnp.inexact)


class Returned(NamedTuple):
    """What a function returns, which keeps the names of its parts, and what it has changed."""

    result: Any
    changed: list[Any]


jax.tree_util.register_pytree_with_keys(
    Returned,
    lambda made: ((("", made.result), (".changed", made.changed)), None),
    lambda _, parts: Returned(*parts),
)


def as_pytrees(arguments: Any) -> Any:
    """The arguments with a pytree in place of each model."""
    return as_states(with_fixed_numbers(arguments))


def as_given(pytrees: Any) -> Any:
    """The arguments of which these are made; models of flax.nnx are made anew."""
    return models_of(without_fixed_numbers(pytrees))


def of_pytrees(fun: Function) -> Callable[..., Returned]:
    """fun, of what `as_pytrees` makes of its arguments: what it returns, and what its models'
    variables hold in the end (`nnx_models.changed_values`).
    """

    @wraps(fun)
    def returning(*args: Any, **kwargs: Any) -> Returned:
        pytrees = (args, kwargs)
        # The models may take the variables themselves, and change them.
        before = values_of(pytrees)
        given = as_given(pytrees)
        result = fun(*given[0], **given[1])
        return Returned(result, changed_values(before, pytrees, given))

    return returning
