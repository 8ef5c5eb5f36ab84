"""Static shapes: given a flat `main` of static arguments and results, static shapes inside, too.

    %n = get_dimension_size %x, 0            =>    %y = broadcast_in_dim %c : tensor<4x2xf32>
    %y = dynamic_broadcast_in_dim %c, %n

So a `jax.export` artifact with symbolic shapes can be called at fixed ones.
"""

import contextlib

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.errors import Refusal
from hlo_surgery.passes.ir.mlir import Module, Operation, ir
from hlo_surgery.passes.ir.source_lines import reason_at
from hlo_surgery.passes.normalise.held_divisions import (
    fold_divisions,
    hold_divisions,
    release_divisions,
)

HELP = (
    "lower or export the function at fixed shapes, or call the jax.export artifact at fixed ones: "
    "jax.jit(exported.call).lower(...)"
)

REFINING = ("stablehlo-refine-shapes", "func.func(stablehlo-canonicalize-dynamism)", "canonicalize")


def make_shapes_static(module: Module) -> None:
    """Refine shapes in place. Raises Refusal at the first op whose shape only a run can tell."""
    if _first_dynamic(module):
        hold_divisions(module)
        with contextlib.suppress(
            ir.MLIRError
        ):  # where the pass fails, an op is left to be named below
            mlir.run_passes(module, *REFINING)
            while fold_divisions(module):
                mlir.run_passes(module, *REFINING)
        release_divisions(module)
        _drop_assertions(module)
    dynamic = _first_dynamic(module)
    if dynamic:
        why = "the shape of what this op returns is known at run time only"
        raise Refusal(reason_at(dynamic, why, HELP))


def _first_dynamic(module: Module) -> Operation | None:
    ops = mlir.all_operations(module)
    return next((op for op in ops if not all(is_static(v.type) for v in op.results)), None)


def is_static(kind: ir.Type) -> bool:
    """Whether a type has no size left open."""
    return not isinstance(kind, ir.RankedTensorType) or kind.has_static_shape


def _drop_assertions(module: Module) -> None:
    """Drop what was asserted of the shapes and now is known to hold."""
    for op in mlir.all_operations(module):
        if mlir.text_attribute(op, "call_target_name") == "shape_assertion" and is_splat(
            op.operands[0], 1
        ):
            op.erase()
