"""Undivided outputs: gradients and losses of which examples have no share of their own, and why."""

from collections.abc import Mapping, Sequence

from hlo_surgery.passes.dataflow.ancestors import ancestors
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Reason, Refusal, as_loss, without_contribution
from hlo_surgery.passes.ir.mlir import Block, Value
from hlo_surgery.passes.owners.alignment.padded_rows import padded_reason
from hlo_surgery.passes.owners.alignment.unseen_rows import (
    parameters_of,
    shows_all,
    unseen_reason,
)
from hlo_surgery.passes.owners.classes import Mixed
from hlo_surgery.passes.owners.owners import Owners
from hlo_surgery.passes.owners.verdicts import undivided_loss_reason, undivided_reason
from hlo_surgery.passes.rewriting.roles import Roles
from hlo_surgery.passes.terms.axes import Axes


def refuse_undivided(reasons: Mapping[int, Reason], names: Sequence[str]) -> None:
    """One refusal for all outputs without shares, for the first one's reason."""
    if reasons:
        first, *others = reasons
        more = f" (and {len(others)} more)" if others else ""
        raise Refusal(reasons[first], names[first] + more)


def undivided_outputs(roles: Roles, owners: Owners, axes: Axes, block: Block) -> dict[int, Reason]:
    """Why examples have no share of their own, by number of the outputs where they have none."""
    if roles.size == 1:
        return {}
    outputs = mlir.operands(mlir.return_operation(block))
    asked = ancestors([outputs[n] for n in roles.gradients])
    reasons = {n: undivided_reason(owners, block, outputs[n], asked) for n in roles.gradients}
    # What is traced here shows all of its loss, and is not looked through for it.
    followed = bool(roles.segments) or not roles.pruned
    if not (followed or shows_all(owners, block, roles.gradients)):
        parameters = parameters_of(owners, block, roles.gradients)
        reasons = {
            n: reason or unseen_reason(owners, parameters, outputs[n])
            for n, reason in reasons.items()
        }
    if roles.sums_padding:
        reasons = {n: reason or padded_reason(owners, outputs[n]) for n, reason in reasons.items()}
    losses = {n: undivided_loss_reason(owners, block, outputs[n]) for n in roles.losses}
    reasons |= {n: reason and as_loss(reason) for n, reason in losses.items()}
    worded = {n: reason or _unworded(axes, outputs[n]) for n, reason in reasons.items()}
    found = {n: reason for n, reason in worded.items() if reason}
    without = roles.contribution or roles.segments
    return {n: without_contribution(r) for n, r in found.items()} if without else found


def _unworded(axes: Axes, output: Value) -> Reason | None:
    """Why an output's examples, each known, lie so that nothing is emitted for them."""
    known = axes.of(output)
    return known.reason if isinstance(known, Mixed) else None
