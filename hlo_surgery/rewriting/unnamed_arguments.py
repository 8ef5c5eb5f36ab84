"""Unnamed arguments: what has a row for each example and is not named as the batch's."""

import inspect
import warnings
from collections.abc import Sequence
from pathlib import Path

import jax

from hlo_surgery.module import Module
from hlo_surgery.requests.request import Request
from hlo_surgery.rewriting.results import private_statistics

# Between here and the line that asked lie only these.
BETWEEN = tuple(f"{folder}/" for folder in (Path(__file__).parents[1], Path(jax.__file__).parent))


def warn_of_unnamed(module: Module, request: Request, names: Sequence[str]) -> None:
    """A warning for each argument that a private statistic takes as known to everybody, and that
    has as many rows as there are examples, at the user's line; `names`: what the user calls them.

    Arguments like a gradient are parameters, whatever their size.
    """
    private = private_statistics(request)
    if not private or request.size == 1:
        return
    trained = {module.outputs[number].shape for number in request.gradients}
    named = {*request.batch, *request.segments.values(), request.is_real}
    for number, (name, port) in enumerate(zip(names, module.arguments, strict=False)):
        has_rows = port.shape[:1] == (request.size,) and port.shape not in trained
        if has_rows and number not in named:
            warnings.warn(
                f"{name}, {port.dtype}{list(port.shape)}, has as many rows as there "
                f"are examples and is not named as the batch's: {private[0]} bounds what an "
                "example does through what is named (batch_argnums, batch, --batch), and takes the "
                "rest as known to everybody",
                stacklevel=_users_level(),
            )


def _users_level() -> int:
    """How far out, as `warnings.warn` counts for its caller, the user's own line is."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(BETWEEN):
        level, frame = level + 1, frame.f_back
    return level
