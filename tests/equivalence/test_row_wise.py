"""One op at a time, sizes alike: a class says what changing an example moves, whatever the rule."""

import numpy as np
import pytest

from hlo_surgery.module import Module
from hlo_surgery.passes.axes.state import is_rows
from hlo_surgery.passes.dataflow import kernels
from hlo_surgery.passes.dataflow.vanishing import is_uniform
from hlo_surgery.passes.emit.splice import set_results
from hlo_surgery.passes.ir import mlir
from tests.axes.claim_rows import Row
from tests.axes.probes import Probed, assert_claims_hold
from tests.raising.square_ops import OPS, lines

TYPES = ("4x4xf64", "4x4xf64", "4xf64", "4xi32")
CONSTANTS = (
    "%zero = stablehlo.constant dense<0.0> : tensor<f64>",
    "%n = stablehlo.constant dense<1> : tensor<i32>",
)


def row(axes, *names):
    made = [
        line
        for k, name in enumerate(names)
        for line in lines(name, f"{k}_", x="%0", y="%1", z="%2", i="%3")
    ]
    return Row(TYPES, "\n".join([*CONSTANTS, *made]), axes)


@pytest.mark.parametrize(
    "axes", [{0: 0}, {0: 1}, {1: 0}, {0: 0, 1: 0, 2: 0}, {0: 0, 3: 0}, {1: 0, 3: 0}], ids=str
)
def test_what_changing_an_example_moves(axes):
    """An op alone: what one unifies wrongly, it refuses in all others beside it."""
    found = 0
    for name in OPS:
        probed = Probed.of_row(row(axes, name))
        assert_claims_hold(probed)
        found += is_rows(probed.classes[-1])
    assert found


def test_what_is_said_to_be_uniform():
    """Along every dimension of every value made of arrays that are the same along their first, or
    their last.
    """
    made = [
        "%u = stablehlo.broadcast_in_dim %arg0, dims = [1] : (tensor<4xf64>) -> tensor<4x4xf64>",
        "%v = stablehlo.broadcast_in_dim %arg0, dims = [0] : (tensor<4xf64>) -> tensor<4x4xf64>",
        "%o = stablehlo.constant dense<2.0> : tensor<4xf64>",
        "%i = stablehlo.constant dense<1> : tensor<4xi32>",
    ]
    for x, y, z in [("u", "u", "arg0"), ("v", "u", "o"), ("u", "v", "o"), ("v", "v", "arg0")]:
        names = {"x": f"%{x}", "y": f"%{y}", "z": f"%{z}", "i": "%i"}
        made += [line for k, name in enumerate(OPS) for line in lines(name, f"{x}{y}{k}_", **names)]
    text = "\n".join(["func.func @main(%arg0: tensor<4xf64>) {", *CONSTANTS, *made, "return }"])
    code = mlir.parse(text)
    main = mlir.main_function(code)
    kernels.populate(code)
    values = [r for op in mlir.operations(mlir.body(main))[:-1] for r in op.results]
    claimed = [
        (v, d) for v in values for d, n in enumerate(mlir.shape(v)) if n > 1 and is_uniform(v, d)
    ]
    assert len(claimed) > 100
    kernels.strip(code)
    set_results(main, [v for v, _ in claimed], [])
    for (_, dim), found in zip(
        claimed, Module(code).call(np.array([0.5, 2.0, -1.0, 3.0])), strict=True
    ):
        first = np.take(found, [0], dim)
        np.testing.assert_array_equal(found, np.broadcast_to(first, np.shape(found)))
