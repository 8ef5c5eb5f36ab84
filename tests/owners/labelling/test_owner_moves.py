"""Moves of labels: XLA, which moves an array of the owners as it moves any other, is the oracle."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.owners import owned_ops
from hlo_surgery.passes.owners.constants import FIRST_INDEX
from hlo_surgery.passes.owners.labelling.frames import joined
from hlo_surgery.passes.owners.labelling.indexed_moves import (
    dynamic_slice,
    dynamic_update_slice,
    gather,
    scatter,
)
from hlo_surgery.passes.owners.labelling.labels import MANY, NONE, Labels, everywhere
from hlo_surgery.passes.owners.labelling.landing import cleared, landed
from hlo_surgery.passes.owners.labelling.moves import LABEL_MOVES
from hlo_surgery.passes.owners.owners import Owners
from tests.owners.labelling.test_labels import assert_widened, drawn, elements, labelled
from tests.raising.single_ops import execute, lowered_ops

SHAPE = (4, 6)
INDEXED = {
    "stablehlo.dynamic_slice": dynamic_slice,
    "stablehlo.dynamic_update_slice": dynamic_update_slice,
    "stablehlo.gather": gather,
}
ROWS, COLUMNS = np.array([3, 0, 0, 2]), np.array([5, 1, 2, 9])
PLACED = {
    "reshape": lambda x: x.reshape(8, 3),
    "slice": lambda x: x[1:4, 5:0:-2],
    "slice with strides": lambda x: lax.slice(x, (0, 1), (4, 6), (3, 2)),
    "reverse": lambda x: lax.rev(x, (0, 1)),
    "pad": lambda x: lax.pad(x, np.int32(NONE), ((1, 0, 1), (-2, 3, 0))),
    "concatenate": lambda x: lax.concatenate([x, lax.slice(x, (1, 0), (3, 6))], 0),
    "dynamic_slice": lambda x: lax.dynamic_slice(x, (2, 9), (2, 3)),
    "gather": lambda x: x[ROWS],
    "gather of elements": lambda x: x[ROWS, COLUMNS],
    "gather of one element": lambda x: lax.gather(
        x, np.array([3, 5]), lax.GatherDimensionNumbers((), (0, 1), (0, 1)), (1, 1)
    ),
    "gather of windows": lambda x: lax.gather(
        x,
        ROWS[:, None],
        lax.GatherDimensionNumbers((0,), (0,), (1,)),
        (1, 6),
    ),
    "gather of blocks": lambda x: lax.gather(
        x,
        ROWS[:, None],
        lax.GatherDimensionNumbers((1, 2), (), (0,)),
        (2, 6),
    ),
}


def moved(op, operands):
    owners = Owners(3)
    if op.name in LABEL_MOVES:
        return LABEL_MOVES[op.name](op, operands, 3)
    return INDEXED[op.name](owners, op, operands)


def ops_of(function, *arrays):
    names = ("reshape", "slice", "reverse", "pad", "concatenate", *("dynamic_slice", "gather"))
    names += ("dynamic_update_slice",)
    found = [op for n in names for op in lowered_ops(f"stablehlo.{n}", function, *arrays)]
    return [op for op in found if mlir.shape(op.operands[0]) in (SHAPE, (2, 6))]


def test_every_move_at_indices_says_which_operands_are_indices():
    assert FIRST_INDEX.keys() == {*owned_ops.INDEXED, "stablehlo.scatter"}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", PLACED)
def test_elements_keep_their_owners(name, seed):
    array = drawn(SHAPE, seed)
    found = 0
    for op in ops_of(PLACED[name], array):
        arrays = [drawn(mlir.shape(v), seed) for v in op.operands]
        if op.name == "stablehlo.pad":
            arrays[1] = np.full((), NONE, np.int32)
        places = [np.asarray(a) for a in _known(op)]
        (expected,) = execute(op, [*arrays[: len(arrays) - len(places)], *places])
        labels = [labelled(a) for a in arrays[: len(arrays) - len(places)]]
        labels += [labelled(np.full(p.shape, NONE)) for p in places]
        assert_widened(moved(op, labels), expected)
        found += 1
    assert found


def _known(op):
    """The numbers of the indices, by the analysis' own evaluation."""
    from hlo_surgery.passes.owners.labelling.indices import integers_of

    first = {"stablehlo.dynamic_slice": 1, "stablehlo.gather": 1}.get(op.name, len(op.operands))
    return [integers_of(Owners(3), v).astype(np.int32) for v in list(op.operands)[first:]]


@pytest.mark.parametrize("start", [(1, 4), (3, 9), (-2, 1)])
def test_an_update_lands_where_it_is_put(start):
    (op,) = lowered_ops(
        "stablehlo.dynamic_update_slice",
        lambda x, u: lax.dynamic_update_slice_p.bind(x, u, *map(np.int32, start)),
        jnp.zeros(SHAPE, jnp.int32),
        jnp.zeros((2, 2), jnp.int32),
    )
    old, new = drawn(SHAPE, 0), drawn((2, 2), 1)
    expected = old.copy()
    row, column = np.clip(start, 0, (2, 4))
    expected[row : row + 2, column : column + 2] = new
    none = [labelled(np.int32(NONE))] * 2
    assert_widened(
        dynamic_update_slice(Owners(3), op, [labelled(old), labelled(new), *none]), expected
    )


def test_what_lands_somewhere_may_be_anywhere():
    (op,) = lowered_ops(
        "stablehlo.dynamic_update_slice",
        lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 0)),
        jnp.zeros(SHAPE, jnp.int32),
        jnp.zeros((1, 6), jnp.int32),
        jnp.int32(0),
    )
    columns = np.arange(6)[None]
    none = [labelled(np.int32(NONE))] * 2
    old = labelled(np.full(SHAPE, NONE))
    found = dynamic_update_slice(Owners(6), op, [old, labelled(columns), *none])
    assert_widened(found, np.broadcast_to(columns, SHAPE))


def test_a_scatter_puts_rows_where_they_belong():
    (op,) = lowered_ops(
        "stablehlo.scatter",
        lambda x, u: x.at[ROWS].add(u),
        jnp.zeros(SHAPE),
        jnp.zeros((4, 6)),
    )
    update = np.broadcast_to(np.array([3, 1, 1, 2])[:, None], (4, 6))
    nobody = labelled(np.full(SHAPE, NONE)), labelled(np.full((4, 1), NONE))
    _, landed, _ = scatter(Owners(4), op, [*nobody, labelled(update)])
    expected = np.broadcast_to(np.array([1, NONE, 2, 3])[:, None], SHAPE)
    assert_widened(landed, expected)


def test_what_a_scatter_adds_to_stays():
    (op,) = lowered_ops(
        "stablehlo.scatter",
        lambda x, u: x.at[ROWS].add(u),
        jnp.zeros(SHAPE),
        jnp.zeros((4, 6)),
    )
    old = drawn(SHAPE, 0)
    nobody = labelled(np.full((4, 1), NONE)), labelled(np.full((4, 6), NONE))
    _, _, stays = scatter(Owners(4), op, [labelled(old), *nobody])
    np.testing.assert_array_equal(elements(stays), old)


def test_one_element_that_is_overwritten_leaves_the_others_to_their_owners():
    (op,) = lowered_ops(
        "stablehlo.scatter", lambda x, u: x.at[2, 5].set(u), jnp.zeros(SHAPE), jnp.zeros(())
    )
    old = drawn(SHAPE, 0)
    index, update = labelled(np.full(2, NONE)), labelled(np.int32(1))
    _, landed, stays = scatter(Owners(4), op, [labelled(old), index, update])
    old[2, 5] = NONE
    assert_widened(stays, old)
    assert (elements(landed) == np.where(np.arange(24).reshape(SHAPE) == 17, 1, NONE)).all()


@pytest.mark.parametrize("start", [-1, 0, 1])
def test_a_window_as_long_as_the_array_lands_at_its_start_or_nowhere(start):
    numbers = lax.ScatterDimensionNumbers((0, 1), (), (0,))
    (op,) = lowered_ops(
        "stablehlo.scatter",
        lambda x, u: lax.scatter(x, np.array([start]), u, numbers, mode="drop"),
        jnp.zeros(SHAPE),
        jnp.zeros(SHAPE),
    )
    old, new = drawn(SHAPE, 0), drawn(SHAPE, 1)
    index = labelled(np.full(1, NONE))
    _, _, stays = scatter(Owners(4), op, [labelled(old), index, labelled(new)])
    assert_widened(stays, np.full(SHAPE, NONE) if start == 0 else old)


def gathered(index, owners):
    """The labels of x[i], for the owners of x and of i."""
    (op,) = lowered_ops(
        "stablehlo.gather",
        lambda x, i: x[i[:, 0], i[:, 1]],
        jnp.zeros(SHAPE),
        jnp.zeros((4, 2), jnp.int32),
    )
    return gather(Owners(6), op, [labelled(owners), labelled(index)])


def test_an_index_of_two_examples_is_of_several():
    index = np.broadcast_to([0, 1], (4, 2))
    assert (elements(gathered(index, np.full(SHAPE, NONE))) == MANY).all()


@pytest.mark.parametrize("owners", [np.arange(4)[:, None], np.arange(6)])
def test_what_is_taken_from_somewhere_may_be_of_any(owners):
    found = gathered(np.full((4, 2), NONE), np.broadcast_to(owners, SHAPE))
    assert (elements(found) == MANY).all()


def test_of_several_that_land_somewhere_any_may_be_there():
    (op,) = lowered_ops(
        "stablehlo.dynamic_update_slice",
        lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 0)),
        jnp.zeros(SHAPE, jnp.int32),
        jnp.zeros((2, 6), jnp.int32),
        jnp.int32(0),
    )
    rows = np.broadcast_to(np.arange(2)[:, None], (2, 6))
    none = [labelled(np.int32(NONE))] * 2
    old = labelled(np.full(SHAPE, NONE))
    found = dynamic_update_slice(Owners(6), op, [old, labelled(rows), *none])
    assert (elements(found) == MANY).all()


def test_what_fills_up_is_its_owners():
    (op,) = lowered_ops(
        "stablehlo.pad", lambda x, v: lax.pad(x, v, ((1, 0, 0), (0, 0, 0))), jnp.zeros(SHAPE), 0.0
    )
    found = LABEL_MOVES["stablehlo.pad"](
        op, [labelled(np.full(SHAPE, NONE)), labelled(np.int32(2))], 3
    )
    assert (elements(found) == 2).all()


def test_what_fills_up_beside_one_example_stays_nobodys():
    (op,) = lowered_ops(
        "stablehlo.pad", lambda x, v: lax.pad(x, v, ((0, 2, 0), (0, 0, 0))), jnp.zeros(SHAPE), 1.0
    )
    own = everywhere(np.int32(1), SHAPE)
    found = elements(LABEL_MOVES["stablehlo.pad"](op, [own, labelled(np.int32(NONE))], 3))
    assert (found[: SHAPE[0]] == 1).all()
    assert (found[SHAPE[0] :] == NONE).all()


def test_updates_of_each_step_by_itself():
    """At each of three steps two elements land, the second of nobody's."""
    update = Labels(((2,),), np.array([[0, NONE], [1, NONE], [2, NONE]], np.int32))
    places = np.array([[0, 3], [1, 3], [3, 0]])
    old, shape = labelled(np.array([7, 7, 7, 7], np.int32)), (4,)
    found = landed(1, update, [places], shape, by_step=True)
    kept = cleared(1, old, (2,), [places], shape, by_step=True)
    expected = [[0, 7, 7, NONE], [7, 1, 7, NONE], [NONE, 7, 7, 2]]
    np.testing.assert_array_equal(elements(joined([kept, found]), (3,)), expected)
    together = joined([cleared(1, old, (2,), [places], shape), landed(1, update, [places], shape)])
    assert (elements(together, (1,))[0, [0, 1, 3]] == MANY).all()
