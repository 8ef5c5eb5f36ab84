"""Labels over digits, element by element: numpy, on an array with an owner for each element, is the
oracle.
"""

import itertools
import math

import numpy as np
import pytest

from hlo_surgery.passes.owners.labelling.digits import all_whole, canonical, compact, regrouped
from hlo_surgery.passes.owners.labelling.frames import gives_evenly, joined, same
from hlo_surgery.passes.owners.labelling.labels import (
    MANY,
    NONE,
    Labels,
    join,
    nobodys,
    over,
    own_rows,
    undivided,
)

SHAPES = [(), (1,), (6,), (2, 3), (3, 1, 4), (2, 2, 2, 3), (12,), (4, 6)]


def labelled(array):
    """Labels with one digit for each dimension."""
    owners = np.asarray(array, np.int32)
    return Labels(undivided(owners.shape), owners.reshape([n for n in owners.shape if n != 1]))


def elements(labels, steps=()):
    """[*steps, *shape]: the owner of each element."""
    full = np.broadcast_to(all_whole(labels).owners, (*steps, *labels.shape))
    return np.array(full)


def drawn(shape, seed, most=3):
    return np.random.default_rng(seed).integers(NONE, most, shape).astype(np.int32)


def assert_widened(labels, expected):
    """Each element has its owner, or one where it has none."""
    found = elements(labels)
    assert found.shape == expected.shape
    assert ((found == expected) | (expected == NONE)).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(5))
def test_canonical_labels_keep_every_owner(shape, seed):
    array = drawn(shape, seed)
    assert_widened(canonical(labelled(array), 3), array)


def test_constants_get_an_owner_where_all_examples_have_as_many():
    stacked = [[0, NONE], [1, NONE]]
    assert canonical(labelled(stacked), 2).owners.shape == (2, 1)
    np.testing.assert_array_equal(elements(canonical(labelled(stacked), 3)), stacked)


@pytest.mark.parametrize("shape", SHAPES)
def test_compact_labels_are_the_same_in_all_elements(shape):
    array = drawn(shape, 0)
    np.testing.assert_array_equal(elements(compact(labelled(array))), array)


def test_canonical_labels_are_small():
    rows = np.broadcast_to(np.repeat(np.arange(5), 7)[:, None], (35, 4))
    found = canonical(labelled(rows), 5)
    assert found.digits == ((5, 7), (4,))
    assert found.owners.shape == (5, 1, 1)


def test_no_axis_is_dropped_along_which_owners_differ():
    found = canonical(labelled([[0, 1], [1, 0]]), 2)
    np.testing.assert_array_equal(elements(found), [[0, 1], [1, 0]])


@pytest.mark.parametrize(
    ("old", "new"),
    [(a, b) for a, b in itertools.permutations(SHAPES, 2) if math.prod(a) == math.prod(b)],
)
def test_regrouped_labels_are_reshaped_ones(old, new):
    array = drawn(old, 0)
    for labels in (labelled(array), canonical(labelled(array), 3)):
        assert_widened(regrouped(labels, new), array.reshape(new))


def test_regrouping_leaves_rows_of_examples_small():
    found = regrouped(own_rows((6, 1024), 0), (3, 2, 1024))
    assert found.owners.size == 6
    assert regrouped(found, (6 * 1024,)).owners.size == 6


@pytest.mark.parametrize("seed", range(5))
def test_joined_labels_are_joined_elements(seed):
    arrays = [drawn((4, 6), seed + k, most=2) for k in range(3)]
    expected = join(join(*arrays[:2]), arrays[2])
    found = joined([labelled(a) for a in arrays])
    np.testing.assert_array_equal(elements(found), expected)


def test_labels_over_unlike_digits_are_joined():
    one = regrouped(own_rows((6, 4), 0), (24,))
    other = regrouped(own_rows((8, 3), 0), (24,))
    expected = join(np.repeat(np.arange(6), 4), np.repeat(np.arange(8), 3))
    np.testing.assert_array_equal(elements(joined([one, other])), expected)


def test_steps_lie_in_front():
    inside = Labels(((), (2,)), np.array([[[0]], [[1]]], np.int32).reshape(2, 1))
    outside = own_rows((1, 2), 1)
    found = joined([inside, outside])
    assert found.steps == 1
    np.testing.assert_array_equal(elements(found, (2,))[:, 0], [[0, MANY], [MANY, 1]])


@pytest.mark.parametrize(
    ("owners", "expected"),
    [([0, 0], 0), ([0, NONE], 0), ([NONE, NONE], NONE), ([0, 1], MANY), ([MANY, NONE], MANY)],
)
def test_the_owner_of_a_group(owners, expected):
    assert over(np.array(owners, np.int32), [0]).item() == expected
    assert join(*np.array(owners, np.int32)).item() == expected


def test_same_labels_are_so_by_their_elements():
    assert same(own_rows((4, 2), 0), regrouped(regrouped(own_rows((4, 2), 0), (8,)), (4, 2)))
    assert not same(own_rows((4, 4), 0), own_rows((4, 4), 1))
    assert not same(own_rows((4,), 0), nobodys((4,)))


@pytest.mark.parametrize(
    ("before", "after", "is_even"),
    [
        ([0, 1, NONE, NONE], [0, 1, 0, 1], True),
        ([0, 1, NONE, NONE], [0, 1, 0, 0], False),
        ([0, 1, 2, NONE], [0, 1, 2, 0], False),
        ([NONE, NONE, NONE, NONE], [0, 1, 2, 3], True),
        ([0, 1, NONE, 1], [0, 1, NONE, 1], True),
    ],
)
def test_whether_owners_are_given_evenly(before, after, is_even):
    old, new = (labelled(np.array(x, np.int32)) for x in (before, after))
    assert gives_evenly(old, new) == is_even
    beside = Labels(((4,), (2,)), np.array(after, np.int32)[:, None])
    assert (
        gives_evenly(Labels(((4,), (2,)), np.array(before, np.int32)[:, None]), beside) == is_even
    )


def test_whether_owners_are_given_evenly_at_each_step():
    by_step = Labels(((2,),), np.array([[0, NONE], [NONE, 1]], np.int32))
    assert not gives_evenly(by_step, labelled(np.array([0, 1], np.int32)))
    each = Labels(((2,),), np.array([[0, NONE], [1, NONE]], np.int32))
    assert gives_evenly(each, Labels(((2,),), np.array([[0], [1]], np.int32)))
