"""Arguments: what a user calls a function with, as pytrees of arrays and of what is static."""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import jax

from hlo_surgery.frameworks.equinox_modules import with_fixed_numbers, without_fixed_numbers
from hlo_surgery.frameworks.nnx_models import (
    as_states,
    changed_values,
    models_of,
    values_of,
)


@jax.tree_util.register_pytree_with_keys_class
class Returned(NamedTuple):
    """What a function returns, which keeps the names of its parts, and what it has changed."""

    result: Any
    changed: list[Any]

    def tree_flatten_with_keys(self) -> tuple[Any, None]:
        """As JAX asks for it."""
        return (("", self.result), (".changed", self.changed)), None

    @classmethod
    def tree_unflatten(cls, _: None, parts: Any) -> "Returned":
        """As JAX asks for it."""
        return cls(*parts)


def as_pytrees(arguments: Any) -> Any:
    """The arguments with a pytree in place of each model."""
    return as_states(with_fixed_numbers(arguments))


def as_given(pytrees: Any) -> Any:
    """The arguments of which these are made; models of flax.nnx are made anew."""
    return models_of(without_fixed_numbers(pytrees))


def of_pytrees(fun: Callable[..., Any]) -> Callable[..., Returned]:
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
