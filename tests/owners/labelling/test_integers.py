"""Numbers of integers: XLA, which runs the same ops, is the oracle."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_surgery.module import load
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.normalise.normalize import normalize
from hlo_surgery.passes.owners.labelling.indices import column, integers_of
from hlo_surgery.passes.owners.owners import Owners

ROWS = np.arange(-6, 6, dtype=np.int32).reshape(3, 4)
ONES = np.full((3, 4), 4, np.int32)
TRUTHS = ROWS > 0


def stacked(write):
    """What a loop of four steps writes into eight numbers."""
    return lambda: lax.fori_loop(0, 4, write, jnp.full(8, 9))


FUNCTIONS = {
    "remainder": lambda: lax.rem(ROWS, ONES),
    "quotient": lambda: lax.div(ROWS, ONES),
    **{
        compare.__name__: lambda compare=compare: compare(ROWS, ONES - 4)
        for compare in (lax.lt, lax.le, lax.gt, lax.ge, lax.eq, lax.ne)
    },
    "selected": lambda: lax.select(TRUTHS, ROWS, ONES),
    "clamped": lambda: lax.clamp(np.int32(-2), ROWS, np.int32(3)),
    "broadcast": lambda: lax.broadcast_in_dim(ROWS, (4, 2, 3), (2, 0)),
    "sliced": lambda: lax.slice(ROWS, (0, 1), (3, 4), (2, 2)),
    "sliced beyond the end": lambda: lax.dynamic_slice(ROWS, (2, 9), (2, 2)),
    "sliced before the start": lambda: lax.dynamic_slice(ROWS, (-5, 1), (2, 2)),
    "reshaped": lambda: lax.reshape(ROWS, (2, 6)),
    "joined": lambda: lax.concatenate([ROWS, ONES], 1),
    "transposed": lambda: lax.transpose(np.stack([ROWS, ONES]), (2, 0, 1)),
    "reversed": lambda: lax.rev(ROWS, (1,)),
    "converted": lambda: lax.convert_element_type(ROWS, np.uint8),
    "added": lambda: ROWS + lax.iota(np.int32, 4),
    "subtracted": lambda: ROWS - lax.iota(np.int32, 4),
    "multiplied": lambda: ROWS * lax.iota(np.int32, 4),
    "that wrap": lambda: lax.mul(jnp.int8(100), jnp.int8(3)),
    "negated": lambda: lax.neg(jnp.asarray(ROWS)),
    "the lesser": lambda: lax.min(ROWS, lax.iota(np.int32, 12).reshape(3, 4)),
    "the greater": lambda: lax.max(ROWS, lax.iota(np.int32, 12).reshape(3, 4)),
    "both": lambda: lax.bitwise_and(ROWS, ONES),
    "either": lambda: lax.bitwise_or(ROWS, ONES),
    "one of two": lambda: lax.bitwise_xor(ROWS, ONES),
    "complement": lambda: lax.bitwise_not(jnp.asarray(ROWS)),
    "not a truth": lambda: lax.bitwise_not(jnp.asarray(TRUTHS)),
    "looked up": lambda: jnp.asarray(ROWS)[jnp.arange(3) % 2, jnp.arange(3) + 1],
    "counted where they lie": lambda: jnp.zeros(5, int).at[ROWS.ravel() % 3 + 3].add(2),
    "one put among others": lambda: jnp.arange(5).at[jnp.array([2])].set(7),
    "put in place": lambda: lax.dynamic_update_slice(jnp.asarray(ROWS), ONES[:2, :3], (1, 1)),
    "put in place before the start": lambda: lax.dynamic_update_slice(
        jnp.asarray(ROWS), ONES[:2, :3], (-2, 9)
    ),
    "summed on the way": lambda: jnp.cumsum(jnp.asarray(ROWS), axis=1),
    "summed once more": lambda: jnp.cumsum(jnp.cumsum(jnp.ones((3, 4), int), axis=0), axis=1),
    "repeated": lambda: jnp.repeat(jnp.arange(3), np.array([2, 0, 3]), total_repeat_length=5),
    "repeated to be more": lambda: jnp.repeat(jnp.arange(3), 2, total_repeat_length=8),
    "a stack": stacked(lambda i, s: lax.dynamic_update_slice(s, (3 * i)[None], (i,))),
    "a stack beyond its end": stacked(
        lambda i, s: lax.dynamic_update_slice(s, jnp.stack([i, -i]), (3 * i,))
    ),
    "stacks in the steps of a loop": lambda: nested_stacks(lambda i, j: (10 * i + j)[None, None]),
    "stacks of which a step keeps what it had": lambda: nested_stacks(
        lambda i, j: jnp.stack([i, j])[None]
    ),
    "a stack before its start": stacked(
        lambda i, s: lax.dynamic_update_slice(s, jnp.stack([i, -i]), (i - 2,))
    ),
}


def nested_stacks(row):
    """What a loop of three steps keeps of a stack that a loop of four writes in each of them."""

    def of_outer(i, kept):
        stack = lax.fori_loop(
            0, 4, lambda j, s: lax.dynamic_update_slice(s, row(i, j), (j, 0)), jnp.full((4, 2), 9)
        )
        return lax.dynamic_update_slice(kept, stack[None, 1:3], (i, 0, 0))

    return lax.fori_loop(0, 3, of_outer, jnp.full((3, 2, 2), 7))


def beside_the_unknown(x):
    """Pairs of a known place and one that only a run tells, as JAX indexes x[arange(B), labels]."""
    return lax.concatenate([lax.iota(np.int32, 3)[:, None], x[:, None]], 1)


def stacked_pairs(x):
    """Pairs that a loop of four steps stacks, whose first numbers are its step's."""

    def write(i, kept):
        pairs = beside_the_unknown(x) + jnp.stack([i, i])
        return lax.dynamic_update_slice(kept, pairs[None], (i, 0, 0))

    return lax.fori_loop(0, 4, write, jnp.zeros((4, 3, 2), jnp.int32)).reshape(12, 2)


# Each returns pairs of which the first number is known.
PAIRS = {
    "joined": beside_the_unknown,
    "converted": lambda x: beside_the_unknown(x).astype(np.int8),
    "clamped": lambda x: lax.clamp(np.int32(1), beside_the_unknown(x), np.int32(2)),
    "counted from the end": lambda x: jnp.where(
        beside_the_unknown(x) - 1 < 0, beside_the_unknown(x) + 7, beside_the_unknown(x)
    ),
    "turned": lambda x: lax.rev(beside_the_unknown(x), (0,)),
    "reshaped": lambda x: lax.reshape(lax.reshape(beside_the_unknown(x), (1, 3, 2)), (3, 2)),
    "stacked": stacked_pairs,
}
# None of theirs is, or is for all rows.
UNKNOWN_PAIRS = {
    "added to the unknown": lambda x: beside_the_unknown(x) + x[:, None],
    "multiplied by the unknown": lambda x: beside_the_unknown(x) * x[:, None],
    "chosen by the unknown": lambda x: jnp.where(x[:, None] > 1, beside_the_unknown(x), 0),
    "of rows that are taken at the unknown": lambda x: lax.dynamic_slice(
        beside_the_unknown(x), (x[0], 0), (2, 2)
    ),
    "in the other order": lambda x: lax.rev(beside_the_unknown(x), (1,)),
    "with one row of the unknown": lambda x: lax.concatenate(
        [beside_the_unknown(x), x[None, :2]], 0
    ),
}


def numbers_of(function):
    code = mlir.clone(load(jax.jit(function).lower().as_text()).code)
    normalize(code)
    (value,) = mlir.operands(mlir.return_operation(mlir.body(mlir.main_function(code))))
    return integers_of(Owners(1), value), code


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers_are_those_that_run(name):
    found, _ = numbers_of(FUNCTIONS[name])
    np.testing.assert_array_equal(found, FUNCTIONS[name]())


def first_column(function):
    x = np.array([2, 0, 1], np.int32)
    code = mlir.clone(load(jax.jit(function).lower(x).as_text()).code)
    normalize(code)
    (value,) = mlir.operands(mlir.return_operation(mlir.body(mlir.main_function(code))))
    owners = Owners(1)
    assert integers_of(owners, value) is None
    return column(owners, value, 0, 1), np.asarray(function(x))[:, 0]


@pytest.mark.parametrize("name", PAIRS)
def test_what_is_known_of_index_vectors_is_what_runs(name):
    found, ran = first_column(PAIRS[name])
    np.testing.assert_array_equal(found, ran)


@pytest.mark.parametrize("name", UNKNOWN_PAIRS)
def test_what_rests_on_the_unknown_is_not_known(name):
    found, _ = first_column(UNKNOWN_PAIRS[name])
    assert found is None


def test_a_stack_that_is_begun_anew_at_each_step_is_not_known():
    """Of the steps before nothing is left in it."""
    table = jnp.arange(8)
    function = stacked(lambda i, s: lax.dynamic_update_slice(table, (3 * i)[None], (i,)))
    found, _ = numbers_of(function)
    assert found is None or np.array_equal(found, function())


def test_sums_from_the_end_are_none_from_the_start():
    function = partial(lax.cumsum, jnp.asarray(ROWS), 1, reverse=True)
    found, _ = numbers_of(function)
    assert found is None or np.array_equal(found, function())


def test_which_of_two_rows_is_put_last_is_not_known():
    found, _ = numbers_of(lambda: jnp.arange(5).at[jnp.array([1, 1])].set(jnp.array([2, 3])))
    assert found is None


@pytest.mark.parametrize("op", ["add", "multiply"])
def test_of_truths_no_sum_is_known(op):
    """Compilers make one thing of it or another."""
    text = (
        "func.func @main() -> tensor<2xi1> {\n"
        "%a = stablehlo.constant dense<[true, false]> : tensor<2xi1>\n"
        f"%r = stablehlo.{op} %a, %a : tensor<2xi1>\n"
        "return %r : tensor<2xi1> }"
    )
    code = mlir.parse(text)
    (value,) = mlir.operands(mlir.return_operation(mlir.body(mlir.main_function(code))))
    assert integers_of(Owners(1), value) is None


@pytest.mark.parametrize("op", ["divide", "remainder"])
def test_by_zero_no_number_is_known(op):
    code = mlir.parse(
        "func.func @main() -> tensor<2xi32> {\n"
        "%a = stablehlo.constant dense<[3, 4]> : tensor<2xi32>\n"
        "%b = stablehlo.constant dense<[1, 0]> : tensor<2xi32>\n"
        f"%r = stablehlo.{op} %a, %b : tensor<2xi32>\n"
        "return %r : tensor<2xi32> }"
    )
    (value,) = mlir.operands(mlir.return_operation(mlir.body(mlir.main_function(code))))
    assert integers_of(Owners(1), value) is None


def test_where_each_step_puts_a_number_is_not_where_the_first_does():
    def write(i, s):
        moved = lax.dynamic_update_slice(jnp.arange(4), jnp.array([7]), (i,))
        return lax.dynamic_update_slice(s, moved[1:2], (i,))

    function = stacked(write)
    found, _ = numbers_of(function)
    assert found is None or np.array_equal(found, function())
