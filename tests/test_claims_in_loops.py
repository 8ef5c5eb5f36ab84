"""Claims by probe inside loops: what the analysis says of a value there holds in every step.

After the analysis each loop is unrolled, and the copies of a value inherit its class; then all
values are returned and probed, as those of the single ops are. The loops stay beside their steps,
which must give what they give.
"""

from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from hlo_surgery.module import Module
from hlo_surgery.passes.example_axes import sharding_rules
from hlo_surgery.passes.example_axes.counters import counter_values
from hlo_surgery.passes.example_axes.example_axes import find_example_axes
from hlo_surgery.passes.example_axes.lattice import PerExample, Shared, Summed
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.normalise.normalize import normalize

from . import test_control_flow as programs
from .single_ops import random_array
from .test_claims import ROUNDING, assert_claims_hold

STACKED, SINGLE = programs.stacked(), programs.single()
FEATURES, SEQUENCES = programs.features()[:3], programs.sequences()[:, :3]
UNROLLED = {
    programs.layers: (STACKED, FEATURES, 0),
    programs.layers_checkpointed: (STACKED, FEATURES, 0),
    programs.layers_regularised_inside: (STACKED, FEATURES, 0),
    programs.layers_cumulated: (STACKED, FEATURES, 0),
    programs.recurrent: (SINGLE, SEQUENCES, 1),
    programs.recurrent_in_chunks: (SINGLE, SEQUENCES, 1),
    programs.recurrent_with_shared_state: (SINGLE, SEQUENCES, 1),
    programs.lstm: (programs.SEPARABLE["lstm"][1], SEQUENCES, 1),
}


def lowered(loss, params, x):
    """The gradient function in 64 bits."""
    with jax.enable_x64(True):
        params, x = jax.tree.map(lambda a: np.asarray(a, np.float64), (params, x))
        return jax.jit(jax.grad(loss), keep_unused=True).lower(params, x).as_text()


class Unrolled:
    """A program's classes, value by value and step by step, and its function with every value
    returned.
    """

    def __init__(self, loss, params, x, axis):
        code = mlir.parse(lowered(loss, params, x))
        normalize(code)
        main, batch = mlir.main_function(code), len(jax.tree.leaves(params))
        sharding_rules.populate(code)
        self.size = x.shape[axis]
        self.axes = find_example_axes(main, {batch: axis}, self.size, ())
        sharding_rules.strip(code)
        claims = dict(self.axes.classes)
        twins = unroll(mlir.body(main), claims, lambda value, step: claims.get(value, Shared()))
        values = [r for op in mlir.operations(mlir.body(main))[:-1] for r in op.results]
        self.twins = [
            (values.index(result), values.index(value))
            for result, value in twins
            if value in values
        ]
        mlir.set_results(main, values, [])
        self.classes = [claims.get(v, Shared()) for v in values]
        # The probe counts batch arguments from the second one on; the first is a parameter.
        self.row, self.module = SimpleNamespace(axes={batch - 1: axis}), Module(code)

    def draw(self, rng):
        arguments = mlir.body(mlir.main_function(self.module.code)).arguments
        return [random_array(mlir.shape(a), dtype_of(a), rng) for a in arguments]

    def run(self, arrays):
        return [np.asarray(y) for y in self.module.call(*arrays)]


def unroll(block, claims, claimed):
    """Put every loop's steps before it, and use what they return instead: pairs of the loop's
    result and that. `claimed`: what is claimed of the copy of a value at a step.
    """
    twins = {}
    while loops := [
        op
        for op in mlir.operations(block)
        if op.name == "stablehlo.while" and op.results[0] not in twins
    ]:
        for loop in loops:
            carries = mlir.operands(loop)
            for step in range(len(next(iter(counter_values(loop).values())))):
                carries = take_step(loop, carries, claims, partial(claimed, step=step))
            for result, value in zip(loop.results, carries, strict=True):
                result.replace_all_uses_with(value)
                twins[result] = value
    return twins.items()


def take_step(loop, carries, claims, claimed):
    """Copy the body before the loop, its arguments bound; the values that it returns.

    `claimed`: what is claimed of the copy of a value.
    """
    step = loop.clone().operation
    for one, other in zip(mlir.nested_operations(loop), mlir.nested_operations(step), strict=True):
        for old, new in zip(one.results, other.results, strict=True):
            claims[new] = claimed(old)
    body = step.regions[1].blocks[0]
    for argument, carry in zip(body.arguments, carries, strict=True):
        argument.replace_all_uses_with(carry)
    *ops, last = mlir.operations(body)
    for op in ops:
        op.move_before(loop)
    return mlir.operands(last)


def assert_the_steps_give_what_the_loops_give(unrolled):
    values = unrolled.run(unrolled.draw(np.random.default_rng(0)))
    assert unrolled.twins
    for result, value in unrolled.twins:
        np.testing.assert_allclose(values[value], values[result], rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("loss", UNROLLED, ids=lambda loss: loss.__name__)
def test_claims_hold_in_every_step(loss):
    unrolled = Unrolled(loss, *UNROLLED[loss])
    assert {type(known) for known in unrolled.classes} == {Shared, PerExample, Summed}
    assert_the_steps_give_what_the_loops_give(unrolled)
    assert_claims_hold(unrolled)


@pytest.mark.parametrize("kind", [PerExample, Summed])
def test_a_false_claim_about_what_a_step_returns_is_seen(kind):
    unrolled = Unrolled(programs.layers, *UNROLLED[programs.layers])
    returned = next(
        value for _, value in unrolled.twins if isinstance(unrolled.classes[value], kind)
    )
    unrolled.classes[returned] = Shared()
    with pytest.raises(AssertionError):
        assert_claims_hold(unrolled)
