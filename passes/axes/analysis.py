"""Analysis: given a flat `main` and the examples' axes, what every value is to the examples.

structured      which dimensions hold the same digits, by unification
classified      Shared, Batched or Mixed, in one forward pass
"""

from collections.abc import Collection, Mapping

from hlo_surgery.passes.axes.classes import ROWS, Shared, is_rows
from hlo_surgery.passes.axes.classify import classify_block
from hlo_surgery.passes.axes.reasons import ROW_OF_EACH
from hlo_surgery.passes.axes.state import State
from hlo_surgery.passes.dataflow.held import held_values
from hlo_surgery.passes.dataflow.hidden_parameters import hidden_parameters
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import Reason
from hlo_surgery.passes.ir.mlir import Block, Value, func
from hlo_surgery.passes.structure.digits import leaves, unify
from hlo_surgery.passes.structure.unification import structured


def find_axes(
    function: func.FuncOp,
    batch: Mapping[int, int],
    size: int,
    gradients: Collection[int],
    contribution: bool = False,
) -> State:
    """Classify every value of a flat function. `batch`: axis of the examples by argument number;
    `size`: B; `gradients`: the outputs that are; `contribution`: take all that is mixed as
    constant.

    The function's ops carry Shardy's rules already.
    """
    block = mlir.body(function)
    structure, digits = structured(block, batch, size)
    while True:
        state = _classified(State(structure, leaves(digits), contribution), block, batch, gradients)
        new = [pair for pair in state.wanted if leaves([pair[0]]) != leaves(pair[1])]
        if not all(unify([digit], dim) for digit, dim in new) or not new:
            return state


def _classified(
    state: State, block: Block, batch: Mapping[int, int], gradients: Collection[int]
) -> State:
    state.held = held_values(block)
    trained = {a for i, a in enumerate(block.arguments) if i not in batch and mlir.is_inexact(a)}
    _classify(state, block, batch, trained | hidden_parameters(block, batch, gradients))
    outputs = mlir.operands(mlir.return_operation(block))
    if any(_is_by_row(state, outputs[number]) for number in gradients):
        # It is no parameter's gradient then, and what it was taken with respect to is no data.
        reached = {a for a in block.arguments if mlir.is_inexact(a)}
        _classify(state, block, batch, state.trained | reached)
    return state


def _is_by_row(state: State, output: Value) -> bool:
    return is_rows(state.of(output)) and bool(state.digits(output))


def _classify(state: State, block: Block, batch: Mapping[int, int], trained: set[Value]) -> None:
    state.classes.clear()
    state.taken.clear()
    state.data.clear()
    state.trained = trained
    for number, argument in enumerate(block.arguments):
        if number in batch:
            state.classes[argument] = ROWS
        elif argument in trained and state.digits(argument):
            term = Reason(ROW_OF_EACH, "func.func", "module")
            state.classes[argument] = Shared(term=term)
    classify_block(state, block)
