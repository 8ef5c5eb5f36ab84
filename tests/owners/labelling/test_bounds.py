"""Bounds of integers: what XLA makes of every number of eight bits is the oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_surgery.module import load
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.normalise.normalize import normalize
from hlo_surgery.passes.owners.labelling.indices import bounds_of
from hlo_surgery.passes.owners.owners import Owners

EVERY = np.arange(-128, 128, dtype=np.int8)
ROWS = EVERY.reshape(32, 8)


def bounds(function, *args):
    """The bounds of what a function returns, [*shape] each; None where there are none."""
    code = mlir.clone(load(jax.jit(function).lower(*args).as_text()).code)
    normalize(code)
    (value,) = mlir.operands(mlir.return_operation(mlir.body(mlir.main_function(code))))
    found = bounds_of(Owners(1), value)
    if found is None:
        return None
    shape = mlir.shape(value)
    return tuple(np.broadcast_to(end, shape).astype(np.int64) for end in (found.low, found.high))


BETWEEN = {
    "clamped": (lambda x: lax.clamp(np.int8(-3), x, np.int8(9)), -3, 9),
    "at least and at most": (lambda x: jnp.minimum(jnp.maximum(x, 2), 5), 2, 5),
    "added": (lambda x: jnp.clip(x, 0, 7) + np.int8(8), 8, 15),
    "subtracted": (lambda x: np.int8(8) - jnp.clip(x, 0, 7), 1, 8),
    "negated": (lambda x: -jnp.clip(x, 0, 7), -7, 0),
    "multiplied": (lambda x: jnp.clip(x, -2, 7) * jnp.clip(x, -3, 4), -21, 28),
    "divided": (lambda x: lax.div(x, np.int8(10)), -12, 12),
    "left over": (lambda x: lax.rem(x, np.int8(10)), -9, 9),
    "left over of what is positive": (lambda x: lax.rem(jnp.maximum(x, 0), np.int8(10)), 0, 9),
    "left over in one stretch": (lambda x: lax.rem(jnp.clip(x, 21, 24), np.int8(10)), 1, 4),
    "widened": (lambda x: x.astype(np.int32) * 1000, -128000, 127000),
    "one of two": (lambda x: jnp.where(x > 3, np.int8(2), jnp.clip(x, 1, 6)), 1, 3),
    "the one that is always chosen": (
        lambda x: jnp.where(jnp.clip(x, 0, 3) < 4, jnp.clip(x, 5, 6), x),
        5,
        6,
    ),
    "a complement": (lambda x: ~jnp.clip(x, 0, 7), -8, -1),
    "a truth": (lambda x: ((x > 0) & (jnp.clip(x, 0, 3) <= 3)).astype(np.int32), 0, 1),
    "a truth that always holds": (lambda x: (jnp.clip(x, 0, 3) <= 3).astype(np.int32), 1, 1),
    "left over of any, by its sign": (lambda x: x % np.int8(10), 0, 9),
    "left over by a negative, by its sign": (lambda x: x % np.int8(-10), -9, 0),
    "left over of bits": (lambda x: x.astype(np.uint8) % np.uint8(10), 0, 9),
    "divided down": (lambda x: jnp.clip(x, 0, 9) // np.int8(2), 0, 4),
    "divided down, below nothing": (lambda x: jnp.clip(x, -9, 9) // np.int8(2), -5, 4),
    "masked": (lambda x: x & np.int8(12), 0, 12),
    "of the bits of either": (lambda x: jnp.clip(x, 0, 9) | jnp.clip(x, 1, 4), 0, 15),
    "shifted": (lambda x: jnp.clip(x, -9, 9) >> 1, -5, 4),
    "unsigned, shifted": (lambda x: x.astype(np.uint8) >> 6, 0, 3),
    "shifted, filled with zeros": (
        lambda x: lax.shift_right_logical(jnp.abs(x) & 31, np.int8(2)),
        0,
        7,
    ),
    "a size": (lambda x: jnp.abs(jnp.clip(x, -9, 4)), 0, 9),
    "a size beyond nothing": (lambda x: jnp.abs(jnp.clip(x, -9, -4)), 4, 9),
    "kept between": (lambda x: jnp.where((x >= 0) & (x < 5), x, 0), 0, 4),
    "kept unless beyond": (lambda x: jnp.where((x < 0) | (x > 4), 0, x), 0, 4),
    "kept after each other": (lambda x: jnp.where(x < 0, 0, jnp.where(x > 4, 4, x)), 0, 4),
    "from the end": (lambda x: jnp.where((y := jnp.clip(x, -3, 4)) < 0, y + np.int8(5), y), 0, 4),
    "all but one": (lambda x: jnp.where((y := jnp.clip(x, 0, 4)) != 4, y, 0), 0, 3),
    "unlike another": (
        lambda x: jnp.where((y := jnp.clip(x, 0, 4)) != jnp.clip(x >> 1, 0, 4), y, 0),
        0,
        4,
    ),
    "of a sign": (lambda x: jnp.where(jnp.sign(y := jnp.clip(x, -3, 4)) == 1, y, 1), 1, 4),
    "of another sign": (lambda x: jnp.where(jnp.sign(y := jnp.clip(x, -3, 4)) != 1, y, 0), -3, 0),
    "of which no case is": (lambda x: jnp.where((x > 3) & (x < 3), x, np.int8(1)), 1, 1),
    "less, counted on the way": (lambda x: jnp.cumsum(jnp.clip(x.reshape(64, 4), 2, 3), 1), 2, 12),
    "of windows that reach into the padding": (
        lambda x: lax.reduce_window(
            jnp.clip(x.reshape(64, 4), 2, 3), np.int8(0), lax.add, (1, 3), (1, 1), "SAME"
        ),
        0,
        9,
    ),
    "flags counted": (lambda x: (x.reshape(32, 8) > 0).sum(1, dtype=np.int8), 0, 8),
    "the last of those that are there": (
        lambda x: jnp.maximum((x.reshape(32, 8) > 0).sum(1, dtype=np.int8) - 1, 0),
        0,
        7,
    ),
    "flags counted on the way": (
        lambda x: jnp.cumsum(x.reshape(32, 8) > 0, axis=1, dtype=np.int8),
        0,
        8,
    ),
    "of rows that are sorted": (lambda x: jnp.sort(jnp.clip(x.reshape(32, 8), 1, 5)).ravel(), 1, 5),
    "a table's": (lambda x: jnp.asarray([4, 9, 6], np.int8)[jnp.clip(x, 0, 2)], 4, 9),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_bounds_are_as_near_as_can_be_told(name):
    function, least, greatest = BETWEEN[name]
    low, high = bounds(function, EVERY)
    assert (low.min(), high.max()) == (least, greatest)
    ran = np.asarray(jax.jit(function)(EVERY), np.int64)
    assert (low <= ran).all()
    assert (ran <= high).all()


PLACES = {
    "the greatest of a row": lambda x: jnp.argmax(x, 1),
    "the least of a row": lambda x: jnp.argmin(x, 1),
    "a row's order": lambda x: jnp.argsort(x, 1),
    "the first of a row": lambda x: lax.top_k(x, 3)[1],
    "of floats": lambda x: jnp.argmax(jnp.sin(x * 1.0), 1),
}


@pytest.mark.parametrize("name", PLACES)
def test_places_in_a_row_lie_in_it(name):
    low, high = bounds(PLACES[name], ROWS)
    assert (low == 0).all()
    assert (high == 7).all()


def by_another(x):
    """Bits, of which a reduction returns what it finds beside them."""

    def body(one, other):
        chosen = jnp.where(one[1] < other[1], one[1], other[1])
        return chosen, chosen

    return lax.reduce((x & 1, x), (np.int8(0), np.int8(0)), body, (0,))[0]


UNKNOWN = {
    "of another operand": by_another,
    "products of many": lambda x: lax.reduce(x & 3, np.int8(1), lax.mul, (0,)),
    "unsigned, shifted with its first bit": lambda x: lax.shift_right_arithmetic(
        x.astype(np.uint8), np.uint8(6)
    ),
    "sums that may wrap": lambda x: jnp.clip(x.reshape(8, 32), 0, 4).sum(1, dtype=np.int8),
    "added to what is not zero": lambda x: lax.reduce(x[:2] & 1, np.int8(99), lax.add, (0,)),
    "shifted by any number": lambda x: lax.shift_right_logical(x, x),
    "shifted without its sign": lambda x: lax.shift_right_logical(x, np.int8(1)),
    "masked by any number": lambda x: x & (x + np.int8(1)),
    "that may wrap": lambda x: x + np.int8(1),
    "products that may wrap": lambda x: jnp.clip(x, 0, 16) * np.int8(8),
    "a negative that wraps": lambda x: -x,
    "divided by what may be nothing": lambda x: lax.div(x, x),
    "divided by minus one": lambda x: lax.div(x, np.int8(-1)),
    "narrowed": lambda x: (x.astype(np.int32) + 1).astype(np.int8),
    "of no row": lambda x: lax.reduce(x, np.int8(0), lax.add, (0,)),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_nothing_is_told_of_what_may_be_any_number(name):
    assert bounds(UNKNOWN[name], EVERY) is None


def chosen_ops(rng):
    """Ops of two numbers of eight bits, and of one."""
    constant = np.int8(rng.integers(-128, 128))
    least, greatest = np.sort(rng.integers(-128, 128, 2)).astype(np.int8)
    divisor = np.int8(rng.choice([-7, -1, 1, 2, 5, 100]))
    return [
        lambda a, b: a + b,
        lambda a, b: a - b,
        lambda a, b: a * b,
        lambda a, b: jnp.minimum(a, b),
        lambda a, b: jnp.maximum(a, b),
        lambda a, b: lax.clamp(least, a, greatest),
        lambda a, b: lax.div(a, jnp.full_like(a, divisor)),
        lambda a, b: lax.rem(a, jnp.full_like(a, divisor)),
        lambda a, b: jnp.where(a < b, a, b + constant),
        lambda a, b: jnp.where(jnp.logical_or(a == b, a > constant), b, a),
        lambda a, b: jnp.where(~((a >= b) & (b != constant)), a, b),
        lambda a, b: (a.astype(np.int32) + b.astype(np.int32)).astype(np.int8),
        lambda a, b: lax.clamp(least, a, greatest).astype(np.uint8).astype(np.int8),
        lambda a, b: a & b,
        lambda a, b: a | b,
        lambda a, b: a % jnp.full_like(a, divisor),
        lambda a, b: a // jnp.full_like(a, divisor),
        lambda a, b: a >> np.int8(divisor % 8),
        lambda a, b: lax.shift_right_logical(a, np.int8(divisor % 8)),
        lambda a, b: jnp.abs(a),
        lambda a, b: jnp.sign(a) * b,
        lambda a, b: jnp.where((a < b) & ~(a == constant), a + constant, b),
        lambda a, b: jnp.where((a > least) != (b <= greatest), a, a - b),
        lambda a, b: jnp.where((jnp.sign(a) != jnp.sign(b)) | (b > constant), b - a, a),
        lambda a, b: -a,
        lambda a, b: ~a,
        lambda a, b: jnp.full_like(a, constant),
    ]


@pytest.mark.parametrize("seed", range(60))
def test_every_number_that_runs_lies_within_its_bounds(seed):
    rng = np.random.default_rng(seed)
    ops = chosen_ops(rng)
    steps = [
        (chosen_ops(rng)[rng.integers(len(ops))], rng.integers(0, k + 2, 2).tolist())
        for k in range(8)
    ]

    def program(x, y):
        made = [jnp.clip(x, -5, 11), y]
        for op, (first, second) in steps:
            made.append(op(made[first], made[second]))
        return jnp.stack(made[2:]).astype(np.int32)

    low, high = bounds(program, EVERY, EVERY) or (-128, 127)
    for turn in range(0, 256, 17):
        ran = np.asarray(jax.jit(program)(EVERY, np.roll(EVERY, turn)))
        assert np.all(low <= ran)
        assert np.all(ran <= high)
