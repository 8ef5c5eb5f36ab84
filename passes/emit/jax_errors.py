"""JAX's errors: what it says where a module cannot run as called, in the words of who called it.

Batching rule for 'call_exported' not implemented   =>   a function with statistics cannot be mapped
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from hlo_surgery.passes.emit.export import UNDIFFERENTIABLE

# What to say where JAX says that a module has no rule for a transformation.
NO_RULES = {
    "Batching rule": "a function with statistics cannot be mapped by jax.vmap; call it for each, "
    "in a Python loop or in jax.lax.map",
    "custom_vjp": UNDIFFERENTIABLE,
}

OTHER_DEVICE = (
    "target={!r} is another device than the function runs on: leave target out to run here; "
    "hs.explain plans for another device, and .module(...) is the module for it"
)
HAS_KERNEL = (
    "the plan has a kernel for JAX's default device, and the function is to run on another: name "
    "that one, as in target='cpu', or force strategy='lift' or 'loop', which run on any"
)


def run_as_function(run: Callable[..., Any], arrays: Sequence[Any]) -> Any:
    """The outputs. Raises NotImplementedError in `jax.vmap`, TypeError in `jax.jvp`."""
    try:
        return run(*arrays)
    except (NotImplementedError, TypeError) as problem:
        said = next((text for rule, text in NO_RULES.items() if rule in str(problem)), None)
        if said is None:
            raise
        raise type(problem)(said) from problem


@contextmanager
def running_here(target: str | None) -> Generator[None]:
    """Raises ValueError where JAX says that a module is for another device than it is to run on."""
    try:
        yield
    except ValueError as problem:
        if "was exported for platforms" not in str(problem):
            raise
        raise ValueError(OTHER_DEVICE.format(target) if target else HAS_KERNEL) from None
