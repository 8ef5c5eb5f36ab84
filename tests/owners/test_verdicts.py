"""Programs that are refused end to end elsewhere, asked of the analysis alone, which is quick."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.acceptance import (
    test_batch_constants,
    test_batch_gradients,
    test_example_rows,
    test_group_masks,
    test_near_misses,
    test_products_of_sums,
    test_until_done,
)
from tests.loops import test_split_batches, test_views
from tests.owners import data_meetings, meetings
from tests.owners.verdicts import reasons, reasons_in
from tests.programs.data_moves import B, W, X

MODES = pytest.mark.parametrize("contribution", [False, True], ids=["refuse", "contribution"])


def named(programs):
    return pytest.mark.parametrize("program", programs.values(), ids=programs.keys())


NEAR = {
    **test_near_misses.UNTIL_DONE,
    **{loss.__name__: loss for loss in test_near_misses.FLOW},
    **test_near_misses.LOOPS,
    **test_near_misses.GROUPS,
    **test_near_misses.SOLVES,
    **test_near_misses.WEIGHTS,
}


@named(NEAR)
def test_near_misses_of_losses(program):
    assert any(reasons(jax.grad(program), test_near_misses.W, test_near_misses.X))


@named(test_near_misses.ACCUMULATED)
def test_near_misses_of_gradients(program):
    assert any(reasons(program, test_near_misses.W, test_near_misses.X))


@named(test_batch_constants.REARRANGED)
def test_data_of_which_each_example_meets_another(program):
    assert any(reasons(jax.grad(program), test_batch_constants.W, test_batch_constants.X))


def of_parts(program):
    def loss(w, x):
        parts = test_split_batches
        return jnp.mean(program(w, x.reshape(parts.PARTS, parts.COUNT, parts.STEPS, 4)))

    return loss


@named(test_split_batches.MIXING)
def test_examples_that_meet_in_a_part(program):
    split = test_split_batches
    assert any(reasons(jax.grad(of_parts(program)), split.W, split.X))


@MODES
@named(test_products_of_sums.UNDIVIDED)
def test_products_of_sums_of_data(program, contribution):
    sums = test_products_of_sums
    arguments = sums.V, sums.X, sums.U, sums.M
    assert any(reasons(program, *arguments, batch=(1, 2, 3), contribution=contribution))


@named(test_products_of_sums.OF_TRAINED)
def test_products_of_sums_that_parameters_reach(program):
    sums = test_products_of_sums
    arguments = sums.V, sums.X, sums.U, sums.M
    assert any(reasons(program, *arguments, batch=(1, 2, 3), contribution=True))


MASKED = {
    k: v for k, v in test_group_masks.AVERAGED.items() if v is not test_group_masks.of_devices
}


@MODES
@named(MASKED)
def test_masks_by_group(program, contribution):
    masks = test_group_masks
    found = reasons(jax.grad(program), masks.W, masks.X, contribution=contribution)
    assert any(found)


@MODES
@pytest.mark.parametrize("beside", [lambda x, p: jnp.tanh(x), lambda x, p: jnp.tanh(x * p[0])])
@named(test_example_rows.MOVED)
def test_rows_of_parameters_that_are_moved(program, beside, contribution):
    def loss(p, x):
        return jnp.mean(jnp.sum(beside(x, p) + program(p), -1))

    rows = test_example_rows
    assert any(reasons(jax.grad(loss), rows.PLACES, rows.X, contribution=contribution))


@named({**test_until_done.CHANGED})
def test_what_is_no_truth(program):
    text = test_until_done.HALVED.format(
        combined=test_until_done.ANY, predicate=program, initial="false"
    )
    assert any(reasons_in(text, {1: 0}))


@named({**test_until_done.NO_ANY})
def test_what_is_no_or(program):
    text = test_until_done.HALVED.format(
        combined=program, predicate=test_until_done.GOING, initial="false"
    )
    assert any(reasons_in(text, {1: 0}))


def test_an_or_that_starts_from_true():
    text = test_until_done.HALVED.format(
        combined=test_until_done.ANY, predicate=test_until_done.GOING, initial="true"
    )
    assert any(reasons_in(text, {1: 0}))


def test_shifted_views():
    views = test_views
    found = reasons(jax.grad(views.shifted_views), views.PARAMS, views.X, views.Y, batch=(1, 2))
    assert any(found)


@named(test_batch_gradients.FORMS)
def test_a_mean_of_what_is_differentiated(program):
    def gradient(x):
        return program(jax.grad(test_batch_gradients.centred, 1)(test_batch_gradients.W, x))

    assert any(reasons(gradient, np.asarray(test_batch_gradients.X), batch=(0,)))


@named({**meetings.REFUSED, **data_meetings.OF_DATA})
def test_meetings_that_are_easily_missed(program):
    assert any(reasons(jax.grad(program), W, X))


V = np.float32([0.5, -1, 2])


@named(meetings.RETURNED)
def test_what_is_no_sum_of_the_examples(program):
    assert any(reasons(program, V, X))


@named(data_meetings.TERMS)
def test_data_that_is_a_term(program):
    assert any(reasons(program, V, X))


@named(meetings.UNEVEN)
def test_constants_that_some_examples_get(program):
    assert any(reasons(program, V, X))


@named(meetings.WEIGHED)
def test_weights_of_the_examples_are_no_constant_of_all(program):
    assert any(reasons(program, V, X))


ROWS_OF = [*test_example_rows.FORMS.values(), lambda each: lambda e, x: jnp.mean(each(x, e[::-1]))]


@pytest.mark.parametrize("form", ROWS_OF)
def test_rows_of_a_parameter_that_no_example_reaches(form):
    rows = test_example_rows
    assert any(reasons(jax.grad(form(rows.total)), rows.ROWS, rows.X))


def test_rows_laid_out_along_other_dimensions():
    def loss(p, x):
        return jnp.mean(jnp.sum(jnp.tanh(x), 1) + p.reshape(B, 2).sum(1))

    assert any(reasons(jax.grad(loss), np.ones(2 * B, np.float32), X))


def test_data_of_each_step_that_scales_an_example_is_said_to_meet_it():
    (reason,) = reasons(data_meetings.one_by_one(jnp.multiply), V, X)
    assert "rearranged over the examples" in reason.why
