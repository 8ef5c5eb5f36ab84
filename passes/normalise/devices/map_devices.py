"""Map over devices: given an op and its operands' mesh axes, the op on all devices' values at once.

%z = dot_general %x, %w
    %x differs along "data", %w along "model"    =>  vmap(vmap(dot_general))
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import jax
from jax import lax

from hlo_surgery.passes.emit.counted_loop import counted_loop
from hlo_surgery.passes.emit.splice import splice
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.mlir import Operation, Value
from hlo_surgery.passes.normalise.devices.device_mesh import Names
from hlo_surgery.passes.normalise.devices.device_values import Varying, aligned
from hlo_surgery.passes.raising.raise_op import raise_op

OnArrays = Callable[..., Sequence[jax.Array]]


def map_op(varying: Varying, op: Operation, axes: Names) -> list[Value]:
    """The op on each device's values, by vmap over one leading dimension after the other.

    Convolutions of two operands that both differ are taken in turn: vmap would make feature groups
    of the devices.
    """
    raised = raise_op(op)
    assert raised is not None
    layout = varying.layout(axes)
    values, function = mlir.operands(op), cast(OnArrays, raised)
    touched = [
        [names for names in layout if frozenset(names) & frozenset(varying.of(v))] for v in values
    ]
    leads = [tuple(name for names in dims for name in names) for dims in touched]
    for names in reversed(layout):
        if op.name == "stablehlo.convolution" and all(names in dims for dims in touched):
            function = partial(_in_turn, function)
        else:
            function = jax.vmap(function, tuple(0 if names in dims else None for dims in touched))
    return splice(
        [aligned(varying, v, lead, op) for v, lead in zip(values, leads, strict=True)], function, op
    )


def _in_turn(function: OnArrays, *arrays: jax.Array) -> Sequence[jax.Array]:
    take = partial(lax.dynamic_index_in_dim, keepdims=False, allow_negative_indices=False)

    def on_one(nothing: tuple[()], number: jax.Array) -> tuple[tuple[()], Sequence[jax.Array]]:
        return nothing, function(*(take(each, number) for each in arrays))

    return counted_loop(on_one, (), arrays[0].shape[0])[1]
