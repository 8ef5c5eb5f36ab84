"""Trace context: JAX's configuration as far as tracing rests on it, as a cache key."""

from collections.abc import Hashable
from typing import Any

import jax


def trace_context() -> Hashable:
    """Equal where `jax.jit` would not trace anew and every option of JAX has the value it had.

    JAX keeps what it traced of a function for each context: numerics, the mesh in use, axes that
    `jax.vmap` names. A few options that tracing rests on, such as the default generator of random
    numbers, are no part of that.

    >>> outside = trace_context()
    >>> with jax.default_matmul_precision("highest"):
    ...     outside == trace_context()
    False
    >>> outside == trace_context()
    True
    """
    config: Any = jax.config
    return _nothing.trace().jaxpr, tuple(getattr(config, name, None) for name in config.values)


@jax.jit
def _nothing() -> None:
    return
