"""Undivided outputs: gradients and losses of which examples have no share of their own, and why."""

from collections.abc import Mapping, Sequence

from hlo_surgery.passes.axes.state import State
from hlo_surgery.passes.axes.verdicts import undivided_reason, unseen_reason
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Reason, Refusal, as_loss, without_contribution
from hlo_surgery.passes.ir.mlir import Block
from hlo_surgery.passes.rewriting.roles import Roles


def refuse_undivided(reasons: Mapping[int, Reason], names: Sequence[str]) -> None:
    """One refusal for all outputs without shares, for the first one's reason."""
    if reasons:
        first, *others = reasons
        more = f" (and {len(others)} more)" if others else ""
        raise Refusal(reasons[first], names[first] + more)


def undivided_outputs(roles: Roles, state: State, block: Block) -> dict[int, Reason]:
    """Why examples have no share of their own, by number of the outputs where they have none."""
    if roles.size == 1:
        return {}
    outputs = mlir.operands(mlir.return_operation(block))
    found = {
        n: undivided_reason(state, block, outputs[n]) for n in [*roles.gradients, *roles.losses]
    }
    if roles.pruned:
        asked = (state, block, roles.gradients, roles.size)
        found |= {n: found[n] or unseen_reason(*asked, outputs[n]) for n in roles.gradients}
    reasons = {n: reason for n, reason in found.items() if reason}
    reasons |= {n: as_loss(reasons[n]) for n in roles.losses if n in reasons}
    without = roles.contribution
    return {n: without_contribution(r) for n, r in reasons.items()} if without else reasons
