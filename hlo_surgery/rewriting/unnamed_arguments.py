"""Unnamed arguments: what has a row for each example and is not named as the batch's."""

import warnings
from collections.abc import Sequence

import jax.numpy as jnp

from hlo_surgery.module import Module
from hlo_surgery.requests.request import Request
from hlo_surgery.rewriting.results import private_statistics
from hlo_surgery.rewriting.users_line import users_level


def warn_of_unnamed(module: Module, request: Request, names: Sequence[str]) -> None:
    """A warning for each argument that a private statistic takes as known to everybody, and that
    has as many rows as there are examples, at the user's line; `names`: what the user calls them.
    """
    private = private_statistics(request)
    unnamed = unnamed_rows(module, request) if private else []
    for number, name in enumerate(names):
        if number in unnamed:
            warnings.warn(
                f"{name}, {_rows_text(module, number)}: {private[0]} bounds what an example does "
                "through what is named (batch_argnums, batch, --batch), and takes the rest as "
                "known to everybody",
                stacklevel=users_level(),
            )


def unnamed_rows(module: Module, request: Request) -> list[int]:
    """The arguments with a row for each example that are not named as the batch's, by number.

    Numbers of a gradient's shape are parameters, or what an optimizer keeps of them.
    """
    trained = {module.outputs[number].shape for number in request.gradients}
    named = {*request.batch, request.is_real}
    return [
        number
        for number, port in enumerate(module.arguments)
        if port.shape[:1] == (request.size,) != (1,)
        and not (port.shape in trained and jnp.issubdtype(port.dtype, jnp.inexact))
        and number not in named
    ]


def unnamed_with_types(module: Module, request: Request, names: Sequence[str]) -> tuple[str, ...]:
    """The same by what the user calls the first arguments, and the module the others, with type and
    shape: "y int32[8]".
    """
    called = [*names, *(port.name for port in module.arguments[len(names) :])]
    ports = ((called[number], module.arguments[number]) for number in unnamed_rows(module, request))
    return tuple(f"{name} {port.dtype}{list(port.shape)}" for name, port in ports)


def unnamed_text(module: Module, request: Request) -> str:
    """What copies of an example may lack, since they hold its rows of what is named alone; or
    nothing.
    """
    texts = [
        f"{module.arguments[number].name}, {_rows_text(module, number)}"
        for number in unnamed_rows(module, request)
    ]
    return "; ".join([*texts, "name what belongs to examples (batch, --batch)"]) if texts else ""


def _rows_text(module: Module, number: int) -> str:
    port = module.arguments[number]
    return (
        f"{port.dtype}{list(port.shape)}, has as many rows as there are examples and is not named "
        "as the batch's"
    )
