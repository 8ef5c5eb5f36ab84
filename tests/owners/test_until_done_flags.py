"""Loops until every example is done that carry who is, and what only looks like them.

Each program makes rows of rows: its loop's state is the rows, flags, and the number of the step.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs
from hlo_surgery.module import Module
from hlo_surgery.passes.dataflow import sharding_rules
from hlo_surgery.passes.emit.main_signature import set_results
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.normalise.normalize import normalize
from hlo_surgery.passes.owners.analysis import find_owners
from hlo_surgery.passes.owners.classes import Owned
from tests.owners.claims.probes import Probed, assert_claims_hold
from tests.owners.verdicts import reasons
from tests.programs.data_moves import B, W, X


def large(h):
    return jnp.abs(h) > 0.3


def small(h):
    return ~large(h)


def halved(on, h):
    return jnp.where(on, h / 2, h)


def looped(going, step, start=large, returned=lambda h, on, c: h):
    """`going`, `step` and `returned` are of the loop's state; `start` makes the flags."""

    def rows(h):
        return returned(
            *lax.while_loop(lambda s: going(*s), lambda s: (*step(*s), s[2] + 1), (h, start(h), 0))
        )

    return rows


def until_done(step, start=large):
    return looped(lambda h, on, c: jnp.any(on), step, start)


def narrowed(h, on, c):
    return halved(on, h), on & large(h)


def of_rows(h):
    return large(h).any(1)


def rows_narrowed(h, on, c):
    return halved(on[:, None], h), on & of_rows(h)


def capped(cap, step=narrowed, start=large):
    return looped(lambda h, on, c: (c < cap(h, on)) & jnp.any(on), step, start)


def by_flags(step, start=of_rows):
    """The condition asks the rows, and a flag for each says whose step is taken."""
    return looped(lambda h, on, c: (c < 9) & jnp.any(of_rows(h)), step, start)


def flagged(new, following):
    """Rows with a flag are replaced; `following`: the next flags, of these, the new rows and the
    old.
    """

    def step(h, on, c):
        made = new(h, c)
        return jnp.where(on[:, None], made, h), following(on, made, h)

    return step


def c_of(h):
    return 1 + jnp.abs(h).max(1)


FIRST = np.arange(4) == 0


def spread(h):
    """In each column, whether the row is large; columns but the first hardly count."""
    return jnp.broadcast_to(of_rows(h * jnp.where(FIRST, 1, 0.01))[:, None], h.shape)


def first_shrunk(h):
    """Rows that are always large, though by columns other than the first."""
    return jnp.where(FIRST, h / 2, 100)


def shrunk(h, c):
    return h / 2


def grown_again(h, c):
    return jnp.abs(h) * jnp.where(c % 2 == 0, 0.2, 1.8)


def timed(step):
    """A time for each row, all from 0 to 1: at first nobody's."""

    def start(h):
        rows, first = h.shape[:1], jnp.zeros((), h.dtype)
        return jnp.broadcast_to(first < 1, rows), jnp.broadcast_to(first, rows)

    return looped(
        lambda h, flags, c: (c < 9) & jnp.any(flags[1] < 1),
        lambda h, flags, c: step(h, *flags),
        start,
    )


def of_own_size(h, on, t):
    later = t + 0.7 / (1 + jnp.abs(h).max(1))
    return jnp.where(on[:, None], h / 2, h), (on & (later < 1), jnp.where(on, later, t))


def of_one_size(h, t, c):
    size = 0.7 / (1 + jnp.abs(h).max())
    return h - size * h**3, t + size


def some_on(step):
    """Examples without a large element start when others do not end."""
    return capped(lambda h, on: 9, step, lambda h: jnp.abs(h) > 4)


def by_the_new_flag(h, on, c):
    on = jnp.where(on, large(h), False)
    return halved(on, h), on


OWN = {
    "and": until_done(narrowed),
    "where": until_done(lambda h, on, c: (halved(on, h), jnp.where(on, large(h), on))),
    "by the new flag": until_done(by_the_new_flag),
    "a flag for each row": until_done(rows_narrowed, of_rows),
    "by the number of the step": until_done(
        lambda h, on, c: (jnp.where(on, h / (c + 2), h), on & large(h))
    ),
    "any not done": looped(
        lambda h, done, c: jnp.any(~done),
        lambda h, done, c: (jnp.where(done, h, h / 2), done | small(h)),
        small,
    ),
    "not all done": looped(
        lambda h, done, c: ~jnp.all(done),
        lambda h, done, c: (halved(~done, h), done | small(h)),
        small,
    ),
    "a cap": capped(lambda h, on: 2),
    "two caps": looped(lambda h, on, c: (c < 5) & jnp.any(on) & (c * c < 5), narrowed),
    "a cap without flags": looped(
        lambda h, on, c: jnp.any(large(h)) & (c < 2), lambda h, on, c: (halved(large(h), h), on)
    ),
    "beside a bound": looped(
        lambda h, bound, c: jnp.any(jnp.abs(h) > bound),
        lambda h, bound, c: (halved(jnp.abs(h) > bound, h), bound),
        lambda h: jnp.float32(0.3),
    ),
    "by a flag that implies it": by_flags(flagged(shrunk, lambda on, new, h: on & of_rows(new))),
    "by a flag of what is kept": by_flags(
        lambda h, on, c: (
            jnp.where(on[:, None], h / 2, h),
            on & of_rows(jnp.where(on[:, None], h / 2, h)),
        )
    ),
    "by a flag of fewer": by_flags(
        flagged(shrunk, lambda on, new, h: on & of_rows(new) & (new[:, 0] > 0))
    ),
    "a time for each": timed(of_own_size),
}

# Each lacks one thing that the rule asks for. Caps end those that would not end.
ALIKE = {
    "flags that come back": capped(
        lambda h, on: 9, lambda h, on, c: (halved(on, h), jnp.abs(h) > jnp.abs(jnp.sin(1.0 * c)))
    ),
    "started again": some_on(lambda h, on, c: (halved(on, h), jnp.where(on, large(h), c == 0))),
    "or": some_on(lambda h, on, c: (halved(on, h), on | large(h))),
    "exclusive or": some_on(lambda h, on, c: (halved(on, h), on ^ large(h))),
    "by way of another flag": looped(
        lambda h, on, c: jnp.any(on[0]) & (c < 9),
        lambda h, on, c: (halved(on[0], h), jnp.stack([on[1], on[0] & large(h)])),
        lambda h: jnp.stack([large(h), h > 0]),
    ),
    "outside of the flag": until_done(lambda h, on, c: (h / 2, on & large(h))),
    "where it is done": until_done(
        lambda h, on, c: (jnp.where(on, h, h / 2), on & (c < 9 * jnp.abs(h)))
    ),
    "another's flag": until_done(lambda h, on, c: (halved(on[::-1], h), on & (c < 9 * jnp.abs(h)))),
    "and another's": capped(lambda h, on: 9, lambda h, on, c: (halved(on, h), on & large(h)[::-1])),
    "all": looped(lambda h, on, c: jnp.all(on), rows_narrowed, of_rows),
    "not any done": looped(
        lambda h, done, c: ~jnp.any(done),
        lambda h, done, c: (halved(~done[:, None], h), done | ~of_rows(h)),
        lambda h: ~of_rows(h),
    ),
    "any done": looped(
        lambda h, done, c: jnp.any(done) & (c < 9),
        lambda h, done, c: (halved(~done[:, None], h), done | ~of_rows(h)),
        lambda h: jnp.abs(h).max(1) > 4,
    ),
    "a cap of all": capped(lambda h, on: 3 * jnp.abs(h).max()),
    "a cap of one": capped(lambda h, on: 3 * jnp.abs(h[0, 0])),
    "a cap by flags": capped(lambda h, on: 9 * jnp.mean(1.0 * on[0])),
    "another question": looped(lambda h, on, c: jnp.any(on) & jnp.any(h > 0.6), narrowed),
    "by what goes on": looped(
        lambda h, t, c: jnp.any(h < t) & (c < 9),
        lambda h, t, c: (jnp.where(h < t, 2 * jnp.abs(h) + 0.1, h), jnp.abs(h) + jnp.sin(c + t)),
        jnp.cos,
    ),
    "the flag before": looped(
        lambda h, flags, c: jnp.any(flags[0]),
        lambda h, flags, c: (halved(flags[0], h), (flags[0] & large(h), flags[0])),
        lambda h: (large(h), large(h)),
        returned=lambda h, flags, c: h + flags[1],
    ),
    "a flag of the old rows": by_flags(flagged(shrunk, lambda on, new, h: on & of_rows(h))),
    "a flag that implies nothing": by_flags(flagged(shrunk, lambda on, new, h: on & (c_of(h) > 0))),
    "a flag that implies it at first": by_flags(flagged(shrunk, lambda on, new, h: on)),
    "a flag that implies it from then on": looped(
        lambda h, on, c: (c < 9) & jnp.any(jnp.abs(h).max(1) > 4),
        flagged(shrunk, lambda on, new, h: on & (jnp.abs(new).max(1) > 4)),
        lambda h: jnp.abs(h).max(1) > 0.1,
    ),
    "a flag of new rows that are not taken": by_flags(
        flagged(grown_again, lambda on, new, h: of_rows(new))
    ),
    "a flag or the condition": by_flags(flagged(shrunk, lambda on, new, h: on | of_rows(new))),
    "another's condition": by_flags(flagged(shrunk, lambda on, new, h: on & of_rows(new)[::-1])),
    "several flags for a row": looped(
        lambda h, on, c: (c < 9) & jnp.any(spread(h)),
        lambda h, on, c: (jnp.where(on, first_shrunk(h), h), on & spread(first_shrunk(h))),
        lambda h: spread(h) & FIRST,
    ),
    "not all done, or always": looped(
        lambda h, on, c: (c < 9) & ~lax.reduce(on, c >= 0, lax.bitwise_and, (0, 1)),
        lambda h, on, c: (halved(on, h), on & (jnp.abs(h) < 5)),
        lambda h: jnp.abs(h) < 5,
    ),
    "a size for all": looped(lambda h, t, c: t < 1, of_one_size, lambda h: jnp.zeros((), h.dtype)),
    "the number of steps": looped(
        lambda h, on, c: jnp.any(on), narrowed, returned=lambda h, on, c: h * c
    ),
}
NAMES = pytest.mark.parametrize("name", OWN)
ALIKE_NAMES = pytest.mark.parametrize("name", ALIKE)


def hidden(w, x):
    return 3 * lax.stop_gradient(x @ w)


def of_parameters(rows):
    return lambda w, x: jnp.mean(jnp.sum(jnp.tanh(x @ w) * rows(hidden(w, x)), 1))


def of_data(rows):
    return lambda w, x: jnp.mean(jnp.sum(jnp.tanh(x @ w) * rows(hidden(W, x)), 1))


def alone(loss):
    gradient = jax.jit(jax.grad(loss))
    return np.stack([gradient(W, X[b : b + 1]) for b in range(B)])


MODES = [
    *((name, "refuse") for name in OWN),
    ("a time for each", "contribution"),
    *(
        pytest.param(name, "contribution", marks=pytest.mark.slow)
        for name in OWN
        if name != "a time for each"
    ),
]


@pytest.mark.parametrize(("name", "mode"), MODES)
def test_an_example_is_what_it_is_alone(name, mode):
    loss = of_parameters(OWN[name])
    each = hs.grad(loss, statistics=hs.per_example(), on_mixing=mode)(W, X)[1]
    np.testing.assert_allclose(each, alone(loss), rtol=1e-5, atol=1e-6)


@NAMES
def test_how_long_the_others_go_on_is_no_constant_of_the_batch(name):
    loss = of_data(OWN[name])
    f = hs.grad(loss, statistics=hs.clipped_mean(0.1))
    examples = alone(loss)
    norms = np.sqrt((examples**2).sum((1, 2), keepdims=True))
    expected = (examples * np.minimum(1, 0.1 / norms)).mean(0)
    np.testing.assert_allclose(f(W, X)[1], expected, rtol=1e-5, atol=1e-6)
    assert not hs.explain(hs.grad(loss, statistics=hs.norms()), W, X).data


@ALIKE_NAMES
def test_what_only_looks_alike_is_refused(name):
    assert any(reasons(jax.grad(of_parameters(ALIKE[name])), W, X))


def test_taken_one_at_a_time_each_decides_for_itself():
    counted = ALIKE["the number of steps"]
    with pytest.raises(hs.Refusal, match=r"with jax\.lax\.map in place of jax\.vmap"):
        hs.grad(of_parameters(counted), statistics=hs.per_example())(W, X)
    loss = of_parameters(lambda h: lax.map(lambda row: counted(row[None])[0], h))
    each = hs.grad(loss, statistics=hs.per_example())(W, X)[1]
    np.testing.assert_allclose(each, alone(loss), rtol=1e-5, atol=1e-6)


@ALIKE_NAMES
def test_data_that_only_looks_alike_is_not_private(name):
    with pytest.raises(hs.Refusal):
        hs.grad(of_data(ALIKE[name]), statistics=hs.clipped_mean(0.1))(W, X)


@ALIKE_NAMES
def test_what_only_looks_alike_rests_on_others(name):
    made = jax.jit(lambda x: ALIKE[name](hidden(W, x)))
    moved = [
        np.delete(made(np.where(np.arange(B)[:, None] == b, others, X)) != made(X), b, 0)
        for b in range(B)
        for others in (4 * X - 1, 0 * X)
    ]
    assert np.any(moved)


class Claimed:
    """A program with the classes of its values, all of them returned."""

    draw, run = Probed.draw, Probed.run

    def __init__(self, program):
        with jax.enable_x64(True):
            arguments = np.asarray(W, np.float64), np.asarray(X, np.float64)
            code = mlir.parse(jax.jit(program).lower(*arguments).as_text())
        normalize(code)
        main, self.size = mlir.main_function(code), B
        sharding_rules.populate(code)
        self.owners = find_owners(main, {1: 0}, B, [])
        sharding_rules.strip(code)
        values = [r for op in mlir.operations(mlir.body(main))[:-1] for r in op.results]
        (self.last,) = map(self.owners.of, mlir.operands(mlir.return_operation(mlir.body(main))))
        self.classes = [self.owners.of(v) for v in values]
        set_results(main, values, [])
        self.row, self.module = SimpleNamespace(axes={0: 0}), Module(code)


@pytest.mark.parametrize("name", [*OWN, *ALIKE])
def test_claims_hold(name):
    rows = {**OWN, **ALIKE}[name]
    claimed = Claimed(lambda w, x: rows(hidden(w, x)))
    assert isinstance(claimed.last, Owned) == (name in OWN)
    assert_claims_hold(claimed)


def test_how_long_the_examples_go_on_is_data_where_it_is_used():
    """Parameters reach no part of the loop."""

    def loss(w, x):
        rows = ALIKE["the number of steps"](3 * x)
        return jnp.mean(jnp.sum(jnp.tanh(x @ w)[:, :3] * rows, 1))

    assert hs.explain(hs.grad(loss, statistics=hs.norms()), W, X).data
    with pytest.raises(hs.Refusal, match="all examples meet in a constant"):
        hs.grad(loss, statistics=hs.clipped_mean(0.1))(W, X)
