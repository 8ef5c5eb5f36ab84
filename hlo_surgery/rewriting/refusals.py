"""Refusals: of all outputs that are refused the reason, and not of the first alone."""

from hlo_surgery.module import Module
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.rewriting.analysed import Roles
from hlo_surgery.passes.rewriting.analysed import refused_outputs as undivided
from hlo_surgery.requests.request import Request


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
    return Roles(request.batch, request.size, *asked, request.pruned)
