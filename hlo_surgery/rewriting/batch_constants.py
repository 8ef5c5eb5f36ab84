"""Batch constants: what the batch makes and counts as a constant of it, as is said at the call."""

import warnings

from hlo_surgery.passes.dataflow.ancestors import ancestors, past_marks
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.rewriting.analysed import Analysed
from hlo_surgery.planning.plan import Plan, listing
from hlo_surgery.requests.request import Request
from hlo_surgery.rewriting.users_line import users_level


class BatchConstantWarning(UserWarning):
    """What the batch makes, such as `sum(weights)`, counts as a constant of it: the gradient of an
    example is its term of this batch's gradient, and not that of a batch of one.

    Issued once for each rewriting, naming the line. `hs.constant(...)` around the value says that
    this is meant; a loss over a fixed number has no such constant.

    >>> import warnings
    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> loss = lambda p, x, w: jnp.sum(w * p * x) / jnp.sum(w)
    >>> f = hs.grad(loss, batch_argnums=(1, 2), statistics=hs.norms())
    >>> with warnings.catch_warnings(record=True, action="always") as caught:
    ...     gradient, norms = f(1.0, jnp.ones(2), jnp.array([1.0, 3.0]))
    >>> [warning.category.__name__ for warning in caught], norms.tolist()
    (['BatchConstantWarning'], [0.5, 1.5])
    """

    # Where a user finds it, and so what filters and tracebacks name.
    __module__ = "hlo_surgery"


def unmarked(module: Analysed, request: Request) -> tuple[Reason, ...]:
    """What gradients take as constant of the batch though nobody has said so."""
    if request.on_mixing == "contribution" or request.size == 1 or not module.axes.data:
        return ()
    reached = past_marks([module.outputs[n] for n in (*request.gradients, *request.losses)])
    found = module.axes.data.items()
    silent = {value for value, _ in found if value in reached and _is_told(module, request, value)}
    return tuple(dict.fromkeys(r for value, r in found if value in reached - silent))


def _is_told(module: Analysed, request: Request, value: Value) -> bool:
    """Whether a value of a mean over the real examples is made of what says which these are."""
    if request.is_real is None or request.loss_reduction != "mean":
        return False
    behind, arguments = ancestors([value]), module.block.arguments
    return request.real_of.issuperset(n for n in request.batch if arguments[n] in behind)


def warn_of_constants(plan: Plan) -> None:
    """One BatchConstantWarning for all of a plan, at the line that asked."""
    if plan.unmarked:
        warnings.warn(_text(plan.unmarked), BatchConstantWarning, stacklevel=users_level())


def _text(reasons: tuple[Reason, ...]) -> str:
    first, *others = dict.fromkeys(reason.where for reason in reasons)
    more = f" (and at {listing(others)})" if others else ""
    return (
        f"{first}: what all examples of the batch make here{more} counts as a constant of it: the "
        "gradient of an example is its term of this batch's gradient, and not that of a batch of "
        "one. If you mean that, say so by hs.constant(...) around it; if not, make the loss one "
        "over a fixed number, such as jnp.mean(weights * losses)"
    )
