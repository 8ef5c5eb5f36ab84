"""Claims of owners inside loops: what they say of a value at a step holds for the copy of it that
unrolling makes for that step.
"""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_surgery.module import Module
from hlo_surgery.passes.dataflow import sharding_rules
from hlo_surgery.passes.dataflow.counters import counter_values
from hlo_surgery.passes.emit.main_signature import set_results
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.normalise.normalize import normalize
from hlo_surgery.passes.owners.analysis import find_owners
from hlo_surgery.passes.owners.classes import Owned, Summed
from hlo_surgery.passes.owners.labelling.labels import Labels, nobodys
from tests.loops import test_control_flow as programs
from tests.owners.claims.probes import ROUNDING, Probed, assert_claims_hold

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


W = np.sin(np.arange(6.0)).reshape(2, 3)
X = np.cos(np.arange(8.0)).reshape(4, 2)


def energy(w, rows):
    return jnp.sum(jnp.tanh(rows @ w) ** 2)


def over_parts(parts):
    return lambda w, x: lax.scan(lambda s, p: (s + energy(w, p), None), 0.0, parts(x))[0]


def numbered(order):
    return lambda w, x: lax.fori_loop(
        0, len(order), lambda i, s: s + energy(w, x[jnp.array(order)[i]]), 0.0
    )


def stacked(w, x):
    return jnp.sum(lax.map(lambda row: jnp.tanh(row @ w), x) * x[:, :1])


def nested(w, x):
    return jnp.sum(lax.map(lambda p: lax.map(lambda r: energy(w, r), p), x.reshape(2, 2, 2)))


def groups_at_a_time(w, x):
    def of_group(rows):
        return lax.scan(lambda s, row: (s + energy(w, row), None), 0.0, rows)[0]

    return jnp.sum(jax.vmap(of_group)(x.reshape(2, 2, 2)))


PARTED = {
    "examples": over_parts(lambda x: x),
    "microbatches": over_parts(lambda x: x.reshape(2, 2, 2)),
    "strided microbatches": over_parts(lambda x: x.reshape(2, 2, 2).swapaxes(0, 1)),
    "backwards": numbered([3, 2, 1, 0]),
    "some twice": numbered([3, 0, 0, 1]),
    "stacked": stacked,
    "nested": nested,
    "groups at a time": groups_at_a_time,
    "beside the number": lambda w, x: lax.fori_loop(
        0, 4, lambda i, s: s + i * energy(w, lax.dynamic_slice(x, (i, 0), (1, 2))), 0.0
    ),
}
CASES = {
    **{name: (loss, W, X, 0) for name, loss in PARTED.items()},
    **{loss.__name__: (loss, *case) for loss, case in UNROLLED.items()},
}


class Unrolled:
    """A program with a copy of each loop's body for each step, the classes that hold there, and all
    values returned.
    """

    draw, run = Probed.draw, Probed.run

    def __init__(self, loss, params, x, axis):
        code = mlir.parse(lowered(loss, params, x))
        normalize(code)
        main, batch = mlir.main_function(code), len(jax.tree.leaves(params))
        sharding_rules.populate(code)
        self.size = x.shape[axis]
        self.owners = find_owners(main, {batch: axis}, self.size, [])
        sharding_rules.strip(code)
        block, claims = mlir.body(main), dict(self.owners.classes)
        twins = unroll(block, claims, lambda value, step: at_step(claims.get(value), step))
        values = [r for op in mlir.operations(block)[:-1] for r in op.results]
        self.classes = [claims.get(v) or Owned(nobodys(mlir.shape(v))) for v in values]
        numbers = {value: number for number, value in enumerate(values)}
        self.twins = [(numbers[r], numbers[v]) for r, v in twins if v in numbers]
        set_results(main, values, [])
        self.row, self.module = SimpleNamespace(axes={batch - 1: axis}), Module(code)


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


def at_step(known, step):
    """What holds at one step of the outermost loop."""
    if not isinstance(known, Owned) or not known.labels.steps:
        return known
    owners = known.labels.owners
    return Owned(Labels(known.labels.digits, owners[step if len(owners) > 1 else 0]))


@pytest.mark.parametrize("name", CASES)
def test_claims_hold_at_every_step(name):
    unrolled = Unrolled(*CASES[name])
    assert any(isinstance(c, Summed) for c in unrolled.classes)
    assert any(isinstance(c, Owned) and not c.is_shared for c in unrolled.classes)
    assert_the_steps_give_what_the_loops_give(unrolled)
    assert_claims_hold(unrolled)


def test_a_false_claim_about_a_step_is_seen():
    unrolled = Unrolled(*CASES["examples"])
    owned = [i for i, c in enumerate(unrolled.classes) if isinstance(c, Owned)]
    single = next(i for i in owned if unrolled.classes[i].labels.owners.tolist() == [2])
    labels = unrolled.classes[single].labels
    unrolled.classes[single] = Owned(Labels(labels.digits, labels.owners - 1))
    with pytest.raises(AssertionError):
        assert_claims_hold(unrolled)
