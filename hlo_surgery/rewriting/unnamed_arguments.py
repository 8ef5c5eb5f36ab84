"""Unnamed arguments: what has a row for each example and is not named as the batch's."""

import warnings

from hlo_surgery.module import Module
from hlo_surgery.requests.request import Request
from hlo_surgery.rewriting.results import private_statistics


def warn_of_unnamed(module: Module, request: Request) -> None:
    """A warning for each argument that a private statistic takes as known to everybody, and that
    has as many rows as there are examples.

    Arguments like a gradient are parameters, whatever their size.
    """
    private = private_statistics(request)
    if not private or request.size == 1:
        return
    trained = {module.outputs[number].shape for number in request.gradients}
    named = {*request.batch, *request.segments.values(), request.is_real}
    for number, port in enumerate(module.arguments):
        has_rows = port.shape[:1] == (request.size,) and port.shape not in trained
        if has_rows and number not in named:
            warnings.warn(
                f"argument {port.name}, {port.dtype}{list(port.shape)}, has as many rows as there "
                f"are examples and is not named as the batch's: {private[0]} bounds what an "
                "example does through what is named (batch_argnums, batch, --batch), and takes the "
                "rest as known to everybody",
                stacklevel=2,
            )
