"""Traps of all: in pairs, in a matrix that is made of them, or in when a loop ends."""

import jax
import jax.numpy as jnp
from jax import lax

from tests.axes.traps.of_places import hidden, labels
from tests.axes.traps.traps import B, drawn, exact, mixes

TARGET = drawn((3,), 11)


@mixes
def correlation(w, x):
    h = hidden(w, x).sum(1)
    return jnp.corrcoef(h, x[:, 0])[0, 1]


@mixes
def similar_pairs(w, x):
    h = hidden(w, x)
    return -jnp.mean(jnp.diag(jax.nn.log_softmax(h @ x.T)))


@mixes
def contrast_with_all_others(w, x):
    h = hidden(w, x)
    return jnp.mean(jax.nn.logsumexp(h @ h.T - 9 * jnp.eye(B), -1))


@mixes
def hardest_of_triplets(w, x):
    h = hidden(w, x)
    apart = jnp.sum((h[:, None] - h[None]) ** 2, -1)
    return jnp.mean(jax.nn.relu(1 - jnp.min(apart + 9 * jnp.eye(B), 1)))


@mixes
def pairs_of_one_label(w, x):
    h = hidden(w, x)
    same = labels(x)[:, None] == labels(x)[None]
    return jnp.mean(same * jnp.sum(jnp.abs(h[:, None] - h[None]), -1))


@mixes
def discrepancy_of_kernels(w, x):
    h = hidden(w, x)
    kernel = jnp.exp(-jnp.sum((h[:, None] - h[None]) ** 2, -1))
    return jnp.mean(kernel) - 2 * jnp.mean(jnp.exp(-jnp.sum((h - TARGET) ** 2, -1)))


@mixes
def decorrelated_features(w, x):
    h = hidden(w, x)
    return jnp.sum((h.T @ h / B - jnp.eye(3)) ** 2)


@mixes
def attention_across_the_batch(w, x):
    return jnp.mean(jax.nn.softmax(x @ w @ x.T) @ x)


@mixes
def attention_with_axes_exchanged(w, x):
    """`jax.nn.dot_product_attention` takes [batch, time, heads, features]."""
    h = hidden(w, x)[None, :, None]
    return jnp.mean(jax.nn.dot_product_attention(h, h, h) ** 2)


@exact
def attention_of_each_example(w, x):
    h = hidden(w, x)[:, None, None]
    return jnp.mean(jax.nn.dot_product_attention(h, h + 1, h) ** 2)


@mixes
def ranked_in_pairs(w, x):
    s = hidden(w, x).sum(1)
    return jnp.mean(jax.nn.softplus(s[:, None] - s[None]) * (x[:, :1] < x[:, 0]))


@exact(own=lambda w, x, b: 2 * jnp.sum(hidden(w, x[b])))
def sum_over_all_pairs(w, x):
    """Linear in each, though each meets all."""
    s = hidden(w, x).sum(1)
    return jnp.mean(s[:, None] + s[None])


@mixes
def broadcast_against_each_other(w, x):
    """[B, 1] beside [B] is [B, B]."""
    return jnp.mean(((x @ w)[:, :1] - x[:, 0]) ** 2)


@mixes
def volume_of_the_covariance(w, x):
    h = hidden(w, x)
    return jnp.linalg.slogdet(h.T @ h + jnp.eye(3))[1]


@mixes
def likelihood_of_a_process(w, x):
    h = hidden(w, x)
    factor = jnp.linalg.cholesky(h @ h.T + jnp.eye(B))
    return jnp.sum(lax.linalg.triangular_solve(factor, x[:, :1], left_side=True, lower=True) ** 2)


@mixes
def regression_in_closed_form(w, x):
    h = hidden(w, x)
    found = jnp.linalg.solve(h.T @ h + jnp.eye(3), h.T @ x[:, 0])
    return jnp.mean((h @ found - x[:, 0]) ** 2)


@mixes
def orthogonal_examples(w, x):
    return jnp.mean(jnp.linalg.qr(hidden(w, x))[0] ** 4)


@mixes
def whitened(w, x):
    h = hidden(w, x)
    values, vectors = jnp.linalg.eigh(h.T @ h / B + jnp.eye(3))
    return jnp.mean(jnp.tanh(h @ (vectors / jnp.sqrt(values)) @ vectors.T) * x)


@mixes
def singular_values(w, x):
    return jnp.sum(jnp.linalg.svd(hidden(w, x), compute_uv=False) ** 3)


@mixes
def largest_stretch(w, x):
    h = hidden(w, x)
    v = lax.stop_gradient(h.T @ (h @ jnp.ones(3)))
    return jnp.sum((h @ (v / jnp.linalg.norm(v))) ** 2)


@mixes
def until_all_are_small(w, x):
    """Nobody keeps what it has when it is small."""
    h = lax.stop_gradient(x @ w)
    h = lax.while_loop(lambda h: jnp.any(jnp.abs(h) > 0.4), lambda h: h / 2, h)
    return jnp.mean(hidden(w, x * h))


@exact
def until_each_is_small(w, x):
    def halved(h):
        return lax.while_loop(lambda h: jnp.abs(h[0]) > 0.4, lambda h: h / 2, h)

    return jnp.mean(hidden(w, x * jax.vmap(halved)(lax.stop_gradient(x @ w))))


@mixes
def steps_until_all_are_done(w, x):
    going = lambda s: jnp.any(jnp.abs(s[0]) > 0.4)  # noqa: E731
    step = lambda s: (jnp.where(jnp.abs(s[0]) > 0.4, s[0] / 2, s[0]), s[1] + 1)  # noqa: E731
    return jnp.mean(hidden(w, x)) * lax.while_loop(going, step, (x @ w, 0))[1]


@mixes
def until_the_mean_is_small(w, x):
    h = lax.stop_gradient(x @ w)
    h = lax.while_loop(lambda h: jnp.mean(h**2) > 0.2, lambda h: 0.7 * h, h)
    return jnp.mean(hidden(w, x * h))


@mixes
def until_the_first_is_done(w, x):
    def step(h):
        return jnp.where(jnp.abs(h) > 0.3, h / 2, h)

    h = lax.while_loop(lambda h: jnp.all(jnp.abs(h).max(1) > 0.3), step, lax.stop_gradient(x @ w))
    return jnp.mean(hidden(w, x * h))


@mixes
def a_fixed_point_of_all(w, x):
    """Iterated until the residual of the whole batch is small."""
    f = lambda z: jnp.tanh(0.3 * z @ w + x)  # noqa: E731
    going = lambda s: jnp.max(jnp.abs(s[1] - s[0])) > 0.05  # noqa: E731
    z = lax.while_loop(going, lambda s: (s[1], f(s[1])), (x, f(x)))[1]
    return jnp.mean(f(lax.stop_gradient(z)) ** 2)


def until(going, kept):
    """Halved, four times at most, as long as any is `going`, where it is to be `kept` up."""

    def loss(w, x):
        step = lambda s: (jnp.where(kept(s[0]), s[0] / 2, s[0]), s[1] + 1)  # noqa: E731
        h = lax.stop_gradient(x @ w), 0
        h = lax.while_loop(lambda s: jnp.any(going(s[0])) & (s[1] < 4), step, h)[0]
        return jnp.mean(hidden(w, x * h))

    return loss


@exact
def until_done_or_four_times(w, x):
    return until(lambda h: h > 0.3, lambda h: h > 0.3)(w, x)


@mixes
def kept_up_under_another_bound(w, x):
    return until(lambda h: h > 0.3, lambda h: h > 0.05)(w, x)


@mixes
def kept_up_under_another_comparison(w, x):
    return until(lambda h: h > 1.2, lambda h: h < 1.2)(w, x)


@mixes
def kept_up_where_it_is_not_going(w, x):
    return until(lambda h: h > 1.2, lambda h: ~(h > 1.2))(w, x)


@mixes
def kept_up_with_more_than_who_is_going(w, x):
    return until(lambda h: h > 0.3, lambda h: (h > 0.3) | (h < -0.3))(w, x)


@mixes
def going_as_long_as_all_are(w, x):
    return until(lambda h: jnp.all(h > -0.8), lambda h: h > -0.8)(w, x)


@mixes
def going_until_another_is_done(w, x):
    return until(lambda h: h[::-1] > 1.2, lambda h: h > 0.4)(w, x)


@mixes
def going_as_often_as_data_says(w, x):
    going = lambda s: jnp.any(s[0] > 0.3) & (s[1] < jnp.sum(x[:, 0] > 0))  # noqa: E731
    step = lambda s: (jnp.where(s[0] > 0.3, s[0] / 2, s[0]), s[1] + 1)  # noqa: E731
    h = lax.while_loop(going, step, (lax.stop_gradient(x @ w), 0))[0]
    return jnp.mean(hidden(w, x * h))


@exact
def until_no_flag_is_up(w, x):
    """A flag stays down, and what it guards as it is."""

    def step(s):
        h, alive = jnp.where(s[1], s[0] / 2, s[0]), s[1]
        return h, alive & (h > 0.3)

    h = lax.stop_gradient(x @ w)
    h = lax.while_loop(lambda s: jnp.any(s[1]), step, (h, h > 0.3))[0]
    return jnp.mean(hidden(w, x * h))


@mixes
def until_no_flag_is_up_again(w, x):
    """A flag goes up again, as long as others are."""

    def step(s):
        h = jnp.where(s[1], s[0] / 2, s[0])
        return h, (h > 0.3) | ~s[1] & (h < -0.3), s[2] + 1

    h = lax.stop_gradient(x @ w)
    going = lambda s: jnp.any(s[1]) & (s[2] < 4)  # noqa: E731
    h = lax.while_loop(going, step, (h, h > 0.3, 0))[0]
    return jnp.mean(hidden(w, x * h))


@mixes
def done_and_begun_anew(w, x):
    """The bound goes on moving for who is done."""

    def step(s):
        h, bound, i = s
        return jnp.where(h > bound, h / 2, h), 0.3 - 0.2 * i + 0 * bound, i + 1

    going = lambda s: jnp.any(s[0] > s[1]) & (s[2] < 6)  # noqa: E731
    h = lax.stop_gradient(x @ w)
    h = lax.while_loop(going, step, (h, 0.3 + 0 * h, 0))[0]
    return jnp.mean(hidden(w, x * h))


@mixes
def what_goes_on_beside_the_done(w, x):
    step = lambda s: (jnp.where(s[0] > 0.3, s[0] / 2, s[0]), s[1] + s[0])  # noqa: E731
    h = lax.stop_gradient(x @ w)
    h = lax.while_loop(lambda s: jnp.any(s[0] > 0.3), step, (h, h))[1]
    return jnp.mean(hidden(w, x * h))


@exact
def steps_of_each(w, x):
    """Counted where it goes on."""

    def step(s):
        going = s[0] > 0.3
        return jnp.where(going, s[0] / 2, s[0]), jnp.where(going, s[1] + 1, s[1])

    h = lax.stop_gradient(x @ w)
    steps = lax.while_loop(lambda s: jnp.any(s[0] > 0.3), step, (h, 0 * h))[1]
    return jnp.mean(hidden(w, x * steps))


@mixes
def kept_up_under_the_same_bound_of_another(w, x):
    """Of another feature."""
    bound = 0.3 * jnp.sign(w[0, 0]) ** 2
    halved = lambda h: jnp.where((h[:, 1] > bound)[:, None], h / 2, h)  # noqa: E731
    going = lambda h: jnp.any(h[:, 0] > bound)  # noqa: E731
    h = lax.stop_gradient(x @ w)
    h = lax.while_loop(
        lambda s: going(s[0]) & (s[1] < 4), lambda s: (halved(s[0]), s[1] + 1), (h, 0)
    )
    return jnp.mean(hidden(w, x * h[0]))


@mixes
def kept_up_where_a_half_is_going(w, x):
    return until(lambda h: h > 0.3, lambda h: h / 2 > 0.05)(w, x)


@mixes
def going_where_a_half_is_kept_up(w, x):
    return until(lambda h: h / 2 > 0.15, lambda h: h > 0.05)(w, x)


@mixes
def kept_up_by_another_function(w, x):
    return until(lambda h: jnp.tanh(h) > 0.3, lambda h: jnp.exp(h) > 0.3)(w, x)


@mixes
def kept_up_by_the_largest_feature(w, x):
    smallest, largest = lambda h: h.min(1, keepdims=True), lambda h: h.max(1, keepdims=True)
    return until(lambda h: smallest(h) > -0.3, lambda h: largest(h) > -0.3)(w, x)


@exact
def kept_up_by_rows(w, x):
    going = lambda h: jnp.abs(h[:, 0]) > 0.1  # noqa: E731
    halved = lambda h: jnp.where(going(h)[:, None], h / 2, h)  # noqa: E731
    h = lax.while_loop(lambda h: jnp.any(going(h)), halved, lax.stop_gradient(x @ w))
    return jnp.mean(hidden(w, x * h))


@mixes
def a_flag_that_falls_while_others_go_on(w, x):
    """No flag of who is done."""

    def step(s):
        h, alive, flag, i = s
        return jnp.where(alive, h / 2, h), alive & (h > 0.3), flag & (i < 3), i + 1

    h = lax.stop_gradient(x @ w)
    h = lax.while_loop(lambda s: jnp.any(s[1]), step, (h, h > 0.3, h < 9, 0))
    return jnp.mean(hidden(w, x * h[0]) * h[2])
