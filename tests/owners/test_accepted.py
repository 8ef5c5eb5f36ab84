"""What the analysis by owners accepts of programs that move examples, and refuses where they
meet.
"""

import jax
import pytest

from hlo_surgery.module import load
from hlo_surgery.passes.dataflow import sharding_rules
from hlo_surgery.passes.dataflow.ancestors import ancestors
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.normalise.normalize import normalize
from hlo_surgery.passes.owners.analysis import find_owners
from hlo_surgery.passes.owners.verdicts import undivided_reason
from tests.programs.data_moves import MEETINGS, MOVES, B, W, X


def reason(loss):
    """Why the gradient to w is refused."""
    text = jax.jit(jax.grad(loss), keep_unused=True).lower(W, X).as_text(debug_info=True)
    code = mlir.clone(load(text).code)
    normalize(code)
    main = mlir.main_function(code)
    sharding_rules.populate(code)
    block = mlir.body(main)
    (gradient,) = mlir.operands(mlir.return_operation(block))
    return undivided_reason(
        find_owners(main, {1: 0}, B, [0]), block, gradient, ancestors([gradient])
    )


@pytest.mark.parametrize("name", MOVES)
def test_examples_may_be_moved(name):
    assert reason(MOVES[name]) is None


@pytest.mark.parametrize("name", MEETINGS)
def test_examples_may_not_meet(name):
    found = reason(MEETINGS[name])
    assert found is not None
    assert "data_moves" in found.where or "module" in found.where
