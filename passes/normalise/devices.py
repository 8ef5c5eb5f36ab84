"""Devices: given a program for each device, as `jax.shard_map` makes it, one for all at once.

    manual_computation(%x : 8x3) in_shardings = [{"data"}]         %a = reshape %x : 8x3 -> 4x2x3
      (%a : 2x3) { %y = tanh %a : 2x3                         =>   %y = tanh %a : 4x2x3
                   %z = all_reduce %y over "data" }                %z = reduce %y over dimension 0

What differs from device to device has leading dimensions for the mesh axes along which it does.
What is the same on all devices stays as it is.

Kernels on several devices: given a kernel of a program for each device, a call for all at once.

    custom_call @tpu_custom_call(%x : 2x8) on each of    =>    custom_call @tpu_custom_call(%x :
    four devices along "data"                                  4x2x8) {over_devices = [["data"]]}

XLA cannot split a kernel. So at the end each device has the kernel to itself again:

    manual_computation(%x : 4x2x8) in_shardings = [{"data"}, {}, {}]
      (%a : 1x2x8) { reshape, the kernel as it was, reshape }
"""

import json
from collections.abc import Iterable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from hlo_surgery.passes.dataflow.mosaic_kernels import OVER_DEVICES, is_known_kernel, leading
from hlo_surgery.passes.emit.splice import splice
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import Arrays
from hlo_surgery.passes.ir.mlir import (
    Attributes,
    Module,
    Operation,
    Operations,
    Value,
    Values,
    ir,
    sdy,
)
from hlo_surgery.passes.ir.modules import is_annotation, meshes
from hlo_surgery.passes.normalise.collectives import (
    Names,
    agreed,
    manual_axes,
    mesh_of,
    put_together,
    sharded_axes,
    shardings,
    split,
)
from hlo_surgery.passes.normalise.out_of_scope import COLLECTIVES, MANUAL, refusal
from hlo_surgery.passes.normalise.varying import (
    Varying,
    align_operands,
    aligned,
    extend,
    find_varying,
    rename,
    replace,
)
from hlo_surgery.passes.raising.leading_dims import (
    add_leading_dims,
    array_operands,
    has_leading_dims,
)
from hlo_surgery.passes.raising.raise_op import Raised, raise_op, single

LAYOUTS = ("operand_layouts", "result_layouts")
WAITING = "own_"


def call_for_all(varying: Varying, op: Operation, axes: Names) -> None:
    """Give a kernel's operands and results their leading dimensions. Layouts, which are for ranks
    as they were, wait under another name.
    """
    align_operands(varying, op, [axes] * len(op.operands))
    for name in LAYOUTS:
        if name in op.attributes:
            op.attributes[WAITING + name] = op.attributes[name]
            del op.attributes[name]
    extend(varying, op.results)
    with mlir.context():
        op.attributes[OVER_DEVICES] = ir.ArrayAttr.get([ir.StringAttr.get(name) for name in axes])


def over_devices(module: Module) -> Operations:
    """The kernels that are called for several devices at once."""
    ops = mlir.all_operations(module)
    return [op for op in ops if leading(op) and is_known_kernel(op)]


def call_on_each(module: Module) -> None:
    """Give each device its kernels to itself."""
    for op in over_devices(module):
        axes = [str(name.value) for name in mlir.entries(op, OVER_DEVICES)]
        mesh, names = next((mesh, [*n]) for mesh, n, _ in meshes(module) if n.keys() >= {*axes})
        _wrap(op, mesh, axes, names)


def _wrap(op: Operation, mesh: str, axes: list[str], names: list[str]) -> None:
    lead = len(axes)
    with mlir.context(), op.location, ir.InsertionPoint(op):
        placed = [_shardings(mesh, axes, values) for values in (op.operands, op.results)]
        manual = ir.Attribute.parse(f"#sdy<manual_axes{{{', '.join(map(json.dumps, names))}}}>")
        kinds, operands = [v.type for v in op.results], list(op.operands)
        made = sdy.ManualComputationOp(kinds, operands, *placed, manual).operation
        block = made.regions[0].blocks.append(*(_part(v, [1] * lead, lead) for v in operands))
    with mlir.context(), op.location, ir.InsertionPoint(block):
        own = [_reshaped(a, _part(a, [], lead)) for a in block.arguments]
        kernel = ir.Operation.create(
            op.name, [_part(v, [], lead) for v in op.results], own, _own_attributes(op)
        )
        sdy.ReturnOp([_reshaped(v, _part(v, [1] * lead, 0)) for v in kernel.results])
    mlir.replace(op, mlir.results(made))


def _own_attributes(op: Operation) -> Attributes:
    """The kernel's, as it was written for one device."""
    found = {name: x for name, x in mlir.attributes(op).items() if name != OVER_DEVICES}
    return {name.removeprefix(WAITING): x for name, x in found.items()}


def _shardings(mesh: str, axes: list[str], values: Iterable[Value]) -> ir.Attribute:
    """Along these axes in front, and no others."""
    ranks = [len(mlir.shape(v)) - len(axes) for v in values]
    front = [f"{{{json.dumps(name)}}}" for name in axes]
    rows = [f"<@{json.dumps(mesh)}, [{', '.join([*front, *['{}'] * n])}]>" for n in ranks]
    return ir.Attribute.parse(f"#sdy.sharding_per_value<[{', '.join(rows)}]>")


def _part(value: Value, front: list[int], dropped: int) -> ir.Type:
    """The type of a value with other dimensions in front."""
    return mlir.tensor_type(value, [*front, *mlir.shape(value)[dropped:]])


def _reshaped(value: Value, kind: ir.Type) -> Value:
    return ir.Operation.create("stablehlo.reshape", [kind], [value]).result


def join_devices(module: Module) -> None:
    """Replace every manual computation of a flat main. Raises Refusal where one does what no rule
    covers.
    """
    mesh = mesh_of(module)
    if mesh is not None and not mlir.op_names(module).isdisjoint({*COLLECTIVES, MANUAL}):
        main = mlir.main_function(module)
        _join(find_varying(main.operation, mesh), mlir.operations(mlir.body(main)), ())


def _join(varying: Varying, ops: Operations, manual: Names) -> None:
    """Give the ops' values their leading dimensions. Op by op, so that each keeps its source line.
    `manual`: the axes of the manual computations around them.
    """
    for op in ops:
        first = op.results[0] if len(op.results) else None
        if op.name == MANUAL:
            _join_manual_computation(varying, op, manual)
        elif op.name in mlir.CONTROL_FLOW:
            _join_control_flow(varying, op, manual)
        elif first in varying.numbers:
            replace(varying, op, splice([], partial(_number, varying, op), op))
        elif first in varying.collectives:
            replace(varying, op, _exchanged(varying, op))
        elif varying.joined(op.results):
            _join_computation(varying, op)


def _join_manual_computation(varying: Varying, op: Operation, manual: Names) -> None:
    """Split the operands, put the body in front of the op, and the results together."""
    mesh, block = varying.mesh, mlir.blocks(op)[0]
    inputs, outputs = (shardings(op, name, mesh) for name in ("in_shardings", "out_shardings"))
    for argument, operand, dims in zip(block.arguments, mlir.operands(op), inputs, strict=True):
        parts = partial(split, lead=varying.of(operand), dims=dims, mesh=mesh)
        handed = splice([operand], single(parts), op)[0] if sharded_axes(dims) else operand
        rename(varying, argument, handed)
    *ops, last = mlir.operations(block)
    for inner in ops:
        inner.move_before(op)
    own = {*manual, *manual_axes(op, mesh)}
    _join(varying, ops, tuple(own))
    if not own.issuperset(varying.joined(last.operands)):
        raise refusal(op, "its values depend on the device's place along axes that are not manual")
    returned = zip(mlir.operands(last), op.results, outputs, strict=True)
    replace(varying, op, [_whole(varying, *each, op) for each in returned])


def _whole(
    varying: Varying, value: Value, result: Value, dims: tuple[Names, ...], op: Operation
) -> Value:
    """The whole of the parts; where devices should agree, the first's, unless examples tell."""
    own, kept = varying.of(value), varying.of(result)
    if own == kept and not sharded_axes(dims):
        return value
    wanted = sharded_axes(dims).union(kept)
    lead = varying.in_order(wanted.union(own))
    function = partial(put_together, lead=lead, kept=kept, dims=dims, mesh=varying.mesh)
    (whole,) = splice([aligned(varying, value, lead, op)], single(function), op)
    if wanted.issuperset(own):
        return whole
    return splice([whole], single(agreed), op)[0]


def _join_control_flow(varying: Varying, op: Operation, manual: Names) -> None:
    """Initial values, and what each block returns, have the dimensions of the results."""
    leads = [varying.of(result) for result in op.results]
    is_loop = op.name == "stablehlo.while"
    blocks = mlir.blocks(op)
    decided = mlir.operands(mlir.return_operation(blocks[0])) if is_loop else op.operands
    if varying.joined(decided):
        what = "how often this loop runs" if is_loop else "which branch is taken"
        raise refusal(op, f"each device decides on its own {what}")
    if is_loop:
        align_operands(varying, op, leads)
    extend(varying, op.results)
    for number, block in enumerate(blocks):
        extend(varying, block.arguments)
        *ops, last = mlir.operations(block)
        _join(varying, ops, manual)
        if not is_loop or number == 1:
            align_operands(varying, last, leads)


def _number(varying: Varying, op: Operation) -> Arrays:
    """What an op makes of the devices' numbers."""
    axes, found = varying.of(op.results[0]), varying.numbers[op.results[0]]
    own = found[tuple(slice(None) if name in axes else 0 for name in varying.mesh)]
    return [jnp.asarray(own)]


def _exchanged(varying: Varying, op: Operation) -> Values:
    collective, made = varying.collectives[op.results[0]], list[Value]()
    for operand in mlir.operands(op):
        lead = varying.in_order((*varying.of(operand), *collective.axes))
        function = partial(collective.on_arrays, lead=lead)
        made += splice([aligned(varying, operand, lead, op)], single(function), op)
    return made


def _join_computation(varying: Varying, op: Operation) -> None:
    axes = varying.joined(op.results)
    if is_annotation(op):
        replace(varying, op, mlir.operands(op))
    elif op.name == mlir.BARRIER:
        extend(varying, op.results)
    elif varying.joined(mlir.captured(op)):
        raise _unknown(op)
    elif has_leading_dims(op, lambda v: bool(varying.of(v))):
        align_operands(varying, op, [axes] * len(array_operands(op)))
        add_leading_dims(op, varying.sizes(axes))
    elif is_known_kernel(op):
        call_for_all(varying, op, axes)
    else:
        replace(varying, op, _mapped(varying, op, axes))


def _mapped(varying: Varying, op: Operation, axes: Names) -> Values:
    """The op on each device's values, by vmap over one leading dimension after the other.

    Convolutions of two operands that both differ are taken in turn: vmap would make feature groups
    of the devices.
    """
    function, values = raise_op(op), mlir.operands(op)
    if function is None:
        raise _unknown(op)
    for name in reversed(axes):
        differ = [name in varying.of(v) for v in values]
        if op.name == "stablehlo.convolution" and all(differ):
            function = partial(_in_turn, function)
        else:
            function = jax.vmap(function, [0 if each else None for each in differ])
    return splice(values, function, op)


def _in_turn(function: Raised, *arrays: Array) -> Arrays:
    return lax.map(lambda each: function(*each), arrays)


def _unknown(op: Operation) -> Exception:
    return refusal(op, "nothing is known of how it works on several devices' values at once")
