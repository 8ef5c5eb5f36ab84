"""Traced leaves: a model's arrays, which a jitted function takes, apart from what it fixes.

{"w": f32[3], "activation": tanh}    =>  {"w": f32[3], "activation": None} and tanh
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from hlo_surgery.requests.leaves import is_array


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
    if all(map(is_array, leaves)):
        return tree, None
    arrays = structure.unflatten(leaf if is_array(leaf) else None for leaf in leaves)
    return arrays, Fixed(structure, tuple(() if is_array(leaf) else (leaf,) for leaf in leaves))


def with_fixed(arrays: Any, fixed: Fixed | None) -> Any:
    """The tree that was split."""
    if fixed is None:
        return arrays
    traced = iter(jax.tree.leaves(arrays))
    return fixed.structure.unflatten(leaf[0] if leaf else next(traced) for leaf in fixed.leaves)
