"""Traps of places: examples are put elsewhere, looked up or ordered, and meet others there."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.axes.traps.traps import B, drawn, exact, mixes, unshown

ORDER = np.array([2, 0, 3, 1])
MATRIX = drawn((B, B), 9)


def hidden(w, x):
    return jnp.tanh(x @ w)


def labels(x):
    """[B] of each example's own numbers, as data."""
    return jnp.argmax(x, -1)


@mixes
def rolled(w, x):
    return jnp.mean(hidden(w, x) * jnp.roll(hidden(w, x), 1, 0))


@mixes
def rolled_by_as_much_as_data_says(w, x):
    return jnp.mean(hidden(w, x) * jnp.roll(x, labels(x)[0], 0))


@mixes
def mixed_up_with_the_one_before(w, x):
    return jnp.mean(hidden(w, 0.3 * x + 0.7 * jnp.roll(x, 1, 0)))


@mixes
def reversed_order(w, x):
    return jnp.mean(hidden(w, x) * lax.rev(hidden(w, x), (0,)))


@mixes
def flipped_along_all_axes(w, x):
    return jnp.mean(hidden(w, x) * jnp.flip(x))


@mixes
def permuted_by_a_constant(w, x):
    return jnp.mean(hidden(w, x) * hidden(w, x[ORDER]))


@mixes
def permuted_by_a_matrix(w, x):
    return jnp.mean(hidden(w, np.eye(B, dtype=np.float32)[ORDER] @ x) * x)


@mixes
def permuted_at_random(w, x):
    order = jax.random.permutation(jax.random.key(0), B)
    return jnp.mean(hidden(w, x) * hidden(w, x)[order])


@mixes
def negatives_drawn_from_the_batch(w, x):
    drawn_ones = jax.random.choice(jax.random.key(1), x, (2,))
    return jnp.mean(jax.nn.relu(1 + hidden(w, x).sum(1)[:, None] - hidden(w, drawn_ones).sum(1)))


@mixes
def neighbours_modulo_the_batch(w, x):
    return jnp.mean(hidden(w, x) * hidden(w, x)[(jnp.arange(B) + 1) % B])


@mixes
def shifted_slices(w, x):
    return jnp.mean(hidden(w, x)[1:] * hidden(w, x)[:-1])


@mixes
def differences_of_neighbours(w, x):
    return jnp.mean(jnp.diff(hidden(w, x), axis=0) ** 2)


@mixes
def even_beside_odd(w, x):
    return jnp.mean(hidden(w, x[::2]) * hidden(w, x[1::2]))


@mixes
def halves_beside_each_other(w, x):
    first, second = jnp.split(hidden(w, x), 2)
    return jnp.mean(first * second)


@mixes
def halves_exchanged(w, x):
    return jnp.mean(hidden(w, x) * jnp.concatenate([x[2:], x[:2]]))


@mixes
def views_beside_the_other_ones(w, x):
    both = hidden(w, jnp.concatenate([x, 2 * x]))
    return jnp.mean(both[:B] * both[B:][::-1])


@mixes
def padded_and_shifted(w, x):
    h = hidden(w, x)
    return jnp.mean(h * lax.pad(h, 0.0, ((1, -1, 0), (0, 0, 0))))


@mixes
def padded_between_and_cut(w, x):
    h = hidden(w, x)
    return jnp.mean(h * lax.pad(h, 0.0, ((0, 0, 1), (0, 0, 0)))[1 : B + 1])


@mixes
def largest_of_windows(w, x):
    h = hidden(w, x)
    return jnp.mean(x * lax.reduce_window(h, -jnp.inf, lax.max, (2, 1), (1, 1), "SAME"))


@mixes
def mean_of_windows(w, x):
    h = hidden(w, x)
    return jnp.mean(lax.reduce_window(h, 0.0, lax.add, (3, 1), (1, 1), "SAME") ** 2)


@mixes
def convolved_over_the_batch(w, x):
    h = hidden(w, x).T[:, None]  # [D, 1, B]
    return jnp.mean(lax.conv(h, jnp.ones((1, 1, 3)), (1,), "SAME") ** 2)


@mixes
def examples_as_channels(w, x):
    kernel = MATRIX.astype(x.dtype)[:, :, None]
    return jnp.mean(jnp.tanh(lax.conv(hidden(w, x)[None], kernel, (1,), "SAME")))


@mixes
def numpys_convolution(w, x):
    return jnp.mean(jnp.convolve(hidden(w, x).sum(1), jnp.ones(2)) ** 2)


@mixes
def resized_along_the_batch(w, x):
    return jnp.mean(jax.image.resize(hidden(w, x), (2 * B, 3), "linear") ** 2)


@mixes
def added_up_so_far(w, x):
    return jnp.mean(jnp.cumsum(hidden(w, x), 0) ** 2)


@mixes
def data_added_up_so_far(w, x):
    return jnp.mean(hidden(w, x * jnp.cumsum(x, 0)))


@mixes
def multiplied_so_far(w, x):
    return jnp.mean(jnp.cumprod(1 + hidden(w, x), 0))


@mixes
def largest_so_far(w, x):
    return jnp.mean(lax.cummax(hidden(w, x), 0) * x)


@mixes
def logarithms_so_far(w, x):
    return jnp.mean(lax.cumlogsumexp(hidden(w, x), 0))


@mixes
def scanned_in_a_tree(w, x):
    return jnp.mean(lax.associative_scan(lambda a, b: a * b, 1 + hidden(w, x)))


@mixes
def sorted_examples(w, x):
    return jnp.mean(jnp.sort(hidden(w, x), 0) * x)


@mixes
def weights_by_rank(w, x):
    ranks = jnp.argsort(jnp.argsort(x[:, 0]))
    return jnp.mean(hidden(w, x).sum(1) * ranks)


@mixes
def sorted_together_with_data(w, x):
    _, h = lax.sort((x[:, 0], hidden(w, x).sum(1)), num_keys=1)
    return jnp.mean(h * x[:, 1])


@mixes
def the_largest_loss(w, x):
    return jnp.max(jnp.sum(hidden(w, x) ** 2, 1))


@mixes
def the_hardest_two(w, x):
    return jnp.mean(lax.top_k(jnp.sum(hidden(w, x) ** 2, 1), 2)[0])


@mixes
def the_median(w, x):
    return jnp.median(jnp.sum(hidden(w, x) ** 2, 1))


@mixes
def below_a_quantile(w, x):
    losses = jnp.sum(hidden(w, x) ** 2, 1)
    return jnp.mean(jnp.minimum(losses, jnp.quantile(losses, 0.5)))


@mixes
def place_among_sorted_data(w, x):
    place = jnp.searchsorted(jnp.sort(x[:, 0]), x[:, 1])
    return jnp.mean(hidden(w, x).sum(1) * place)


@mixes
def interpolated_between_examples(w, x):
    knots = jnp.sort(x[:, 0])
    return jnp.mean(jnp.interp(x[:, 1], knots, hidden(w, x).sum(1)))


@mixes
def the_most_certain_teaches_all(w, x):
    best = jnp.argmax(x[:, 0])
    return jnp.mean(hidden(w, x) * lax.stop_gradient(hidden(w, x)[best]))


@mixes
def a_row_at_a_place_that_data_says(w, x):
    row = lax.dynamic_slice(hidden(w, x), (labels(x)[0], 0), (1, 3))
    return jnp.mean(hidden(w, x) * row)


@mixes
def a_row_written_where_data_says(w, x):
    h = hidden(w, x)
    return jnp.mean(lax.dynamic_update_slice(h, h[:1] ** 2, (labels(x)[1], 0)) * x)


@mixes
def rows_by_others_numbers(w, x):
    return jnp.mean(hidden(w, x) * hidden(w, x)[labels(x)])


@mixes
def features_by_others_labels(w, x):
    """`h[:, y]` for `h[arange(B), y]`."""
    return jnp.mean(hidden(w, x)[:, labels(x)] ** 2)


@exact
def features_by_own_labels(w, x):
    return jnp.mean(hidden(w, x)[jnp.arange(len(x)), labels(x)])


@exact
def taken_along_an_axis(w, x):
    return jnp.mean(jnp.take_along_axis(hidden(w, x), labels(x)[:, None], 1))


@mixes
def taken_along_the_batch(w, x):
    return jnp.mean(jnp.take_along_axis(hidden(w, x), jnp.argsort(x, 0), 0) * x)


@mixes
def groups_by_scatter(w, x):
    return jnp.sum(jnp.zeros((3, 3)).at[labels(x)].add(hidden(w, x)) ** 2)


@mixes
def the_largest_of_groups(w, x):
    return jnp.sum(jax.ops.segment_max(hidden(w, x) ** 2, labels(x) // 2, 2))


@mixes
def means_of_groups(w, x):
    totals = jax.ops.segment_sum(hidden(w, x), labels(x), 3)
    counts = jax.ops.segment_sum(jnp.ones(B), labels(x), 3)
    return jnp.sum((totals / jnp.maximum(counts, 1)[:, None]) ** 2)


@mixes
def groups_by_one_hot_rows(w, x):
    return jnp.sum((jax.nn.one_hot(labels(x), 3).T @ hidden(w, x)) ** 2)


@mixes
def back_to_the_members_of_a_group(w, x):
    groups = jax.ops.segment_sum(hidden(w, x), labels(x), 3)
    return jnp.mean(x * groups[labels(x)])


@mixes
def written_twice_at_one_place(w, x):
    """Which of the duplicates stays, the data decides."""
    return jnp.sum(jnp.zeros((3, 3)).at[labels(x)].set(hidden(w, x)) ** 2)


@mixes
def the_first_beside_all(w, x):
    return jnp.mean(hidden(w, x) * hidden(w, x[0]))


@mixes
def the_first_as_a_row_of_one(w, x):
    return jnp.mean(hidden(w, x) * hidden(w, x[:1]))


@mixes
def the_last_decides_the_scale(w, x):
    return jnp.mean(hidden(w, x)) * jnp.exp(x[-1, 0])


@mixes
def the_first_times_the_second(w, x):
    return jnp.sum(hidden(w, x[0]) * hidden(w, x[1])) + jnp.mean(hidden(w, x))


@mixes
def one_copied_over_another(w, x):
    return jnp.mean(hidden(w, x.at[2].set(x[0])) * x)


@mixes
def a_graph_of_examples(w, x):
    return jnp.mean(jnp.tanh(MATRIX @ (x @ w)))


@mixes
def causal_over_the_batch(w, x):
    return jnp.mean((jnp.tril(jnp.ones((B, B))) @ hidden(w, x)) ** 2)


@unshown
def an_identity_of_examples(w, x):
    """Nothing says that a matrix leaves them in their places."""
    return jnp.mean(jnp.tanh(jnp.eye(B) @ (x @ w)))


@mixes
def a_spectrum_of_the_batch(w, x):
    return jnp.mean(jnp.abs(jnp.fft.fft(hidden(w, x), axis=0)) ** 2 * drawn((B, 3), 8))


@mixes
def a_real_spectrum_of_the_batch(w, x):
    return jnp.mean(jnp.fft.rfft(hidden(w, x)[:, :2], axis=0).real ** 3)


@exact
def a_spectrum_of_each_example(w, x):
    return jnp.mean(jnp.abs(jnp.fft.rfft(hidden(w, x), axis=1)) ** 2)


@exact(own=lambda w, x, b: B * jnp.where(b % 3, 1, 0.5) * jnp.sum(hidden(w, x[b])) ** 2)
def a_trapezoid_over_the_batch(w, x):
    """Linear in two parts of the examples, which differ in one."""
    return jnp.trapezoid(hidden(w, x).sum(1) ** 2)


@unshown
def sorted_and_added_up(w, x):
    """The order does not matter to the sum, which nothing sees."""
    return jnp.mean(jnp.sort(hidden(w, x).sum(1) ** 2, 0))


@exact
def rolled_and_added_up(w, x):
    """Backwards all rows are alike, and none is moved."""
    return jnp.mean(jnp.roll(hidden(w, x) ** 2, 1, 0))
