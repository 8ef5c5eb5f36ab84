"""Users' functions: traced with the numerics of who asked, where new code has all 64-bit types.

with jax.enable_x64(True):          new code
    as_asked(fn)(gradient)          jnp.arange(3.0), jax.random.normal: float32, if x64 was off
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np

# Of JAX's options that a `with` may set for one thread, those that numbers rest on: what is drawn
# at random is something else with another default dtype.
NUMERICS = (
    "enable_x64",
    "default_prng_impl",
    "threefry_partitionable",
    "default_matmul_precision",
    "numpy_dtype_promotion",
)
WIDE = frozenset(map(np.dtype, ["i8", "u8", "f8", "c16"]))

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_asked: ContextVar[Mapping[str, Any] | None] = ContextVar("numerics", default=None)


def asked_numerics() -> Mapping[str, Any]:
    """The options of who asked for this thread's work, or of this thread."""
    asked, config = _asked.get(), jax.config
    return asked or {name: getattr(config, f"jax_{name}") for name in NUMERICS}


@contextmanager
def asked_with(numerics: Mapping[str, Any]) -> Generator[None]:
    """Within, these are the options of who asked."""
    token = _asked.set(numerics)
    try:
        yield
    finally:
        _asked.reset(token)


def as_asked(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function under the options of who asked; with x64 where it is given 64-bit types, which
    would be lost.
    """

    @wraps(function)
    def called(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        numerics = dict(asked_numerics())
        numerics["enable_x64"] |= any(map(_is_wide, jax.tree.leaves((args, kwargs))))
        with ExitStack() as options:
            for name, value in numerics.items():
                options.enter_context(getattr(jax, name)(value))
            return function(*args, **kwargs)

    return called


def _is_wide(x: Any) -> bool:
    return getattr(x, "dtype", None) in WIDE
