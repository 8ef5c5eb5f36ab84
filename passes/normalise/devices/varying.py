"""Varying: given a program for each device, the mesh axes along which each value differs.

    manual_computation(%x) in_shardings = [{"data"}] (%a) {
        %y = tanh %a
        %z = all_reduce %y over "data" }    =>    %a: ("data",), %y: ("data",), %z: ()

A loop's carries are joined until nothing changes. Nothing is changed yet: what no rule covers is
refused by name.
"""

from collections.abc import Sequence

from hlo_surgery.passes.dataflow.mosaic_kernels import is_known_kernel
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Refusal
from hlo_surgery.passes.ir.mlir import Block, Operation, Value
from hlo_surgery.passes.ir.placement import is_annotation, placed
from hlo_surgery.passes.ir.source_lines import reason_at
from hlo_surgery.passes.normalise.devices.collectives import collective_of
from hlo_surgery.passes.normalise.devices.device_mesh import Names, in_order, manual_axes, shardings
from hlo_surgery.passes.normalise.devices.device_numbers import axes_of, numbers_of
from hlo_surgery.passes.normalise.devices.device_values import Varying
from hlo_surgery.passes.normalise.devices.shards import sharded_axes
from hlo_surgery.passes.normalise.out_of_scope import COLLECTIVES, DEVICES_HELP
from hlo_surgery.passes.raising.leading_dims import has_leading_dims
from hlo_surgery.passes.raising.raise_op import raise_op

MANUAL = "sdy.manual_computation"


def find_varying(varying: Varying, block: Block, manual: frozenset[str] | None) -> None:
    """Follow a block's ops. `manual`: the axes of the manual computations around it; None outside.
    Raises Refusal.
    """
    for op in mlir.operations(block):
        results = _results(varying, op, manual)
        varying.axes.update({v: axes for v, axes in zip(op.results, results, strict=True) if axes})


def _results(varying: Varying, op: Operation, manual: frozenset[str] | None) -> Sequence[Names]:
    operands = mlir.operands(op)
    if op.name == MANUAL:
        return _of_manual_computation(varying, op, manual)
    if op.name == "stablehlo.while":
        return _of_loop(varying, op, manual)
    if op.name in mlir.CONTROL_FLOW:
        return _of_branches(varying, op, manual)
    if manual is not None and op.name in COLLECTIVES - {"stablehlo.partition_id"}:
        return _of_collective(varying, op)
    numbers = numbers_of(op, varying.numbers, varying.mesh) if manual is not None else None
    if numbers is not None:
        varying.numbers[op.results[0]] = numbers
        return [axes_of(numbers, varying.mesh)]
    if op.name == mlir.BARRIER or is_annotation(op):
        return list(map(varying.of, operands))
    return _of_computation(varying, op)


def _of_computation(varying: Varying, op: Operation) -> Sequence[Names]:
    axes = varying.joined([*op.operands, *mlir.captured(op)])
    if axes and op.results and not _has_rule(varying, op):
        raise refusal(op, "nothing is known of how it works on several devices' values at once")
    return [axes] * len(op.results)


def _has_rule(varying: Varying, op: Operation) -> bool:
    captures = any(map(varying.of, mlir.captured(op)))
    return not captures and (
        has_leading_dims(op, lambda v: bool(varying.of(v)))
        or raise_op(op) is not None
        or is_known_kernel(op)
    )


def _of_collective(varying: Varying, op: Operation) -> Sequence[Names]:
    found = collective_of(op, varying.mesh)
    if found is None:
        raise refusal(
            op,
            "its devices are not all those along some axes of one mesh, or it combines them "
            "unknown how",
        )
    varying.collectives.update(dict.fromkeys(op.results, found))
    own, exchanged = [frozenset(varying.of(v)) for v in op.operands], frozenset(found.axes)
    return [
        in_order(axes | exchanged if found.differ else axes - exchanged, varying.mesh)
        for axes in own
    ]


def _of_manual_computation(
    varying: Varying, op: Operation, manual: frozenset[str] | None
) -> Sequence[Names]:
    inputs, outputs = (
        shardings(op, name, varying.mesh) for name in ("in_shardings", "out_shardings")
    )
    if inputs is None or outputs is None:
        raise refusal(op, "it is sharded over parts of mesh axes")
    block = op.regions[0].blocks[0]
    own = manual_axes(op, varying.mesh)
    around = own | (manual or frozenset())
    for argument, operand, dims in zip(block.arguments, op.operands, inputs, strict=True):
        varying.axes[argument] = in_order(
            frozenset(varying.of(operand)) | sharded_axes(dims), varying.mesh
        )
        returned = _returned_alike(varying, operand, dims)
        if returned is not None:
            varying.handed.add(argument)
            varying.axes[argument] = varying.of(returned)
    find_varying(varying, block, around)
    returned = mlir.operands(mlir.return_operation(block))
    if not frozenset(varying.joined(returned)) <= around:
        raise refusal(op, "its values depend on the device's place along axes that are not manual")
    return [in_order(frozenset(varying.of(v)) - own, varying.mesh) for v in returned]


def _returned_alike(varying: Varying, operand: Value, dims: tuple[Names, ...]) -> Value | None:
    """What another manual computation returned as this operand, if devices get their own parts.

    Put together and split again, as what a loss keeps for its gradient, the examples would lie in
    another order.
    """
    value = placed(operand)
    made = mlir.defining_operation(value)
    if made is None or made.name != MANUAL or not sharded_axes(dims):
        return None
    number = mlir.results(made).index(value)
    returned = mlir.operands(mlir.return_operation(made.regions[0].blocks[0]))[number]
    outputs = shardings(made, "out_shardings", varying.mesh) or []
    agree = frozenset(varying.of(returned)) <= frozenset(varying.of(value)) | sharded_axes(dims)
    return returned if outputs[number] == dims and agree else None


def _of_loop(varying: Varying, op: Operation, manual: frozenset[str] | None) -> Sequence[Names]:
    condition, body = (region.blocks[0] for region in op.regions)
    carries = list(map(varying.of, op.operands))
    while True:
        for block in (condition, body):
            varying.axes.update(zip(block.arguments, carries, strict=True))
        find_varying(varying, body, manual)
        returned = mlir.operands(mlir.return_operation(body))
        joined = [varying.joined([a, v]) for a, v in zip(body.arguments, returned, strict=True)]
        if joined == carries:
            break
        carries = joined
    find_varying(varying, condition, manual)
    if varying.joined(mlir.operands(mlir.return_operation(condition))):
        raise refusal(op, "each device decides on its own how often this loop runs")
    return carries


def _of_branches(varying: Varying, op: Operation, manual: frozenset[str] | None) -> Sequence[Names]:
    if varying.joined(mlir.operands(op)):
        raise refusal(op, "each device decides on its own which branch is taken")
    blocks = [region.blocks[0] for region in op.regions]
    for block in blocks:
        find_varying(varying, block, manual)
    returned = [mlir.operands(mlir.return_operation(block)) for block in blocks]
    return [varying.joined(values) for values in zip(*returned, strict=True)]


def refusal(op: Operation, why: str) -> Refusal:
    """What is said where a program for each device cannot be made one for all."""
    said = f"the program is written for each device on its own ({op.name}), and {why}"
    return Refusal(reason_at(op, said, DEVICES_HELP))
