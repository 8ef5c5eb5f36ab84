"""What is said at the call, at the user's line, as a warning.

Batch constants: what the batch makes and counts as a constant of it, as is said at the call.

Refusals: of all outputs that are refused the reason, and not of the first alone.

Unnamed arguments: what has a row for each example and is not named as the batch's.
"""

import inspect
import warnings
from collections.abc import Sequence
from pathlib import Path

import jax

from hlo_surgery.module import Module
from hlo_surgery.passes.dataflow.ancestors import ancestors, past_marks
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.rewriting.analysed import Analysed, Roles
from hlo_surgery.passes.rewriting.analysed import refused_outputs as undivided
from hlo_surgery.plan import Plan
from hlo_surgery.requests.gradient_outputs import is_inexact
from hlo_surgery.requests.request import Request
from hlo_surgery.wording import listing

# Between here and the line that asked lie only these.
BETWEEN = tuple(f"{folder}/" for folder in (Path(__file__).parents[1], Path(jax.__file__).parent))


def users_level() -> int:
    """How far out, as `warnings.warn` counts for who calls this, the user's own line is."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(BETWEEN):
        level, frame = level + 1, frame.f_back
    return level


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


UNREACHED = (
    "no example reaches any gradient, so that each example's own is the batch's: of what is named "
    "as the batch the loss takes no more than the size; name in batch_argnums (batch, --batch) "
    "what it is computed from"
)


def warn_of_constants(plan: Plan) -> None:
    """One BatchConstantWarning for all of a plan, at the line that asked."""
    unreached = bool(plan.outputs) and all(output.note for output in plan.outputs)
    if plan.unmarked or unreached:
        told = _text(plan.unmarked) if plan.unmarked else UNREACHED
        warnings.warn(told, BatchConstantWarning, stacklevel=users_level())


def _text(reasons: tuple[Reason, ...]) -> str:
    first, *others = dict.fromkeys(reason.where for reason in reasons)
    more = f" (and at {listing(others)})" if others else ""
    return (
        f"{first}: what all examples of the batch make here{more} counts as a constant of it: the "
        "gradient of an example is its term of this batch's gradient, and not that of a batch of "
        "one. If you mean that, say so by hs.constant(...) around it; if not, make the loss one "
        "over a fixed number, such as jnp.mean(weights * losses)"
    )


def refused_outputs(module: Module, request: Request) -> dict[str, Reason]:
    """Why examples have no share of their own in these outputs, by their names.

    Raises Refusal where the module cannot be analysed at all.
    """
    reasons = undivided(mlir.clone(module.code), roles_of(request))
    return {module.outputs[number].name: reason for number, reason in reasons.items()}


def roles_of(request: Request) -> Roles:
    """What arguments and outputs are, as the analysis is told of it."""
    contribution = request.on_mixing == "contribution"
    asked = (request.gradients, request.losses, contribution, request.custom_calls)
    return Roles(request.batch, request.size, *asked, request.pruned, request.ragged)


def warn_of_unnamed(module: Module, request: Request, names: Sequence[str]) -> None:
    """A warning for each argument that a private statistic takes as known to everybody, and that
    has as many rows as there are examples, at the user's line; `names`: what the user calls them.
    """
    private = request.private
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
    ragged = request.ragged or {}
    named = {*request.batch, request.is_real, *ragged, *(ids for _, ids in ragged.values())}
    return [
        number
        for number, port in enumerate(module.arguments)
        if port.shape[:1] == (request.size,) != (1,)
        and not (port.shape in trained and is_inexact(port))
        and number not in named
    ]


def unnamed_with_types(module: Module, request: Request, names: Sequence[str]) -> tuple[str, ...]:
    """The same by what the user calls the first arguments, and the module the others, with type and
    shape: "y int32[8]".
    """
    called = [*names, *(port.name for port in module.arguments[len(names) :])]
    ports = ((called[number], module.arguments[number]) for number in unnamed_rows(module, request))
    return tuple(f"{name} {port.kind}" for name, port in ports)


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
    return (
        f"{module.arguments[number].kind}, has as many rows as there are examples and is not named "
        "as the batch's"
    )
