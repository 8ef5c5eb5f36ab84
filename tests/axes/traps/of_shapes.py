"""Traps of shapes: dimensions that are as long as the batch, or are taken for it."""

import jax
import jax.numpy as jnp
from jax import lax

from tests.axes.traps.of_places import hidden
from tests.axes.traps.traps import B, drawn, exact, mixes, unshown

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
    h = hidden(w, x.reshape(-1, 2, 3))
    return jnp.mean(h[:, 0] * h[:, 1])


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


@mixes(has_line=False)
def repeated_beside_tiled(w, x):
    return jnp.mean(hidden(w, jnp.repeat(x, 2, 0)) * hidden(w, jnp.tile(x, (2, 1))))


@exact(own=lambda w, x, b: jnp.mean(hidden(w, x[b]) ** 2))
def tiled_beside_concatenated(w, x):
    return jnp.mean(hidden(w, jnp.tile(x, (2, 1))) * hidden(w, jnp.concatenate([x, x])))


@mixes
def two_examples_in_a_row(w, x):
    rows = (x @ w).reshape(B // 2, -1)
    return jnp.mean(jax.nn.logsumexp(rows, 1))


@mixes(has_line=False)
def a_split_turned_by_as_many(w, x):
    """Halves of halves: both digits of the batch are 2."""
    h = hidden(w, x.reshape(2, 2, 3))
    return jnp.mean(h * h.swapaxes(0, 1))


@mixes(has_line=False)
def sums_along_both_digits(w, x):
    h = hidden(w, x.reshape(2, 2, 3))
    return jnp.mean(h.sum(0) * h.sum(1))


@mixes(w=(B * 3, 2))
def a_layer_over_the_whole_batch(w, x):
    return jnp.mean(jnp.tanh(x.ravel() @ w))


@mixes
def mapped_over_the_features(w, x):
    return jnp.mean(jax.vmap(jax.nn.softmax, 1, 1)(x @ w) ** 2)


@mixes
def wrapped_at_the_edge(w, x):
    h = jnp.pad(hidden(w, x), ((1, 0), (0, 0)), mode="wrap")
    return jnp.mean(h[1:] * h[:-1])


@mixes
def the_edge_repeated(w, x):
    return jnp.mean(hidden(w, jnp.pad(x, ((2, 2), (0, 0)), mode="edge"))[:B] * x)


@mixes
def cropped_by_a_negative_pad(w, x):
    h = hidden(w, x)
    return jnp.mean(lax.pad(h, 0.0, ((-1, 0, 0), (0, 0, 0))) * h[:3])


@mixes
def a_slice_that_is_clamped(w, x):
    """At 3 a slice of three begins at 1."""
    return jnp.mean(lax.dynamic_slice(hidden(w, x), (3, 0), (3, 3)) * hidden(w, x)[:3])


@mixes
def a_gather_that_is_clamped(w, x):
    places = jnp.array([0, 1, 1, 7])
    return jnp.mean(hidden(w, x).at[places].get(mode="clip") * hidden(w, x))


@mixes
def an_image_for_two_kernels(w, x):
    kernels = hidden(w, x)[:, None]  # [B, 1, 3]
    image = x[None, :2] ** 2  # [1, 2, 3]
    return jnp.mean(lax.conv_general_dilated(image, kernels, (1,), "SAME", feature_group_count=2))


@exact
def a_kernel_for_each_image(w, x):
    one = lambda e: lax.conv(e[None, None], hidden(w, e)[None, None], (1,), "SAME")  # noqa: E731
    return jnp.mean(jax.vmap(one)(x) ** 2)


@exact(x=(6, 6))
def a_kernel_for_each_image_of_each_group(w, x):
    def one(e):
        return lax.conv(e.reshape(1, 2, 3), hidden(w, e.reshape(2, 3))[None], (1,), "SAME")

    groups = x.reshape(-1, min(2, len(x)), 6)
    return jnp.mean(jax.vmap(jax.vmap(one))(groups) ** 2)


@unshown
def a_convolution_of_width_one(w, x):
    """The batch is what it slides along."""
    return jnp.mean(jnp.tanh(lax.conv(x.T[None], w.T[:, :, None], (1,), "SAME")))


@mixes
def a_convolution_that_skips(w, x):
    h = lax.conv(x.T[None], w.T[:, :, None], (2,), "SAME")[0]
    return jnp.mean(jnp.tanh(h.T) * x[:2])


def over_examples(one):
    return lambda w, x: jnp.mean(jax.vmap(lambda e: one(hidden(w, e)), axis_name="batch")(x))


@mixes
def handed_round(w, x):
    ring = [(i, (i + 1) % B) for i in range(B)]
    return over_examples(lambda h: h * lax.ppermute(h, "batch", ring))(w, x)


@mixes
def gathered_by_all(w, x):
    return over_examples(lambda h: jnp.sum(lax.all_gather(h, "batch") @ h))(w, x)


@mixes
def the_largest_by_name(w, x):
    return over_examples(lambda h: h * lax.pmax(lax.stop_gradient(h), "batch"))(w, x)


@exact(own=lambda w, x, b: jnp.mean(hidden(w, x[b]) * b))
def the_number_by_name(w, x):
    return over_examples(lambda h: h * lax.axis_index("batch"))(w, x)


@exact(own=lambda w, x, b: (1 + B) * jnp.mean(hidden(w, x[b])))
def a_sum_added_to_each(w, x):
    """Linear in all, so that backwards nobody meets anybody."""
    h = hidden(w, x)
    return jnp.mean(h + h.sum(0))


@mixes
def a_sum_in_the_last_row(w, x):
    h = hidden(w, x)
    return jnp.mean(h.at[-1].set(h.sum(0)) ** 2)


@exact
def parts_without_elements(w, x):
    """As scans have them whose steps concatenate."""
    return jnp.mean(hidden(w, x)) + jnp.sum(lax.concatenate([x[:, :0], x[:, :0]], 1))
