"""Static shapes: given a module as any frontend dumps it, a refusal where shapes are left open.

%y = dynamic_broadcast_in_dim %c, %n : tensor<?xf32>       its size is known at run time only
"""

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Refusal
from hlo_surgery.passes.ir.mlir import Module, ir
from hlo_surgery.passes.ir.source_lines import reason_at

HELP = "lower or export the function at fixed shapes"


def refuse_dynamic_shapes(module: Module) -> None:
    """Raise Refusal at the first op whose result has a size left open."""
    for op in mlir.all_operations(module):
        if not all(is_static(result.type) for result in op.results):
            why = "the shape of what this op returns is known at run time only"
            raise Refusal(reason_at(op, why, HELP))


def is_static(kind: ir.Type) -> bool:
    """Whether a type has no size left open."""
    return not isinstance(kind, ir.RankedTensorType) or kind.has_static_shape
