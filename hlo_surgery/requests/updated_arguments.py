"""Updated arguments: outputs that are an argument plus or minus something, as new parameters are.

    func @main(%w, %x) { %g = ... ; %step = 0.1 * %g ; %new = %w - %step ; return %new }

returns no gradient, though its output has the name and shape of one. Weight decay, `%g + 0.1 * %w`,
is none of these: what is added there is not the argument itself.
"""

from collections.abc import Sequence

from hlo_surgery.module import Module
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.inlining import inline_calls
from hlo_surgery.passes.ir.mlir import Value

SUMS = frozenset(["stablehlo.add", "stablehlo.subtract"])
SAME = frozenset(
    [
        "stablehlo.convert",
        "stablehlo.optimization_barrier",
        "stablehlo.reshape",
        "sdy.sharding_constraint",
    ]
)


def updated_arguments(module: Module) -> frozenset[int]:
    """The outputs that are an argument of their own shape plus or minus something."""
    code = mlir.clone(module.code)
    inline_calls(code)
    block = mlir.body(mlir.main_function(code))
    arguments = list(block.arguments)
    outputs = mlir.operands(mlir.return_operation(block))
    return frozenset(i for i, value in enumerate(outputs) if _is_updated(value, arguments))


def _is_updated(output: Value, arguments: Sequence[Value]) -> bool:
    """Whether an output is a sum or difference with an argument of its shape as a term."""
    op = mlir.defining_operation(_behind(output))
    if op is None or op.name not in SUMS:
        return False
    terms = map(_behind, mlir.operands(op))
    return any(mlir.shape(t) == mlir.shape(output) for t in terms if t in arguments)


def _behind(value: Value) -> Value:
    """What a value is a copy of: in another dtype, in another shape, or behind a barrier."""
    op = mlir.defining_operation(value)
    while op is not None and op.name in SAME:
        value = mlir.operands(op)[mlir.results(op).index(value)]
        op = mlir.defining_operation(value)
    return value
