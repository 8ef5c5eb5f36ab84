"""Real flags: which examples of a call are no padding, as arguments or the function's maker say."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from hlo_surgery.requests.leaves import is_array


def flags_among(is_real: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The flags [B]: an array, an argument's position, or what a function picks of the arguments.

    Raises TypeError or ValueError where that is no array of one dimension.
    """
    found = _picked(is_real, args, kwargs)
    if isinstance(found, jax.ShapeDtypeStruct):
        return found
    try:
        flags = jnp.asarray(found)
    except (TypeError, ValueError):
        flags = jnp.zeros(())
    if flags.ndim != 1:
        raise TypeError(
            f"is_real must be or pick one array [B] of flags or 0/1, not {_shapes(found)}"
        )
    return flags


def _shapes(found: Any) -> str:
    """A pytree with the shapes of its arrays for these, which may be long."""
    return str(jax.tree.map(lambda x: jax.typeof(x).str_short() if is_array(x) else x, found))


def check_flags(is_real: Any, flags: Any) -> None:
    """Raises ValueError where flags that can be read hold what is neither 0 nor 1."""
    if isinstance(flags, Tracer) or not getattr(flags, "is_fully_addressable", True):
        return
    others = np.setdiff1d(np.asarray(flags), (0, 1))
    if others.size:
        where = f"is_real (argument {is_real})" if isinstance(is_real, int) else "is_real"
        raise ValueError(
            f"{where} holds {others[0]}; it is 1 or True for a real example, and 0 or False for "
            "padding (a weight belongs in the loss)"
        )


def _picked(is_real: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if callable(is_real):
        return cast(Callable[..., Any], is_real)(*args, **kwargs)
    if not isinstance(is_real, int) or isinstance(is_real, bool):
        return is_real
    if not -len(args) <= is_real < len(args):
        raise ValueError(
            f"is_real names argument {is_real}; {len(args)} positional ones were given"
        )
    return args[is_real]
