"""Traps of shapes: dimensions that are as long as the batch, or are taken for it."""

import jax
import jax.numpy as jnp

from tests.axes.traps import B, drawn, exact, mixes, unshown
from tests.axes.traps_of_places import hidden

SQUARE = {"x": (3, 3)}
TIMES = {"x": (B, 5, 3)}
AS_MANY = {"x": (B, B, 3)}


@mixes
def features_read_as_examples(w, x):
    return jnp.mean(jax.nn.softmax(hidden(w, x).reshape(3, B), -1) ** 2)


@mixes
def data_read_in_another_order(w, x):
    return jnp.mean(hidden(w, x) * x.reshape(3, B).T)


@mixes(**SQUARE)
def a_square_batch_beside_its_transpose(w, x):
    h = hidden(w, x)
    return jnp.mean(h * h.T)


@mixes(**SQUARE)
def a_square_batch_times_itself(w, x):
    return jnp.trace(jnp.linalg.matrix_power(hidden(w, x), 2))


@mixes(**SQUARE)
def examples_along_the_features(w, x):
    """`x.T @ w` by mistake."""
    return jnp.mean(jnp.tanh(x.T @ w) * drawn((3, 3), 8))


@mixes(**SQUARE)
def inverse_of_the_batch(w, x):
    return jnp.sum(jnp.linalg.inv(hidden(w, x) + 3 * jnp.eye(3)))


@mixes(**SQUARE)
def normalised_along_the_wrong_of_two(w, x):
    return jnp.mean(jax.nn.softmax(x @ w, axis=0)[:, 0] ** 2)


@exact(own=lambda w, x, b: 3 * hidden(w, x[b])[b], **SQUARE)
def diagonal_of_a_square_batch(w, x):
    return jnp.sum(jnp.diagonal(hidden(w, x)))


@unshown(**SQUARE)
def trace_of_a_square_batch(w, x):
    return jnp.sum(jnp.triu(hidden(w, x).T + jnp.eye(3) * x))


@exact(**SQUARE)
def a_square_batch_transposed_twice(w, x):
    return jnp.mean(jnp.tanh((w.T @ x.T).T))


@mixes(**SQUARE)
def bias_from_the_other_axis(w, x):
    return jnp.mean(jnp.tanh(x @ w + x[:, :1].T))


@mixes(**SQUARE)
def as_symmetric_as_possible(w, x):
    h = hidden(w, x)
    return jnp.mean((h - h.T) ** 2)


@mixes
def groups_across_examples(w, x):
    """Group norm over six rows of two."""
    groups = (x @ w).reshape(6, 2)
    return jnp.mean(jnp.tanh(groups - groups.mean(1, keepdims=True)) ** 2)


@mixes
def a_window_over_the_flat_batch(w, x):
    flat = hidden(w, x).ravel()
    return jnp.mean(flat[1:] * flat[:-1])


@exact(**TIMES)
def tokens_of_all_flattened(w, x):
    return jnp.mean(hidden(w, x.reshape(-1, 3)).reshape(len(x), -1).sum(1) ** 2)


@mixes(**TIMES)
def tokens_put_together_otherwise(w, x):
    """[B * T] read as [T, B]."""
    return jnp.mean(hidden(w, x.reshape(-1, 3)).reshape(5, B, 3).sum(0) ** 2)


@mixes(**TIMES)
def one_token_of_all(w, x):
    return jnp.mean(hidden(w, x.swapaxes(0, 1)).sum(1) ** 2)


@mixes(**TIMES)
def tokens_moved_over_the_edge(w, x):
    """The last token of one example is the first one's before of the next."""
    flat = hidden(w, x.reshape(-1, 3))
    return jnp.mean(flat * jnp.roll(flat, 1, 0))


@exact(**TIMES)
def tokens_moved_within(w, x):
    h = hidden(w, x)
    return jnp.mean(h * jnp.roll(h, 1, 1))


@exact(**AS_MANY)
def attention_as_long_as_the_batch(w, x):
    h = hidden(w, x)
    return jnp.mean(jax.nn.softmax(jnp.einsum("bsd,btd->bst", h, h)) ** 2)


@mixes(**AS_MANY)
def attention_along_the_other(w, x):
    h = hidden(w, x)
    return jnp.mean(jax.nn.softmax(jnp.einsum("sbd,tbd->bst", h, h)) ** 2)


@mixes(**AS_MANY)
def exchanged_and_met(w, x):
    h = hidden(w, x)
    return jnp.mean(h * h.swapaxes(0, 1))


@mixes(**AS_MANY)
def one_letter_for_two(w, x):
    """`bbd`: token b of example b, beside all of another."""
    return jnp.mean(jnp.einsum("bbd,tbd->td", hidden(w, x), x))


@exact(x=(B, 3, 5))
def batch_in_the_middle(w, x):
    h = hidden(w, jnp.transpose(x, (2, 0, 1)))
    return jnp.mean(jnp.max(h, 0))


@mixes(x=(B, 3, 5))
def largest_of_the_middle(w, x):
    h = hidden(w, jnp.transpose(x, (2, 0, 1)))
    return jnp.mean(jnp.max(h, 1))


@exact(x=(B, 4, 3))
def groups_of_channels(w, x):
    h = hidden(w, x).reshape(len(x), 2, -1)
    return jnp.mean(jnp.tanh((h - h.mean(-1, keepdims=True)) / h.std(-1, keepdims=True)) ** 2)


@mixes(x=(B, 4, 3))
def groups_of_channels_in_front(w, x):
    h = hidden(w, x).reshape(2, B, -1)
    return jnp.mean(jnp.tanh((h - h.mean(-1, keepdims=True)) / h.std(-1, keepdims=True)) * h[:1])


@mixes(x=(8, 3), has_line=False)
def two_splits_that_cross(w, x):
    return jnp.mean(hidden(w, x.reshape(4, 2, 3)) * hidden(w, x.reshape(2, 4, 3)).swapaxes(0, 1))


@exact(own=lambda w, x, b: jnp.mean(hidden(w, x[b]) ** 2), x=(8, 3))
def two_splits_that_fit(w, x):
    return jnp.mean(hidden(w, x.reshape(4, 2, 3)) * hidden(w, x.reshape(2, 4, 3)).reshape(4, 2, 3))


@mixes(x=(8, 3))
def a_mean_over_half_of_a_split(w, x):
    h = hidden(w, x.reshape(4, 2, 3))
    return jnp.mean(h.mean(1) ** 2)


@exact(x=(1, 3))
def a_batch_of_one(w, x):
    h = x @ w
    return jnp.mean(jnp.tanh(h - h.mean(0) + jnp.cumsum(h, 0))) ** 2


@exact(x=(2, 1), w=(1, 3))
def single_features(w, x):
    return jnp.mean(hidden(w, x))


@mixes(x=(2, 1), w=(1, 3))
def single_features_broadcast_away(w, x):
    """[B, 1] beside [1, B]."""
    return jnp.mean(hidden(w, x)[:, :1] * x.T)


@exact(
    options={"in_axes": 1}, x=(3, B), count=B, own=lambda w, x, b: jnp.mean(jnp.tanh(w @ x[:, b]))
)
def examples_in_columns(w, x):
    return jnp.mean(jnp.tanh(w @ x))


@exact(
    options={"rows_per_example": 2},
    count=B // 2,
    own=lambda w, x, b: jnp.mean(hidden(w, x[2 * b]) * hidden(w, x[2 * b + 1])),
)
def pairs_that_are_examples(w, x):
    return jnp.mean(hidden(w, x[::2]) * hidden(w, x[1::2]))


@exact(options={"loss_reduction": "sum"})
def a_sum_for_a_mean(w, x):
    return jnp.sum(hidden(w, x) ** 2)


@mixes(options={"loss_reduction": "sum"})
def a_sum_squared(w, x):
    return jnp.sum(hidden(w, x)) ** 2


@exact
def mixing_that_no_gradient_needs(w, x):
    h = hidden(w, x)
    _ = jnp.mean(h - h.mean(0))
    return jnp.mean(h) + jax.lax.stop_gradient(jnp.max(h))
