"""Traps of choices: branches, loops that run until done, barriers; and mixing taken as constant."""

import jax
import jax.numpy as jnp
from jax import lax

import hlo_surgery as hs
from tests.axes.traps.of_constants import BIASED, TABLE, out
from tests.axes.traps.of_loops import total
from tests.axes.traps.of_places import MATRIX, hidden, labels
from tests.axes.traps.traps import B, exact, mixes, unshown

CONTRIBUTION = {"on_mixing": "contribution"}


def copies(w, b):
    """[B, D, D] a copy of the parameters for each example, of which b's alone is followed."""
    own = jnp.arange(B)[:, None, None] == b
    return jnp.where(own, w, lax.stop_gradient(w))


def by_copies(loss):
    """The oracle of contributions: what flows into example b's own copy. `loss` is of [B, D]."""

    def own(w, x, b):
        return B * loss(jnp.tanh(jnp.einsum("bi,bij->bj", x, copies(w, b))), x)

    return own


def centred(h, x):
    return jnp.mean(jnp.tanh(h - h.mean(0)) * x)


def by_the_largest(h, x):
    return jnp.mean(h * x) / jnp.max(jnp.abs(h))


def contrasted(h, x):
    return -jnp.mean(jnp.diagonal(jax.nn.log_softmax(h @ h.T)))


def rooted(h, x):
    return jnp.sqrt(jnp.mean(h**2))


def added_up_so_far(h, x):
    return jnp.mean(jnp.cumsum(h, 0) * x)


@exact(own=by_copies(centred), options=CONTRIBUTION)
def contributions_through_a_mean(w, x):
    return centred(hidden(w, x), x)


@exact(own=by_copies(by_the_largest), options=CONTRIBUTION)
def contributions_through_the_largest(w, x):
    return by_the_largest(hidden(w, x), x)


@exact(own=by_copies(contrasted), options=CONTRIBUTION)
def contributions_to_pairs(w, x):
    return contrasted(hidden(w, x), x)


@exact(own=by_copies(rooted), options=CONTRIBUTION)
def contributions_to_a_root(w, x):
    return rooted(hidden(w, x), x)


@exact(own=by_copies(added_up_so_far), options=CONTRIBUTION)
def contributions_to_sums_so_far(w, x):
    return added_up_so_far(hidden(w, x), x)


@unshown(options=CONTRIBUTION)
def contributions_of_rows_that_were_moved(w, x):
    return jnp.mean(jnp.tanh(jnp.roll(hidden(w, x), 1, 0) @ w))


@mixes(options=CONTRIBUTION)
def contributions_behind_a_matrix(w, x):
    return jnp.mean(jnp.tanh((MATRIX @ x) @ w) ** 2)


@mixes(w={"w": (3, 3), "b": (3,)}, options=CONTRIBUTION)
def contributions_of_a_bias_behind_a_mean(w, x):
    return jnp.mean(jnp.tanh(jnp.tanh((x @ w["w"]).mean(0)) + w["b"] - x @ w["w"]) ** 2)


def as_gradient(w, g):
    """A loss whose gradient is this, made as it is."""
    return jnp.sum(w * lax.stop_gradient(g))


@mixes
def a_body_that_takes_all(w, x):
    """A reduce over hidden units, whose body takes a sum of all examples from outside."""

    def one(e):
        h, s = hidden(w, e), jnp.sum(hidden(w, x))
        return lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] * s), (0, h))[1].sum()

    return jnp.mean(lax.stop_gradient(lax.map(one, x)) * lax.map(lambda e: total(w, e), x))


@exact(own=lambda w, x, b: total(w, x[b] * jnp.where((b == 0) & ((x[0] @ w)[0] <= 0), 2, 1)))
def the_first_decides_for_itself(w, x):
    first = lax.cond((x[0] @ w)[0] > 0, lambda: total(w, x[0]), lambda: total(w, 2 * x[0]))
    return (first + total(w, x[1:])) / B


@mixes
def a_step_decides_for_all_rows(w, x):
    def one(e):
        return lax.cond((e @ w)[0] > 0, lambda: total(w, x), lambda: total(w, 2 * x))

    return jnp.mean(lax.map(one, x))


@mixes
def kept_by_another_test_than_is_asked(w, x):
    h = lax.stop_gradient(x @ w)
    goes_on = lambda h: (jnp.abs(h) > 0.1).any(-1)  # noqa: E731
    kept = lambda h: jnp.where((jnp.abs(h) > 0.01).any(-1)[:, None], h / 2, h)  # noqa: E731
    return jnp.mean(lax.while_loop(lambda h: goes_on(h).any(), kept, h) * (x @ w))


@mixes
def kept_by_the_other_comparison(w, x):
    h = lax.stop_gradient(x @ w)
    goes_on = lambda h: jnp.abs(h[:, 0]) > 0.1  # noqa: E731
    kept = lambda h: jnp.where((jnp.abs(h[:, 0]) >= 0.01)[:, None], h / 2, h)  # noqa: E731
    return jnp.mean(lax.while_loop(lambda h: goes_on(h).any(), kept, h) * (x @ w))


@mixes
def kept_once_others_are_done(w, x):
    h = lax.stop_gradient(x @ w)
    goes_on = lambda h: jnp.abs(h[:, 0]) > 0.1  # noqa: E731
    turned = lambda h: jnp.where(goes_on(h)[::-1, None], h / 2, h)  # noqa: E731
    go = lambda c: (c[0] < 9) & goes_on(c[1]).any()  # noqa: E731
    return jnp.mean(lax.while_loop(go, lambda c: (c[0] + 1, turned(c[1])), (0, h))[1] * (x @ w))


@mixes(x=(4, 4), w=(4, 4))
def a_barrier_that_turns_examples(w, x):
    h = hidden(w, x)
    return jnp.mean(lax.optimization_barrier(h.T + h) ** 2)


@mixes
def rows_chosen_by_a_table(w, x):
    """Data of the whole batch at the places of some examples."""
    largest = lax.stop_gradient(lax.sort(x, dimension=0))
    chosen = jnp.where((jnp.arange(B) % 2 == 0)[:, None], largest, x)
    return jnp.mean(hidden(w, x) * chosen)


@mixes
def the_mean_at_the_place_of_some(w, x):
    """Written over the rows of two examples."""
    return jnp.mean(hidden(w, lax.dynamic_update_slice(x, jnp.sort(x, 0)[:2], (0, 0))))


@mixes
def mixed_in_the_first_branch(w, x):
    h = hidden(w, x)
    return jnp.mean(lax.cond(jnp.sum(w**2) < 0, lambda: h, lambda: h * h.mean(0)) ** 2)


@mixes
def until_one_is_done(w, x):
    """Each keeps what it has once it is done, but the first one ends it for all."""
    going = lambda h: jnp.abs(h) > 0.1  # noqa: E731
    halved = lambda h: jnp.where(going(h), h / 2, h)  # noqa: E731
    h = lax.while_loop(lambda h: jnp.all(going(h)), halved, lax.stop_gradient(x @ w))
    return jnp.mean(hidden(w, x * h))


@mixes
def a_line_of_many_places(w, x):
    """What an example leaves goes on from place to place, for more steps than there are."""
    step = lambda c, e: ((hidden(w, e), *c[:-1]), jnp.sum(c[0] * e))  # noqa: E731
    return jnp.mean(lax.scan(step, (jnp.zeros(3),) * 20, x)[1])


def squares_so_far(h, x):
    return jnp.mean(jnp.cumsum(h, 0) ** 2 * x)


def squares_by_copies(p, x, b):
    h = jnp.einsum("bi,bij->bj", x, copies(p["w"], b)) + copies(p["b"][None], b)[:, 0]
    return B * squares_so_far(h, x)


@exact(own=squares_by_copies, options=CONTRIBUTION, **BIASED)
def contributions_of_a_bias_to_sums_so_far(p, x):
    return squares_so_far(out(p, x), x)


@exact(own=lambda w, x, b: total(w, x[b]) * jnp.where(b > 1, 1, 2))
def the_first_steps_by_a_branch(w, x):
    """The number of the step decides."""

    def step(i, c):
        return c + lax.cond(i > 1, lambda: total(w, x[i]), lambda: 2 * total(w, x[i]))

    return lax.fori_loop(0, B, step, 0.0) / B


@exact(own=lambda w, x, b: (b == 0) * sum(jnp.sum(hidden(w, x[0]) ** t) for t in (1, 2, 3)))
def one_in_every_layer(w, x):
    """Added up from zero, which is no constant beside it."""
    step = lambda t, c: c + jnp.sum(hidden(w, x[0]) ** (t + 1))  # noqa: E731
    return lax.fori_loop(0, 3, step, 0.0) / B


@unshown
def one_in_every_layer_beside_a_penalty(w, x):
    step = lambda t, c: c + jnp.sum(hidden(w, x[0]) ** (t + 1))  # noqa: E731
    return lax.fori_loop(0, 3, step, jnp.sum(w**2)) / B


@unshown
def one_beside_what_grows(w, x):
    """From zero as well, but it does not stay so."""
    step = lambda t, s: (s[0] + w**2, s[1] + jnp.sum(hidden(w, x[0])) + s[0])  # noqa: E731
    return as_gradient(w, lax.fori_loop(0, 3, step, (jnp.zeros((3, 3)),) * 2)[1])


@mixes
def positive_ones_of_two_examples(w, x):
    """A sum of whole numbers."""
    count = jnp.sum(x[0] @ w > 0) + jnp.sum(x[1] @ w > 0)
    return jnp.mean(hidden(w, x)) * count


@mixes
def declared_along_the_features(w, x):
    added = hs.per_example_call(lambda h: jnp.cumsum(h, 0), in_axes=1, out_axes=1)
    return jnp.mean(lax.stop_gradient(added(x @ w)) * hidden(w, x))


@unshown
def a_table_that_steps_add_to(w, x):
    step = lambda t, a: (t.at[a[0]].add(hidden(w, a[1])), None)  # noqa: E731
    return as_gradient(w, lax.scan(step, jnp.zeros((3, 3)), (labels(x), x))[0])


@mixes
def weights_of_labels_so_far(w, x):
    def step(t, a):
        t = t.at[a[0]].add(a[1][0] ** 2)
        return t, total(w, a[1]) * jnp.sum(t)

    return jnp.mean(lax.scan(step, jnp.zeros(3), (labels(x), x))[1])


def sum_from(start, h):
    start, h = lax.stop_gradient((start, h))
    return lax.reduce(jnp.sum(h**2, 1), start, lax.add, (0,))


@unshown
def a_sum_that_starts_from_a_sum(w, x):
    h = hidden(w, x)
    return as_gradient(w, sum_from(jnp.sum(h), h))


@unshown
def a_sum_that_starts_beside_a_term(w, x):
    h, weights = hidden(w, x), jnp.arange(1.0, B + 1) * jnp.exp(w[0, 0])
    return as_gradient(w, sum_from(jnp.sum(h * weights[:, None]) + jnp.max(weights), h))


@unshown
def a_sum_from_a_sum_beside_another(w, x):
    h = lax.stop_gradient(hidden(w, x))
    added = lambda one, two: (one[0] + two[0], one[1] + two[1])  # noqa: E731
    found = lax.reduce((jnp.sum(h**2, 1), jnp.sum(h, 1)), (jnp.sum(h), 0.0), added, (0,))
    return as_gradient(w, found[0] + 2 * found[1])


@mixes(x=(B, B), w=(B, B))
def features_added_where_labels_say(w, x):
    h = hidden(w, x)
    return as_gradient(w, jnp.full((B, B), jnp.sum(h)).at[labels(x)].add(h.T))


@mixes
def the_first_decides_for_the_second(w, x):
    second = lax.cond((x[0] @ w)[1] > 0, lambda: total(w, x[1]), lambda: total(w, 2 * x[1]))
    return second + jnp.mean(hidden(w, x))


@exact(own=lambda w, x, b: (b == 0) * total(w, x[b]) * jnp.where((x[b] @ w)[0] > 0, 3, 2))
def the_first_decides_its_weight(w, x):
    return total(w, x[0]) * lax.cond((x[0] @ w)[0] > 0, lambda: 3.0, lambda: 2.0) / B


@mixes(options=CONTRIBUTION, **BIASED)
def contributions_of_a_bias_to_a_squared_mean(p, x):
    """Row b of the cotangent is everybody's."""
    return jnp.sum(jnp.mean(out(p, x), 0) ** 2)


@exact(
    own=lambda w, x, b: B * as_gradient(w, jnp.full((3, 3), jnp.sum(hidden(w, x[b])))),
    options=CONTRIBUTION,
)
def contributions_to_a_sum_for_all_features(w, x):
    return as_gradient(w, jnp.full((3, 3), jnp.sum(hidden(w, x))))


@mixes(options=CONTRIBUTION)
def contributions_beside_the_largest(w, x):
    """It is a term of the gradient, and nobody's."""
    return jnp.mean(hidden(w, x)) + lax.stop_gradient(jnp.max(hidden(w, x))) * jnp.sum(w)


@mixes(**TABLE)
def data_that_scales_rows_of_a_parameter(p, x):
    """Its gradient is rows, and might be with respect to data."""
    return jnp.mean(jnp.tanh(x @ p["w"] + p["t"]) * jnp.mean(x))


@exact(own=lambda w, x, b: total(w, x[b]) * jnp.where(jnp.mean(x) > 0, 1, 2), holds_data=True)
def data_decides_in_each_step(w, x):
    mean = jnp.mean(x)
    one = lambda e: lax.cond(mean > 0, lambda: total(w, e), lambda: 2 * total(w, e))  # noqa: E731
    return jnp.mean(lax.map(one, x))


@exact(own=lambda w, x, b: total(w, x[b] * jnp.where(jnp.mean(x) > 0, 2, 3)), holds_data=True)
def data_decides_for_all_rows(w, x):
    rows = lax.cond(jnp.mean(x) > 0, lambda: 2 * x, lambda: 3 * x)
    return jnp.mean(jnp.sum(hidden(w, rows) ** 2, 1))


@mixes
def data_decides_on_a_penalty(w, x):
    penalty = lax.cond(jnp.mean(x) > 0, lambda: jnp.sum(w**2), lambda: jnp.sum(w**4))
    return jnp.mean(hidden(w, x)) + penalty


@mixes
def the_largest_so_far_decides_the_weight(w, x):
    def step(largest, e):
        largest = jnp.maximum(largest, e[0])
        return largest, total(w, e) * lax.cond(largest > 0.8, lambda: 1.0, lambda: 2.0)

    return jnp.mean(lax.scan(step, -1.0, x)[1])


@exact
def data_until_it_is_small(w, x):
    """How long it takes the last one is no constant that anything rests on."""
    halved = lambda h: jnp.where(h > 0.3, h / 2, h)  # noqa: E731
    return jnp.mean(hidden(w, lax.while_loop(lambda h: jnp.any(h > 0.3), halved, x)))


@mixes(options=CONTRIBUTION)
def contributions_through_a_matrix(w, x):
    return jnp.mean(jnp.tanh(MATRIX @ jnp.tanh(x @ w)) ** 2)


@mixes(x=(B, B), w=(B, B))
def a_decomposition_of_the_batch(w, x):
    return jnp.mean(hidden(w, x) * lax.linalg.schur(lax.stop_gradient(x @ w))[0])


@mixes(options=CONTRIBUTION)
def contributions_of_rows_that_were_reversed(w, x):
    return jnp.mean(jnp.tanh(hidden(w, x)[::-1] * hidden(w, x)))


@mixes(x=(B, B), w=(B, B))
def a_decomposition_of_data(w, x):
    return jnp.mean(hidden(w, x) * lax.linalg.schur(x)[0])
