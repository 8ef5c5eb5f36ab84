"""Equinox modules: of their leaves, Python's own numbers are part of the model, and not traced.

Dropout(p=0.1)      =>  Dropout(p=FixedNumber(0.1))

A layer looks at them as it is traced; elsewhere, as in JAX, such a number is an array.
"""

import sys
from typing import Any, NamedTuple

import jax

from hlo_surgery.frameworks.nnx_models import is_model


@jax.tree_util.register_static
class FixedNumber(NamedTuple):
    """A number as it is; `kind` tells 1 from 1.0 where two are compared."""

    value: Any
    kind: type


def is_module(x: Any) -> bool:
    """Whether something is a module of Equinox."""
    equinox = sys.modules.get("equinox")
    return equinox is not None and isinstance(x, equinox.Module)


def is_number(x: Any) -> bool:
    """Whether something is a number of Python, which no array is."""
    return isinstance(x, int | float | complex)


def with_fixed_numbers(tree: Any) -> Any:
    """The tree with a FixedNumber for each number in a module."""
    if "equinox" not in sys.modules:
        return tree

    def fixed(part: Any) -> Any:
        return jax.tree.map(_as_fixed, part) if is_module(part) else part

    return jax.tree.map(fixed, tree, is_leaf=lambda x: is_module(x) or is_model(x))


def without_fixed_numbers(tree: Any) -> Any:
    """The tree with numbers as they were."""

    def free(part: Any) -> Any:
        return part.value if _is_fixed(part) else part

    return jax.tree.map(free, tree, is_leaf=lambda x: _is_fixed(x) or is_model(x))


def _as_fixed(leaf: Any) -> Any:
    return FixedNumber(leaf, type(leaf)) if is_number(leaf) else leaf


def _is_fixed(x: Any) -> bool:
    return isinstance(x, FixedNumber)
