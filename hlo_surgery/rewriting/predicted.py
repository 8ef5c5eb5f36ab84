"""Predicted: about what the plain gradient takes, and so what a statistic takes of that."""

from hlo_surgery.passes.dataflow.numbers import counter_values
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Block, Operation
from hlo_surgery.passes.ir.traits import SUMMING
from hlo_surgery.passes.strategies.gradient_costs import (
    Roofline,
    bytes_of,
    site_counts,
    site_seconds,
)

# What moves nothing of its own, since XLA makes it again where it is used; and which operand an op
# writes into an array that is there.
FREE = frozenset(f"stablehlo.{n}" for n in ("broadcast_in_dim", "constant", "iota", "reshape"))
WRITES = {"stablehlo.dynamic_update_slice": 1, "stablehlo.scatter": -1}


def program_seconds(block: Block, device: Roofline) -> float:
    """About what a flat block takes: its contractions, and what all else writes."""
    return sum(_op_seconds(op, device) for op in mlir.operations(block)[:-1])


def _op_seconds(op: Operation, device: Roofline) -> float:
    if op.name in mlir.CONTROL_FLOW:
        steps = counter_values(op) or {} if op.name == "stablehlo.while" else {}
        trips = len(next(iter(steps.values()), [0]))
        return trips * program_seconds(mlir.blocks(op)[-1], device)
    if op.name in FREE:
        return 0
    if op.name in SUMMING:
        return site_seconds(site_counts(op), device, 1)
    made = [op.operands[WRITES[op.name]]] if op.name in WRITES else mlir.results(op)
    return sum(map(bytes_of, made)) / device.bandwidth
