"""The user's line, and of the library that it called that of a layer, not of what layers call."""

import pytest

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import reason_at


def located(*paths):
    """An op that was made in these files, innermost first."""
    places = [f'loc("{path}":{line}:0)' for line, path in enumerate(paths, 1)]
    chain = places[-1]
    for place in reversed(places[:-1]):
        chain = f"loc(callsite({place[4:-1]} at {chain[4:-1]}))"
    text = f"""func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {{
      %y = stablehlo.tanh %x : tensor<3xf32> {chain}
      return %y : tensor<3xf32>
    }}"""
    module = mlir.parse(text)
    return mlir.operations(mlir.body(mlir.main_function(module)))[0], module


KERAS = "/v/site-packages/keras/src"
BACKEND, OPS = f"{KERAS}/backend/jax/numpy.py", f"{KERAS}/ops/numpy.py"
LAYER = f"{KERAS}/layers/core/dense.py"


@pytest.mark.parametrize(
    ("inner", "library"),
    [
        ([BACKEND, OPS, LAYER], 3),
        ([LAYER], 1),
        ([BACKEND], 1),
        (["/v/site-packages/flax/linen/linear.py", LAYER], 1),
    ],
)
def test_the_line_of_a_library_is_its_layers(inner, library):
    op, _module = located(*inner, "model.py")
    reason = reason_at(op, "why")
    assert reason.where == f"model.py:{len(inner) + 1}"
    named = inner[library - 1].removeprefix("/v/site-packages/")
    assert reason.library == f"{named}:{library}"
