"""Traps of constants: rows among the examples' that no example made, and terms beside them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.axes.traps.of_places import hidden, labels
from tests.axes.traps.traps import B, D, drawn, exact, mixes, unshown

MASK = (drawn((B, 3), 3) > 0).astype(np.float32)
WEIGHTS = np.arange(1.0, B + 1, dtype=np.float32)
BIASED = {"w": {"w": (D, D), "b": (D,)}}


TABLE = {"w": {"w": (D, D), "t": (B, D)}}


def out(p, x):
    return x @ p["w"] + p["b"]


@exact(own=lambda p, x, b: jnp.mean(jnp.asarray(MASK)[b] * out(p, x[b])), **BIASED)
def a_mask_before_a_linear_loss(p, x):
    """No example reaches the gradient of the bias, and g_b is the mask's row b all the same."""
    return jnp.mean(MASK * out(p, x))


def tabled(p, x, b):
    return jnp.mean(jnp.tanh(x[b] @ p["w"] + p["t"][b]))


def smoothness(t):
    return jnp.sum(jnp.diff(t, axis=0) ** 2)


def by_rows(penalty, p, b):
    """What has B times row b of a penalty's gradient."""
    return B * jnp.sum(lax.stop_gradient(jax.grad(penalty)(p["t"]))[b] * p["t"][b])


def dropped(shape):
    return jax.random.bernoulli(jax.random.key(3), 0.5, shape)


@exact(own=lambda p, x, b: jnp.mean(dropped((B, 3))[b] * out(p, x[b])), **BIASED)
def drawn_dropout(p, x):
    return jnp.mean(dropped(x.shape) * out(p, x))


@exact(own=lambda p, x, b: jnp.mean(dropped((1, 3))[0] * out(p, x[b])), **BIASED)
def dropout_that_all_share(p, x):
    return jnp.mean(dropped((1, 3)) * out(p, x))


@exact(own=lambda p, x, b: jnp.asarray(WEIGHTS)[b] * jnp.mean(out(p, x[b])), **BIASED)
def weights_by_place(p, x):
    return jnp.mean(WEIGHTS[:, None] * out(p, x))


@exact(own=lambda p, x, b: (b + 1) * jnp.mean(out(p, x[b])), **BIASED)
def weights_by_number(p, x):
    return jnp.mean(jnp.arange(1, B + 1)[:, None] * out(p, x))


@exact(own=lambda p, x, b: jnp.asarray(WEIGHTS)[b] * jnp.mean(out(p, x[b])), **BIASED)
def weights_in_a_product(p, x):
    return jnp.einsum("b,bd->", WEIGHTS, out(p, x)) / x.size


@exact(own=lambda p, x, b: jnp.asarray(WEIGHTS)[b] * jnp.mean(out(p, x[b])), **BIASED)
def weights_of_each_step(p, x):
    step = lambda c, a: (c + a[0] * jnp.mean(out(p, a[1])), None)  # noqa: E731
    return lax.scan(step, 0.0, (WEIGHTS, x))[0] / B


@exact(own=lambda p, x, b: b * jnp.mean(out(p, x[b])), **BIASED)
def the_number_of_the_step(p, x):
    step = lambda i, c: c + i * jnp.mean(out(p, x[i]))  # noqa: E731
    return lax.fori_loop(0, B, step, 0.0) / B


@exact(own=lambda p, x, b: jnp.asarray(WEIGHTS)[b - 1] * jnp.mean(out(p, x[b])), **BIASED)
def weights_that_were_rolled(p, x):
    """Row b of what is rolled is example b's: weights are nobody's before they lie there."""
    return jnp.mean(jnp.roll(WEIGHTS, 1)[:, None] * out(p, x))


@exact(own=lambda p, x, b: jnp.cumsum(WEIGHTS)[b] * jnp.mean(out(p, x[b])), **BIASED)
def weights_added_up_so_far(p, x):
    return jnp.mean(jnp.cumsum(WEIGHTS)[:, None] * out(p, x))


@exact(own=lambda p, x, b: (b == 0) * jnp.mean(out(p, x[b])), **BIASED)
def the_first_alone_counts(p, x):
    return jnp.mean(jnp.where(jnp.arange(B)[:, None] == 0, out(p, x), 0.0))


@exact(own=lambda p, x, b: jnp.mean(jnp.tanh(out(p, x[b] + jnp.asarray(MASK)[b]))), **BIASED)
def noise_by_place(p, x):
    return jnp.mean(jnp.tanh(out(p, x + MASK)))


@exact(own=lambda w, x, b: jnp.mean(hidden(w, x[b] * (b > 0))))
def the_first_is_no_example(w, x):
    return jnp.mean(hidden(w, x * (jnp.arange(B) > 0)[:, None]))


@exact(own=lambda w, x, b: jnp.mean(hidden(w, jnp.where(b == 2, 1.0, x[b]))))
def constants_in_the_place_of_an_example(w, x):
    return jnp.mean(hidden(w, jnp.where(np.arange(B)[:, None] == 2, 1.0, x)))


@exact(own=lambda w, x, b: jnp.mean(hidden(w, jnp.where(b == 2, 1.0, x[b]))))
def constants_written_over_an_example(w, x):
    return jnp.mean(hidden(w, x.at[2].set(1.0)))


@unshown
def added_to_the_rows_of_some_examples(w, x):
    return jnp.mean(hidden(w, x).at[1].add(w[0]))


@exact(own=lambda w, x, b: jnp.mean(hidden(w, jnp.stack([x[b], jnp.asarray(MASK)[b]])) ** 2))
def constants_beside_the_examples(w, x):
    """As many as there are examples: a second view of each."""
    return jnp.mean(hidden(w, jnp.concatenate([x, MASK])) ** 2)


@exact(own=lambda w, x, b: jnp.mean(jnp.exp(jnp.stack([x[b], jnp.zeros(3)]) @ w + w[0])))
def padded_to_a_power_of_two(w, x):
    """With as many rows as there are examples."""
    return jnp.mean(jnp.exp(jnp.pad(x, ((0, 4), (0, 0))) @ w + w[0]))


@unshown
def a_constant_in_front(w, x):
    return jnp.mean(hidden(w, jnp.concatenate([jnp.ones((1, 3)), x])))


@exact(own=lambda p, x, b: jnp.mean(jnp.tanh(x[b] @ p["w"] + p["t"][b])), **TABLE)
def a_parameter_with_a_row_for_each(p, x):
    return jnp.mean(jnp.tanh(x @ p["w"] + p["t"]))


@unshown(**TABLE)
def a_row_for_each_in_a_linear_loss(p, x):
    """Its gradient is the same in all rows."""
    return jnp.mean(x @ p["w"] + p["t"])


@unshown(w={"w": (D, D), "t": (B + 2, D)})
def the_first_rows_of_a_longer_parameter(p, x):
    return jnp.mean(x @ p["w"] + p["t"][:B]) + jnp.sum(p["t"] ** 2)


@exact(own=lambda p, x, b: jnp.sum(x[b] @ p["w"] + p["t"][b]), **TABLE)
def a_row_for_each_in_loops(p, x):
    return jnp.mean(lax.map(lambda a: jnp.sum(a[0] @ p["w"] + a[1]), (x, p["t"])))


@mixes(**TABLE)
def rows_of_a_parameter_beside_others(p, x):
    return jnp.mean(jnp.tanh(x @ p["w"] + p["t"]) * (x[::-1] @ p["w"]))


@exact(
    own=lambda p, x, b: jnp.mean(jnp.tanh(x[b] @ p["w"] + p["t"][labels(x)[b]])),
    w={"w": (3, 3), "t": (3, 3)},
)
def rows_by_label(p, x):
    return jnp.mean(jnp.tanh(x @ p["w"] + p["t"][labels(x)]))


@exact(own=lambda w, x, b: jnp.mean(hidden(w, x[b])) + jnp.sum(w**2))
def decayed(w, x):
    return jnp.mean(hidden(w, x)) + jnp.sum(w**2)


@exact(
    own=lambda w, x, b: jnp.sum(hidden(w, x[b])) + jnp.sum(w**2) / B,
    options={"loss_reduction": "sum"},
)
def decayed_in_a_sum(w, x):
    return jnp.sum(hidden(w, x)) + jnp.sum(w**2)


@exact(own=lambda w, x, b: jnp.mean(hidden(w, x[b])) + jnp.sum(w**2))
def decayed_once_for_each(w, x):
    return jnp.mean(jnp.mean(hidden(w, x), 1) + jnp.sum(w**2))


@exact(own=lambda w, x, b: jnp.mean(hidden(w, x[b])) + jnp.asarray(WEIGHTS)[b] * jnp.sum(w**2))
def decayed_as_rows_say(w, x):
    """A penalty in each row, weighed by place."""
    return jnp.mean(jnp.mean(hidden(w, x), 1) + WEIGHTS * jnp.sum(w**2))


@exact(own=lambda w, x, b: jnp.mean(hidden(w, x[b])) + jnp.sum((MASK @ w) ** 2))
def a_penalty_on_given_points(w, x):
    return jnp.mean(hidden(w, x)) + jnp.sum((MASK @ w) ** 2)


@exact(own=lambda w, x, b: jnp.mean(hidden(w, x[b])) + jnp.mean(x[b] ** 2) * jnp.sum(w**2))
def a_penalty_that_data_scales(w, x):
    return jnp.mean(hidden(w, x)) + jnp.mean(x**2) * jnp.sum(w**2)


@exact
def a_penalty_that_the_loss_scales(w, x):
    """Linear in the examples' own losses."""
    fit = jnp.mean(hidden(w, x) ** 2)
    return fit + lax.stop_gradient(fit) * jnp.sum(w**2)


@mixes
def a_learned_balance_of_both(w, x):
    fit = jnp.mean(hidden(w, x) ** 2)
    return jnp.exp(-w[0, 0]) * fit + jnp.log(1 + fit)


@exact(own=lambda w, x, b: sum(B / 2 * jnp.sum(hidden(w, x[i])) * (b == i) for i in (0, 1)))
def some_of_the_examples(w, x):
    return jnp.sum(hidden(w, x[:2])) / 2


@exact(
    own=lambda w, x, b: jnp.where(
        b < 2, 2 * jnp.mean(hidden(w, x[b])), 4 * jnp.mean(hidden(w, x[b]) ** 2)
    )
)
def labelled_and_not(w, x):
    return jnp.mean(hidden(w, x[:2])) + 2 * jnp.mean(hidden(w, x[2:]) ** 2)


@exact(own=lambda w, x, b: (b + 1) * jnp.sum(hidden(w, x[b])))
def a_loop_in_python(w, x):
    return sum((i + 1) * jnp.sum(hidden(w, x[i])) for i in range(B)) / B


def one_and_the_rest(w, x, b):
    first = B * jnp.sum(x[0] @ w)
    return jnp.where(b == 0, first, B / 3 * jnp.mean(hidden(w, x[b]))) + 3 * jnp.sum(w**2)


@exact(own=one_and_the_rest)
def a_constant_beside_one_example(w, x):
    return jnp.sum(x[0] @ w + jnp.sum(w**2)) + jnp.mean(hidden(w, x[1:]))


@exact
def a_share_of_zero_times_the_others(w, x):
    """As frameworks keep a value alive."""
    return jnp.mean(hidden(w, x) + 0.0 * jnp.mean(hidden(w, x)))


@mixes
def as_random_as_the_batch(w, x):
    key = jax.random.key(jnp.sum(x @ w > 0))
    return jnp.mean(hidden(w, x) * jax.random.normal(key, (3,)))


@mixes
def data_that_is_rolled_as_a_weight(w, x):
    return jnp.mean(hidden(w, x) * jnp.exp(jnp.roll(x[:, :1], 1, 0)))


@unshown
def data_that_was_moved_as_a_term(w, x):
    return jnp.mean(x[::-1] @ w)


@exact(own=lambda p, x, b: tabled(p, x, b) + by_rows(lambda t: jnp.sum(t**2), p, b), **TABLE)
def a_penalty_on_a_row_for_each(p, x):
    """Of a gradient that sums nothing, each example has B times its own row."""
    return jnp.mean(jnp.tanh(x @ p["w"] + p["t"])) + jnp.sum(p["t"] ** 2)


@exact(own=lambda p, x, b: tabled(p, x, b) + by_rows(smoothness, p, b), **TABLE)
def a_smooth_penalty_on_a_row_for_each(p, x):
    """Rows of parameters meet their neighbours, and no example."""
    return jnp.mean(jnp.tanh(x @ p["w"] + p["t"])) + smoothness(p["t"])


@exact
def data_that_was_moved_nowhere(w, x):
    return jnp.mean(x @ w)


@unshown
def a_penalty_by_the_largest_weight(w, x):
    """It is of the row of one example, whose share is not shown."""
    weights = WEIGHTS * jnp.exp(w[0, 0])
    return jnp.mean(weights[:, None] * hidden(w, x)) + jnp.max(weights) ** 2 * jnp.sum(w)


def mask_of(x):
    return (x[:, :1] > 0).astype(x.dtype)


@exact(
    own=lambda p, x, b: B * jnp.sum(mask_of(x)[b] * out(p, x[b])) / jnp.sum(mask_of(x)),
    holds_data=True,
    **BIASED,
)
def a_linear_mean_over_a_mask_of_data(p, x):
    """Of the bias, a ratio of two sums of data: the divisor is the constant."""
    return jnp.sum(mask_of(x) * out(p, x)) / jnp.sum(mask_of(x))
