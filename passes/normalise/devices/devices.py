"""Devices: given a program for each device, as `jax.shard_map` makes it, one for all at once.

    manual_computation(%x : 8x3) in_shardings = [{"data"}]         %a = reshape %x : 8x3 -> 4x2x3
      (%a : 2x3) { %y = tanh %a : 2x3                         =>   %y = tanh %a : 4x2x3
                   %z = all_reduce %y over "data" }                %z = reduce %y over dimension 0

What differs from device to device has leading dimensions for the mesh axes along which it does.
What is the same on all devices stays as it is.
"""

from collections.abc import Sequence
from functools import partial

import jax.numpy as jnp

from hlo_surgery.passes.dataflow.mosaic_kernels import is_known_kernel
from hlo_surgery.passes.emit.splice import splice
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Module, Operation, Value
from hlo_surgery.passes.ir.placement import is_annotation, placed
from hlo_surgery.passes.normalise.devices.collectives import Collective
from hlo_surgery.passes.normalise.devices.device_mesh import (
    Names,
    axis_groups,
    in_order,
    mesh_of,
    shardings,
)
from hlo_surgery.passes.normalise.devices.device_numbers import along
from hlo_surgery.passes.normalise.devices.device_values import (
    Varying,
    align_operands,
    aligned,
    apply,
    extend,
    rename,
    replace,
)
from hlo_surgery.passes.normalise.devices.kernels import call_for_all
from hlo_surgery.passes.normalise.devices.map_devices import map_op
from hlo_surgery.passes.normalise.devices.shards import (
    agreed,
    fuse,
    put_together,
    sharded_axes,
    split,
)
from hlo_surgery.passes.normalise.devices.varying import MANUAL, find_varying
from hlo_surgery.passes.normalise.out_of_scope import COLLECTIVES
from hlo_surgery.passes.raising.leading_dims import (
    add_leading_dims,
    array_operands,
    has_leading_dims,
)
from hlo_surgery.passes.raising.table import single


def join_devices(module: Module) -> None:
    """Replace every manual computation of a flat main. Raises Refusal where one does what no rule
    covers.

    On a single device jax.shard_map leaves its collectives in main itself.
    """
    ops = mlir.all_operations(module)
    manual = [op for op in ops if op.name == MANUAL]
    mesh = mesh_of(module)
    if mesh is None or not any(op.name in COLLECTIVES | {MANUAL} for op in ops):
        return
    main = mlir.body(mlir.main_function(module))
    varying = Varying(mesh, axis_groups(manual, mesh))
    find_varying(varying, main, None if mesh or manual else frozenset())
    _join(varying, mlir.operations(main))


def _join(varying: Varying, ops: Sequence[Operation]) -> None:
    """Give the ops' values their leading dimensions. Op by op, so that each keeps its source
    line.
    """
    for op in ops:
        if op.name == MANUAL:
            _join_manual_computation(varying, op)
        elif op.name in mlir.CONTROL_FLOW:
            _join_control_flow(varying, op)
        elif any(v in varying.numbers for v in op.results):
            replace(varying, op, [_numbers_constant(varying, op)])
        elif any(v in varying.collectives for v in op.results):
            replace(varying, op, _exchanged(varying, op, varying.collectives[op.results[0]]))
        elif varying.joined(mlir.results(op)):
            _join_computation(varying, op)


def _join_manual_computation(varying: Varying, op: Operation) -> None:
    """Split the operands, put the body in front of the op, and the results together."""
    block = op.regions[0].blocks[0]
    inputs, outputs = (
        shardings(op, name, varying.mesh) or [] for name in ("in_shardings", "out_shardings")
    )
    for argument, operand, dims in zip(block.arguments, mlir.operands(op), inputs, strict=True):
        rename(varying, argument, _parts(varying, argument, operand, dims, op))
    *ops, last = mlir.operations(block)
    for inner in ops:
        inner.move_before(op)
    _join(varying, ops)
    returned = zip(mlir.operands(last), op.results, outputs, strict=True)
    replace(varying, op, [_whole(varying, v, result, dims, op) for v, result, dims in returned])


def _parts(
    varying: Varying, argument: Value, operand: Value, dims: tuple[Names, ...], op: Operation
) -> Value:
    if argument in varying.handed:
        return varying.parts[placed(operand)]
    if not sharded_axes(dims):
        return operand
    lead = varying.of(operand)
    mesh, renamed = fuse(varying.groups, varying.mesh, [lead, *dims])
    function = partial(split, lead=renamed(lead), dims=tuple(map(renamed, dims)), mesh=mesh)
    shape = (*varying.sizes(varying.of(argument)), *mlir.shape(argument))
    return apply(varying, function, operand, tuple(mesh[name] for name in renamed(lead)), shape, op)


def _whole(
    varying: Varying, value: Value, result: Value, dims: tuple[Names, ...], op: Operation
) -> Value:
    """The whole of the parts; where devices should agree, the first's, unless examples tell."""
    lead, kept = varying.of(value), varying.of(result)
    if lead == kept and not sharded_axes(dims):
        return value
    mesh, renamed = fuse(varying.groups, varying.mesh, [lead, kept, *dims])
    function = partial(
        put_together,
        lead=renamed(lead),
        kept=renamed(kept),
        dims=tuple(map(renamed, dims)),
        mesh=mesh,
    )
    shape = (*varying.sizes(kept), *mlir.shape(result))
    whole = apply(varying, function, value, tuple(mesh[name] for name in renamed(lead)), shape, op)
    if frozenset(lead) - frozenset(kept) - sharded_axes(dims):
        return splice([whole], single(agreed), op)[0]
    varying.parts[whole] = value
    return whole


def _join_control_flow(varying: Varying, op: Operation) -> None:
    """Initial values, and what each block returns, have the dimensions of the results."""
    leads = [varying.of(result) for result in op.results]
    if op.name == "stablehlo.while":
        align_operands(varying, op, leads)
    for result in op.results:
        extend(varying, result)
    for number, block in enumerate(region.blocks[0] for region in op.regions):
        for argument in block.arguments:
            extend(varying, argument)
        *ops, last = mlir.operations(block)
        _join(varying, ops)
        if op.name != "stablehlo.while" or number == 1:
            align_operands(varying, last, leads)


def _numbers_constant(varying: Varying, op: Operation) -> Value:
    axes = varying.of(op.results[0])
    numbers = along(varying.numbers[op.results[0]], axes, varying.mesh).reshape(varying.sizes(axes))
    return splice([], lambda: (jnp.asarray(numbers),), op)[0]


def _exchanged(varying: Varying, op: Operation, collective: Collective) -> list[Value]:
    made: list[Value] = []
    for operand, result in zip(mlir.operands(op), op.results, strict=True):
        lead = in_order(frozenset(varying.of(operand)) | frozenset(collective.axes), varying.mesh)
        repeated = aligned(varying, operand, lead, op)
        varying.axes[repeated] = lead
        shape = (*varying.sizes(varying.of(result)), *mlir.shape(result))
        made.append(
            apply(
                varying,
                partial(collective.exchange, lead=lead),
                repeated,
                varying.each(lead),
                shape,
                op,
            )
        )
    return made


def _join_computation(varying: Varying, op: Operation) -> None:
    axes = varying.joined(mlir.results(op))
    if is_annotation(op):
        replace(varying, op, mlir.operands(op))
    elif op.name == mlir.BARRIER:
        for result in op.results:
            extend(varying, result)
    elif has_leading_dims(op, lambda v: bool(varying.of(v))):
        align_operands(varying, op, [axes] * len(array_operands(op)))
        add_leading_dims(op, varying.sizes(axes))
    elif is_known_kernel(op):
        call_for_all(varying, op, axes)
    else:
        replace(varying, op, map_op(varying, op, axes))
