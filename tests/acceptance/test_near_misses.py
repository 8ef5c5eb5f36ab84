"""Near misses: programs one condition away from separable ones, each refused for that one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs
from tests.acceptance.test_batch_constants import mean_of, one

B, D, PARTS = 6, 3, 2
W = jnp.asarray(np.random.default_rng(0).normal(size=(D, D)), jnp.float32)
X = jnp.asarray(np.random.default_rng(1).normal(size=(B, D)), jnp.float32)


def until_done(going, step, start=0.0):
    """A layer's rows go through a loop that runs while `going` says so, beside other state."""

    def loss(w, x):
        h = lax.stop_gradient(x @ w)
        state = h, start + jnp.zeros_like(h)
        state = lax.while_loop(lambda s: going(*s), lambda s: step(*s), state)
        return mean_of(w, x * state[0])

    return loss


def halved(keeps):
    """Halved where `keeps` says so."""
    return lambda h, t: (jnp.where(keeps(h, t), h / 2, h), t)


def any_large(h, t):
    return jnp.any(h > 1)


UNTIL_DONE = {
    "under another value's": until_done(
        any_large, lambda h, t: (jnp.where(t > 1, h / 2, h), jnp.where(t > 1, t / 2, t)), 9.0
    ),
    "where it is done": until_done(any_large, lambda h, t: (jnp.where(h > 1, h, h / 2), t)),
}


def reached_in_the_second_step(w, x):
    """In the first round over the loop the maximum is one of data."""

    def step(carry, _):
        first, second, h = carry
        return (w, first, jnp.tanh(h + jnp.max(x @ second))), None

    return jnp.mean(lax.scan(step, (jnp.ones_like(w), jnp.ones_like(w), x), None, length=3)[0][2])


def nonlinear_state_of_all(w, x):
    total = lax.scan(lambda s, e: (jnp.tanh(s + e), None), jnp.zeros(D), x)[0]
    return jnp.sum(w * total) + mean_of(w, x)


def steps_by_data(w, x):
    times = jnp.sum(x > 0)
    grown = lax.while_loop(lambda s: s[0] < times, lambda s: (s[0] + 1, 1.1 * s[1]), (0, 1.0))[1]
    return mean_of(w, x) + grown * jnp.sum(w**2)


def branch_by_parameters(w, x):
    taken = lax.cond(w[0, 0] > 0, lambda: x, lambda: 2 * x)
    return mean_of(w, x * taken.max())


def branch_with_data(w, x):
    return lax.cond(w[0, 0] > 0, lambda: mean_of(w, x), lambda: x.max() * jnp.sum(w))


def branches_of_sums(w, x):
    return lax.cond(
        w[0, 0] > 0, lambda: mean_of(w, x) + x.max() * jnp.sum(w), lambda: mean_of(w, 2 * x)
    )


def product_of_sums(w, x):
    """One sum is of data; the other is none."""
    return mean_of(w, x * lax.stop_gradient(jnp.tanh(x @ w).sum(0) * x.sum(0)))


def own_numbers_in_another_order(w, x):
    return jnp.mean(jnp.tanh(x @ w).sum(1) * x[::-1][jnp.arange(B), jnp.argmax(x, 1)])


def named(*losses):
    return {loss.__name__: loss for loss in losses}


FLOW = named(
    product_of_sums,
    own_numbers_in_another_order,
    reached_in_the_second_step,
    nonlinear_state_of_all,
    steps_by_data,
    branch_by_parameters,
    branch_with_data,
    branches_of_sums,
)


def accumulated(parts, order):
    """The gradient, added up over parts of the batch, which are taken in this order."""

    def gradient(w, x):
        def step(total, i):
            return total + jax.grad(one)(
                w, lax.dynamic_index_in_dim(parts(x), i, keepdims=False)
            ), None

        return lax.scan(step, jnp.zeros_like(w), np.array(order))[0]

    return gradient


def of_two(x):
    return x.reshape(-1, 2, D)


def forwards_and_backwards(w, x):
    def step(total, i):
        return total + jax.grad(lambda w: one(w, (x[i] @ w) * (x[B - 1 - i] @ w)))(w), None

    return lax.scan(step, jnp.zeros_like(w), jnp.arange(B))[0]


def one_step_after_the_other(w, x):
    """Each from where the one before led."""
    return lax.scan(
        lambda total, e: (total + jax.grad(one)(w - 0.1 * total, e), None), jnp.zeros_like(w), x
    )[0]


def counted_by_another(w, x):
    """What looks like a counter that grows by one is one more than half of another."""

    def step(k, state):
        return k // 2 + 1, state[1] + jax.grad(one)(w, x[state[0]])

    return lax.fori_loop(0, B, step, (0, jnp.zeros_like(w)))[1]


def in_two_places(w, x):
    def step(total, i):
        return total + jax.grad(one)(w, lax.dynamic_slice_in_dim(of_two(x), i, 2)), None

    return lax.scan(step, jnp.zeros_like(w), jnp.arange(3))[0]


def on_data(w, x):
    return lax.reduce(jax.vmap(jax.grad(one), (None, 0))(w, x), x.max(), lax.add, (0,))


def on_data_at_each_step(w, x):
    """What each step adds has the data in it already, and so has what it makes of them."""
    start = on_data(w, x)
    return lax.scan(
        lambda total, e: (total + (jax.grad(one)(w, e) + start), None), jnp.zeros_like(w), x
    )[0]


def beside_the_largest(w, x):
    """Each step adds its example to the largest so far, and both to the gradient."""

    def step(state, e):
        largest, total = state
        return (jnp.maximum(largest, e), total + (largest + e) * w), None

    return lax.scan(step, (jnp.ones(D), jnp.zeros_like(w)), x)[0][1]


def largest_of_parts(w, x):
    return jax.vmap(jax.grad(one), (None, 0))(w, x).reshape(PARTS, -1, D, D).max(1).sum(0)


ACCUMULATED = {
    "the largest of each part": largest_of_parts,
    "on top of data": on_data,
    "on top of data at each step": on_data_at_each_step,
    "beside the largest": beside_the_largest,
    "counted by another": counted_by_another,
    "one step after the other": one_step_after_the_other,
    "forwards and backwards": forwards_and_backwards,
}


# Of these more is refused than mixes: an example's place is told in order, and once.
TAKEN_OTHERWISE = {
    "an example twice": accumulated(lambda x: x, [0, 1, 2, 3, 4, 4]),
    "an example never": accumulated(lambda x: x, range(B - 1)),
    "a part twice": accumulated(of_two, [0, 1, 1]),
    "parts that overlap": in_two_places,
}


@pytest.mark.parametrize("gradient", [*ACCUMULATED.values(), *TAKEN_OTHERWISE.values()])
def test_accumulated_beside_others_is_refused(gradient):
    with pytest.raises(hs.Refusal):
        hs.rewrite(gradient, batch_argnums=1, statistics=hs.second_moment())(W, X)


def rows_carried(w, x):
    """The rows of one microbatch go into the next."""
    return jnp.sum(
        lax.scan(lambda s, rows: (jnp.tanh(s + rows @ w), None), jnp.zeros((2, D)), of_two(x))[0]
    )


def written_into_columns(w, x):
    """Row b is example b's only where the last step wrote; elsewhere the columns are."""
    h = lax.stop_gradient(jnp.tile(jnp.tanh(x @ w), (1, B // D)))
    out = lax.fori_loop(
        0, B, lambda i, _: lax.dynamic_update_slice(h.T, h[i][None], (i, 0)), jnp.zeros((B, B))
    )
    return mean_of(w, x * out[:, :D])


def written(place, rows=1, start=None):
    """What a loop makes of each example, written at `place` of it; then beside the examples."""

    def loss(w, x):
        h = lax.stop_gradient(jnp.tanh(x @ w))

        def step(i, out):
            return lax.dynamic_update_slice(out, jnp.tile(h[i], (rows, 1)), (place(i), 0))

        return mean_of(
            w, x * lax.fori_loop(0, B, step, jnp.zeros_like(x) if start is None else start(h))
        )

    return loss


def running(met):
    def step(w, s, rows):
        return s + rows.sum(0), mean_of(w, met(s, rows))

    return lambda w, x: jnp.mean(
        lax.scan(lambda s, e: step(w, s, e), jnp.ones(D), x.reshape(PARTS, -1, D))[1]
    )


def added_one_by_one(w, x):
    return jnp.mean(lax.scan(lambda s, e: (s + e, one(w, s + e)), jnp.ones(D), x)[1])


def largest_added(w, x):
    return jnp.mean(lax.scan(lambda s, e: (jnp.maximum(s, e), one(w, s + e)), jnp.ones(D), x)[1])


def between_two_sums(w, x):
    """Of data below, and above of what parameters reach."""

    def step(s, e):
        return (s[0] + e, s[1] + e @ w), one(w, lax.clamp(s[0], e, s[1]))

    return jnp.mean(lax.scan(step, (jnp.ones(D), jnp.ones(D)), x)[1])


def scaled_by_a_sum(w, x):
    """Of trained values, of which no derivative is taken."""
    total = lax.stop_gradient(jnp.sum(jnp.tanh(x @ w)))
    return jnp.mean(lax.map(lambda e: jnp.sum(e * total * w[0]), x))


def two_running_sums(w, x):
    """One of data, one of what parameters reach, and the example that meets both."""

    def step(s, e):
        return (s[0] + e, s[1] + e @ w), one(w, s[0] * s[1] * e)

    return jnp.mean(lax.scan(step, (jnp.ones(D), jnp.ones(D)), x)[1])


LOOPS = {
    **named(written_into_columns, scaled_by_a_sum),
    **named(added_one_by_one, largest_added, two_running_sums, between_two_sums, rows_carried),
    "written at another's place": written(lambda i: B - 1 - i),
    "written over others": written(lambda i: i, rows=2),
    "written beside others": written(
        lambda i: i, start=lambda h: jnp.broadcast_to(h.sum(0), h.shape)
    ),
    "added to a microbatch's rows": running(lambda s, rows: s + rows),
}


def in_groups(met):
    """Examples that lie along two dimensions, [PARTS, B / PARTS, D]."""

    def loss(w, x):
        return jnp.mean(met(jnp.tanh(x.reshape(PARTS, B // PARTS, D) @ w), jnp.tanh(x @ w)))

    return loss


def of_features_and_parts(w, x):
    """As many features as parts, met as if the ones were the others."""
    h = jnp.tanh(x.reshape(PARTS, B // PARTS, D) @ w[:, :PARTS])
    return jnp.mean(h * h.swapaxes(0, 2))


GROUPS = {
    "a batch in parts beside a whole one": in_groups(
        lambda h, z: h * z.reshape(B, D)[: B // PARTS]
    ),
    "turned within a part": in_groups(lambda h, z: h * h.swapaxes(1, 2)),
    "features as parts": of_features_and_parts,
    "turned across parts": in_groups(lambda h, z: h[..., :PARTS] * h[..., :PARTS].swapaxes(0, 2)),
    "regrouped in another order": in_groups(lambda h, z: h.swapaxes(0, 1).reshape(B, D) * z),
    "beside a sum over the batch": in_groups(lambda h, z: h * lax.stop_gradient(z.sum(0))),
    "the largest of each part": in_groups(lambda h, z: h.max(1) ** 2),
    "the largest over parts": in_groups(lambda h, z: h.max(0) ** 2),
    "reversed within a part": in_groups(lambda h, z: h * h[:, ::-1]),
}


def solved(call):
    """A call of LAPACK's on the square matrix that a layer makes of the batch."""
    return lambda w, x: jnp.mean(call(jnp.tile(x @ w, (1, B // D))) ** 2)


SHARED = np.eye(B, dtype=np.float32) + 1
SOLVES = {
    "a factorisation of the batch": solved(
        lambda h: lax.linalg.cholesky(h, symmetrize_input=False)
    ),
    "a solve from the left": solved(
        lambda h: lax.linalg.triangular_solve(SHARED, h, left_side=True)
    ),
    "a solve from the right": solved(lambda h: lax.linalg.triangular_solve(SHARED, h.T)),
    "a solve with a matrix of examples' rows": solved(lambda h: lax.linalg.triangular_solve(h, h)),
    "matrices and sides along different dimensions": solved(
        lambda h: lax.linalg.triangular_solve(jnp.stack([h] * B, 2), jnp.stack([h] * B, 0))
    ),
}


REFUSED = UNTIL_DONE | FLOW | LOOPS | GROUPS | SOLVES


@pytest.mark.first(5)
@pytest.mark.parametrize("loss", REFUSED.values(), ids=REFUSED)
def test_refused(loss):
    with pytest.raises(hs.Refusal):
        hs.grad(loss, statistics=hs.second_moment())(W, X)


SEPARABLE = {
    "until done": until_done(any_large, halved(lambda h, t: h > 1)),
    "written at its own place": written(lambda i: i),
    "in parts": in_groups(lambda h, z: h * z.reshape(h.shape)),
    "a solve from the right": solved(lambda h: lax.linalg.triangular_solve(SHARED, h)),
    "the largest of each": in_groups(lambda h, z: h.max(2) ** 2),
}


@pytest.mark.first(1)
@pytest.mark.parametrize("loss", SEPARABLE.values(), ids=SEPARABLE.keys())
def test_what_they_nearly_are_is_accepted(loss):
    assert hs.explain(hs.grad(loss, statistics=hs.second_moment()), W, X).outputs
