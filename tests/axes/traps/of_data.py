"""Traps of data: what no parameter reaches is made of many examples, and meets single ones."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import hlo_surgery as hs
from tests.axes.traps.of_places import ORDER, hidden, labels
from tests.axes.traps.traps import B, drawn, exact, mixes, unshown

PAIRS, MATRIX = np.array([0, 0, 2, 2]), drawn((B, B), 9)
MIX = (drawn((1, 3), 4) > 0).astype(np.float32)


@mixes
def labels_of_others(w, x):
    return jnp.mean(hidden(w, x)[jnp.arange(B), labels(x)[::-1]])


@mixes
def labels_of_others_along_an_axis(w, x):
    return jnp.mean(jnp.take_along_axis(hidden(w, x), jnp.roll(labels(x), 1)[:, None], 1))


@mixes
def kept_where_another_is_positive(w, x):
    return jnp.mean(jnp.where(x[::-1] > 0, hidden(w, x), 0.0))


@mixes
def features_cut_from_another(w, x):
    """CutMix."""
    return jnp.mean(hidden(w, jnp.where(MIX > 0, x, x[ORDER])))


@mixes
def steps_with_data_of_another(w, x):
    step = lambda c, a: (c + jnp.sum(hidden(w, a[0]) * a[1]), None)  # noqa: E731
    return lax.scan(step, 0.0, (x, x[::-1]))[0]


@mixes
def steps_with_the_label_of_the_next(w, x):
    step = lambda i, c: c + hidden(w, x[i])[labels(x)[(i + 1) % B]]  # noqa: E731
    return lax.fori_loop(0, B, step, 0.0) / B


@mixes
def as_the_first_ones_label(w, x):
    return jnp.mean(jnp.where(labels(x) == labels(x)[0], 1.0, 0.1) * hidden(w, x).sum(1))


@mixes
def largest_of_others_by_a_constant_order(w, x):
    """The largest of each alone is its own."""
    own = jnp.max(jnp.where(np.eye(B) > 0, x[:, 0], -9.0), 1)
    return jnp.mean(hidden(w, x).sum(1) * (np.eye(B, dtype=np.float32)[ORDER] @ own))


@mixes
def largest_of_each_part(w, x):
    parts = jnp.max(x[:1, 0]), jnp.max(x[1:, 0])
    return jnp.mean(hidden(w, x).sum(1) * jnp.where(np.arange(B) < 1, *parts))


def frequencies(x):
    return jax.nn.one_hot(labels(x), 3).sum(0)


@exact(own=lambda w, x, b: jnp.sum(hidden(w, x[b])) / frequencies(x)[labels(x)[b]], holds_data=True)
def weights_by_the_class_in_the_batch(w, x):
    return jnp.mean(hidden(w, x).sum(1) / frequencies(x)[labels(x)])


@mixes
def weights_by_equal_labels(w, x):
    same = labels(x)[:, None] == labels(x)[None]
    return jnp.mean(hidden(w, x).sum(1) / jnp.sum(same, 1))


@exact(
    own=lambda w, x, b: jnp.sum(hidden(w, x[b])) * jnp.exp(-jnp.sum((x[b] - x.mean(0)) ** 2)),
    holds_data=True,
)
def weights_by_the_distance_to_the_mean(w, x):
    far = jnp.sum((x - x.mean(0)) ** 2, 1)
    return jnp.mean(hidden(w, x).sum(1) * jnp.exp(-far))


@exact(
    own=lambda w, x, b: jnp.mean(hidden(w, x[b] @ jnp.linalg.inv(x.T @ x + jnp.eye(3)))),
    holds_data=True,
)
def data_whitened(w, x):
    return jnp.mean(hidden(w, x @ jnp.linalg.inv(x.T @ x + jnp.eye(3))))


@mixes
def the_nearest_neighbour(w, x):
    apart = jnp.sum((x[:, None] - x[None]) ** 2, -1) + 99 * jnp.eye(B)
    return jnp.mean(hidden(w, x) * x[jnp.argmin(apart, 1)])


@mixes
def packed_to_the_front(w, x):
    """Real examples first, as by a running count of a mask."""
    real = x[:, 0] > 0
    place = jnp.where(real, jnp.cumsum(real) - 1, B)
    packed = jnp.zeros_like(x).at[place].set(x, mode="drop")
    return jnp.mean(hidden(w, packed) * jnp.arange(B)[:, None])


@mixes
def chosen_by_nonzero(w, x):
    (real,) = jnp.nonzero(x[:, 0] > 0, size=B, fill_value=0)
    return jnp.mean(hidden(w, x[real]) * x)


@mixes
def experts_with_room_for_one(w, x):
    """Who comes second to an expert is dropped."""
    chosen = jax.nn.one_hot(labels(x), 3)
    kept = chosen * (jnp.cumsum(chosen, 0) <= 1)
    return jnp.sum(hidden(w, x) * kept) / B


@mixes
def experts_choose_their_examples(w, x):
    scores, which = lax.top_k((x @ w).T, 2)  # [3, 2]
    return jnp.mean(jax.nn.sigmoid(scores)[..., None] * x[which])


@mixes
def rows_sorted_by_expert(w, x):
    order = jnp.argsort(labels(x))
    sizes = frequencies(x).astype(jnp.int32)
    found = lax.ragged_dot(x[order], jnp.stack([w, 2 * w, 3 * w]), sizes)
    return jnp.mean(jnp.tanh(found) * jnp.arange(B)[:, None])


@mixes
def balanced_by_sinkhorn(w, x):
    scores = x @ w
    for axis in (1, 0, 1):
        scores = jax.nn.log_softmax(scores, axis)
    return jnp.mean(jnp.exp(scores) * x)


@mixes
def resampled_by_weight(w, x):
    which = jax.random.categorical(jax.random.key(0), x[:, 0], shape=(B,))
    return jnp.mean(hidden(w, x)[which] * x)


@mixes
def quantised_by_the_largest_of_all(w, x):
    h = x @ w
    scale = lax.stop_gradient(jnp.max(jnp.abs(h)))
    rounded = h + lax.stop_gradient(jnp.round(h / scale * 7) * scale / 7 - h)
    return jnp.mean(jnp.tanh(rounded))


@exact
def quantised_by_the_largest_of_each(w, x):
    h = x @ w
    scale = lax.stop_gradient(jnp.max(jnp.abs(h), 1, keepdims=True))
    rounded = h + lax.stop_gradient(jnp.round(h / scale * 7) * scale / 7 - h)
    return jnp.mean(jnp.tanh(rounded))


@mixes
def parity_of_the_batch(w, x):
    odd = lax.reduce((x[:, 0] > 0).astype(jnp.int32), 0, lax.bitwise_xor, (0,))
    return jnp.mean(hidden(w, x)) * jnp.sum(x @ w > 0) * odd


@exact
def whole_numbers_of_each(w, x):
    counts = jnp.sum((100 * (x @ w > 0)).astype(jnp.uint8), 1, dtype=jnp.uint8)
    return jnp.mean(hidden(w, x).sum(1) * counts)


@exact
def rounded_for_each(w, x):
    return jnp.mean(hidden(w, x) * lax.stop_gradient(x @ w).astype(jnp.int32))


@mixes
def a_seed_of_the_data(w, x):
    key = jax.random.key(labels(x)[0])
    return jnp.mean(hidden(w, x) * jax.random.normal(key, (B, 1)))


@mixes
def cotangents_of_the_one_before(w, x):
    """Forwards each is alone; backwards it gets another's cotangent."""

    @jax.custom_vjp
    def same(h):
        return h

    same.defvjp(lambda h: (h, None), lambda _, g: (jnp.roll(g, 1, 0),))
    return jnp.mean(jnp.tanh(same(x @ w)))


@mixes
def cotangents_clipped_together(w, x):
    @jax.custom_vjp
    def same(h):
        return h

    same.defvjp(lambda h: (h, None), lambda _, g: (g / jnp.linalg.norm(g),))
    return jnp.mean(jnp.tanh(same(x @ w)))


@exact
def cotangents_clipped_one_by_one(w, x):
    @jax.custom_vjp
    def same(h):
        return h

    def back(_, g):
        return (g / jnp.maximum(1, jnp.linalg.norm(g * len(x), axis=1, keepdims=True)),)

    same.defvjp(lambda h: (h, None), back)
    return jnp.mean(jnp.tanh(same(x @ w)).sum(1))


@exact
def trace_of_the_curvature(w, x):
    """Linear in the loss."""
    loss = lambda v: jnp.mean(hidden(v.reshape(3, 3), x) ** 2)  # noqa: E731
    return jnp.trace(jax.hessian(loss)(w.ravel()))


@mixes
def norm_of_the_curvature(w, x):
    loss = lambda v: jnp.mean(hidden(v.reshape(3, 3), x) ** 2)  # noqa: E731
    return jnp.sum(jax.hessian(loss)(w.ravel()) ** 2)


def each_gradient(w, x):
    return jax.vmap(jax.grad(lambda v, e: jnp.mean(hidden(v, e) ** 2)), (None, 0))(w, x)


@exact
def norms_of_each_gradient(w, x):
    return jnp.mean(jnp.sum(each_gradient(w, x) ** 2, (1, 2)))


@mixes
def variance_of_the_gradients(w, x):
    return jnp.sum(jnp.var(each_gradient(w, x), 0))


@exact
def a_slope_along_a_direction(w, x):
    loss = lambda v: jnp.mean(hidden(v, x) ** 2)  # noqa: E731
    return jax.jvp(loss, (w,), (jnp.ones_like(w),))[1]


@mixes
def solved_by_conjugate_gradients(w, x):
    h = hidden(w, x)
    solve = lambda v: h.T @ (h @ v) + v  # noqa: E731
    return jnp.sum(jax.scipy.sparse.linalg.cg(solve, x[0], maxiter=3)[0] ** 2)


@exact(own=lambda w, x, b: jnp.mean(hidden(w, x[b])) + B * (b == 0) * jnp.sum(x[0] @ w))
def a_term_of_the_first(w, x):
    return jnp.mean(hidden(w, x)) + jnp.sum(x[0] @ w)


@unshown
def data_written_over(w, x):
    return jnp.mean(x.at[2].set(x[0]) @ w[0])


@unshown
def written_at_a_number(w, x):
    return jnp.mean(lax.dynamic_update_slice(x, x[:1], (2, 0)) @ w[0])


@unshown
def in_one_of_two_orders(w, x):
    return jnp.mean(jnp.where(PAIRS[:, None] > 1, x, x[::-1]) @ w[0])


@mixes
def through_pairs(w, x):
    return jnp.mean((x @ x.T) @ x @ w[0])


@unshown
def a_running_sum_of_data(w, x):
    return jnp.mean(jnp.cumsum(x, 0) @ w[0])


@unshown
def mixed_up(w, x):
    return jnp.mean((0.5 * x + 0.5 * x[::-1]) @ w[0])


@unshown
def beside_their_own(w, x):
    return jnp.mean(jnp.tanh(x @ w[0]) + x[::-1] @ w[0])


@mixes
def spread_by_a_matrix(w, x):
    return jnp.sum((MATRIX @ jnp.tanh(x[ORDER]) * x) @ w[0]) / B


@mixes
def spread_in_part(w, x):
    return jnp.sum((MATRIX[:, 1:] @ jnp.tanh(x[:-1] * x[1:]) * x) @ w[0]) / B


EVEN = np.arange(B)[:, None] % 2 == 0


@unshown
def a_marked_constant_as_a_term(w, x):
    return jnp.mean(hidden(w, x)) + jnp.sum(hs.constant(hidden(w, x).mean(0)) @ w)


@mixes
def mixed_beside_a_marked_constant(w, x):
    h = x @ w
    return jnp.mean((h - h.mean(0)) ** 2 * hs.constant(h.mean(0)))


@exact(own=lambda w, x, b: jnp.mean(hidden(w, x[b]) * jnp.mean(x)), holds_data=True)
def data_behind_a_barrier(w, x):
    return jnp.mean(hidden(w, x) * jnp.mean(lax.optimization_barrier(x)))


@mixes
def the_mean_in_the_place_of_some(w, x):
    return jnp.mean(hidden(w, jnp.where(EVEN, jnp.mean(x), x)))


@mixes
def the_mean_in_some_steps(w, x):
    mean = jnp.mean(x)
    step = lambda i, c: c + jnp.mean(hidden(w, jnp.where(i % 2 == 0, mean, x[i])))  # noqa: E731
    return lax.fori_loop(0, B, step, 0.0) / B


@exact(own=lambda w, x, b: jnp.mean(hidden(w, jnp.mean(x) + 0 * x[b])), holds_data=True)
def the_mean_in_the_place_of_all(w, x):
    """What parameters alone choose, they choose for all."""
    return jnp.mean(hidden(w, jnp.where(jnp.sum(w**2) > 0, jnp.mean(x), x)))


@unshown
def parameters_written_over_an_example(w, x):
    return jnp.mean(hidden(w, x.at[jnp.array([2])].set(w[:1])))


@unshown
def parameters_written_over_examples_of_a_linear_loss(w, x):
    """Row b is example b's, but the gradient is a constant."""
    return jnp.mean((x @ w).at[jnp.array([2, 0])].set(w[:2]))


@unshown
def parameters_added_to_examples_in_another_order(w, x):
    weights = jnp.arange(1.0, B + 1)[:, None]
    return jnp.mean((x @ w).at[jnp.arange(B)[::-1]].add(weights * w[0]))


@unshown
def parameters_written_where_they_say(w, x):
    """Over the features of the example that a parameter names."""
    return jnp.mean(x.at[jnp.argmax(w[:, :1], 0)].set(w[:1]) @ w)


@unshown
def parameters_written_into_a_row(w, x):
    return jnp.mean(lax.dynamic_update_slice(x @ w, w[:1], (jnp.argmax(w[:, 0]), 0)))


@unshown
def parameters_stacked_between_examples(w, x):
    h = x @ w
    return jnp.mean(jnp.arange(1.0, B + 1)[:, None] * jnp.stack([w[0], h[1], w[1], h[3]]))


@exact
def parameters_written_over_a_feature_of_a_linear_loss(w, x):
    return jnp.mean((x @ w).at[:, jnp.array([2])].set(w[0, 0]))


@exact
def parameters_written_over_a_feature(w, x):
    return jnp.mean(hidden(w, x.at[:, jnp.array([2])].set(w[0, 0])))
