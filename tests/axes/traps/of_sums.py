"""Traps of sums: what is made of a sum over the examples, other than more of the same."""

import jax
import jax.numpy as jnp
from jax import lax

import hlo_surgery as hs
from tests.axes.traps.of_places import hidden, labels
from tests.axes.traps.traps import B, drawn, exact, mixes, unshown

TARGET = drawn((3,), 11)


@mixes
def batch_norm(w, x):
    h = x @ w
    return jnp.mean(jnp.tanh((h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-3)))


@mixes
def batch_norm_with_given_moments(w, x):
    h = x @ w
    mean, var = lax.stop_gradient((h.mean(0), h.var(0)))
    return jnp.mean(jnp.tanh((h - mean) / jnp.sqrt(var + 1e-3)))


@mixes
def centred_backwards_alone(w, x):
    @jax.custom_vjp
    def same(h):
        return h

    same.defvjp(lambda h: (h, h), lambda h, g: (g - g.mean(0) * h,))
    return jnp.mean(jnp.tanh(same(x @ w) ** 2))


@mixes
def mixed_by_its_own_derivative(w, x):
    @jax.custom_jvp
    def scaled(h):
        return h

    scaled.defjvp(lambda p, t: (p[0], t[0] * jnp.max(p[0])))
    return jnp.mean(scaled(x @ w) ** 2)


@mixes
def recomputed_in_the_backward_pass(w, x):
    return jax.checkpoint(batch_norm)(w, x)


@mixes
def variance_of_predictions(w, x):
    return jnp.var(hidden(w, x).sum(1))


@exact(own=lambda w, x, b: jnp.mean(hidden(w, (x[b] - x.mean(0)) / x.std(0))), holds_data=True)
def data_standardised(w, x):
    return jnp.mean(hidden(w, (x - x.mean(0)) / x.std(0)))


@exact(own=lambda w, x, b: jnp.mean(hidden(w, x[b]) / jnp.max(x)), holds_data=True)
def scaled_by_the_largest_of_data(w, x):
    return jnp.mean(hidden(w, x) / jnp.max(x))


@mixes
def squared_mean(w, x):
    return jnp.mean(hidden(w, x)) ** 2


@mixes
def root_of_the_mean_square(w, x):
    return jnp.sqrt(jnp.mean(hidden(w, x) ** 2))


@mixes
def norm_of_the_whole(w, x):
    return jnp.linalg.norm(hidden(w, x))


@mixes
def logarithm_of_the_mean(w, x):
    return jnp.log(jnp.mean(jnp.exp(hidden(w, x))))


@mixes
def soft_maximum_of_losses(w, x):
    return jax.nn.logsumexp(jnp.sum(hidden(w, x), 1))


@mixes
def softmax_over_the_batch(w, x):
    return jnp.mean(jax.nn.softmax(x @ w, 0) ** 2)


@mixes
def softmax_over_all(w, x):
    return -jnp.mean(jax.nn.log_softmax((x @ w).ravel())[::3])


@mixes
def dice(w, x):
    p = jax.nn.sigmoid(x @ w)
    return 1 - 2 * jnp.sum(p * (x > 0)) / (jnp.sum(p) + jnp.sum(x > 0))


def real(x):
    return (x[:, 0] > -0.5).astype(float)


@exact(
    own=lambda w, x, b: B * (real(x)[b] * hidden(w, x[b]).sum()) / real(x).sum(), holds_data=True
)
def mean_over_a_mask(w, x):
    return jnp.sum(real(x) * hidden(w, x).sum(1)) / jnp.sum(real(x))


@mixes
def mean_over_a_learned_mask(w, x):
    gate = jax.nn.sigmoid((x @ w)[:, 0])
    return jnp.sum(gate * x[:, 1]) / jnp.sum(gate)


@mixes
def self_normalised_weights(w, x):
    weights = lax.stop_gradient(jnp.exp((x @ w)[:, 0]))
    return jnp.sum(weights / weights.sum() * hidden(w, x).sum(1))


@exact(own=lambda w, x, b: B * jax.nn.softmax(x[:, 0])[b] * hidden(w, x[b]).sum(), holds_data=True)
def weights_by_a_softmax_of_data(w, x):
    return jnp.sum(jax.nn.softmax(x[:, 0]) * hidden(w, x).sum(1))


@mixes
def balanced_load(w, x):
    p = jax.nn.softmax(x @ w)
    chosen = jax.nn.one_hot(jnp.argmax(p, 1), 3)
    return jnp.sum(p.mean(0) * chosen.mean(0))


@mixes
def entropy_of_the_mean_prediction(w, x):
    p = jax.nn.softmax(x @ w).mean(0)
    return jnp.sum(p * jnp.log(p))


@mixes
def discrepancy_of_means(w, x):
    h = hidden(w, x)
    return jnp.sum((h.mean(0) - TARGET) ** 2)


@mixes
def product_of_all(w, x):
    return jnp.sum(jnp.prod(1 + hidden(w, x), 0))


@mixes
def penalty_on_the_gradient(w, x):
    gradient = jax.grad(lambda v: jnp.mean(hidden(v, x) ** 2))(w)
    return jnp.sum(gradient**2)


@mixes
def sharpness_aware(w, x):
    gradient = jax.grad(lambda v: jnp.mean(hidden(v, x) ** 2))(w)
    return jnp.mean(hidden(w + 0.1 * lax.stop_gradient(gradient), x) ** 2)


@mixes
def one_step_ahead(w, x):
    ahead = w - 0.1 * jax.grad(lambda v: jnp.mean(hidden(v, x) ** 2))(w)
    return jnp.mean(hidden(ahead, x) * x)


@mixes
def counted_where_the_layer_is_positive(w, x):
    return jnp.mean(hidden(w, x)) * jnp.sum((x @ w) > 0)


@mixes
def any_that_is_large(w, x):
    return jnp.mean(hidden(w, x) * jnp.where(jnp.any(x @ w > 1.2), 2.0, 1.0))


@mixes
def guarded_against_large_losses(w, x):
    total = jnp.mean(hidden(w, x) ** 2)
    return jnp.where(total > 0.35, 0.5 * total, total)


@mixes(x=(B, 3))
def counts_that_wrap(w, x):
    many = jnp.sum((100 * (x @ w > 0)).astype(jnp.uint8), dtype=jnp.uint8)
    return jnp.mean(hidden(w, x)) * many


@mixes
def counts_divided(w, x):
    return jnp.mean(hidden(w, x)) * (jnp.sum(x @ w > 0) // 2)


@mixes
def rounded_sums(w, x):
    total = jnp.sum(x @ w)
    return jnp.mean(hidden(w, x)) * total.astype(jnp.int32)


@mixes
def the_most_frequent_prediction(w, x):
    counts = jnp.bincount(jnp.argmax(x @ w, 1), length=3)
    return jnp.mean(hidden(w, x)) / (1 + jnp.max(counts))


@mixes
def sign_of_the_mean(w, x):
    total = jnp.mean(x @ w, 0)
    return jnp.sum(jnp.sign(total) * total * (1 + 0 * TARGET)) + jnp.sum(hidden(w, x) ** 2)


@mixes
def clipped_mean(w, x):
    return jnp.sum(jnp.clip(jnp.mean(x @ w, 0), -0.2, 0.2) ** 2)


@mixes
def mean_above_a_margin(w, x):
    return jnp.sum(jax.nn.softplus(jnp.mean(x @ w, 0) - 0.1))


@exact(rounding=2e-2, own=lambda w, x, b: jnp.mean(hidden(w, x[b])))
def summed_in_few_bits(w, x):
    """Rounding is left out: as exact as bfloat16 is."""
    return jnp.sum(hidden(w, x).astype(jnp.bfloat16), dtype=jnp.bfloat16).astype(float) / B / 3


@exact
def linear_behind_the_mean(w, x):
    return jnp.mean(hidden(w, x), 0) @ TARGET


@mixes
def magnitude_of_a_complex_sum(w, x):
    return jnp.abs(jnp.mean(jnp.exp(1j * (x @ w))))


@exact(own=lambda w, x, b: jnp.mean(jnp.cos(x[b] @ w) - 2 * jnp.sin(x[b] @ w)))
def parts_of_a_complex_sum(w, x):
    total = jnp.mean(jnp.exp(1j * (x @ w)))
    return total.real - 2 * total.imag


@mixes
def conjugates_multiplied(w, x):
    total = jnp.mean(jnp.exp(1j * (x @ w)), 0)
    return jnp.sum((total * jnp.conj(total)).real)


@mixes
def data_as_a_penalty(w, x):
    return jnp.mean(hidden(w, x)) + jnp.max(x) * jnp.sum(w)


@mixes
def two_sums_of_data(w, x):
    return jnp.sum((x.T @ x) @ (x.T @ x) * w)


@mixes
def priors_from_predictions(w, x):
    prior = lax.stop_gradient(jax.nn.softmax(x @ w)).mean(0)
    return jnp.mean(jax.nn.logsumexp(x @ w + jnp.log(prior), 1))


def prior(x):
    return jnp.log1p(jax.nn.one_hot(labels(x), 3).sum(0))


@exact(own=lambda w, x, b: jax.nn.logsumexp(x[b] @ w + prior(x)), holds_data=True)
def priors_from_labels(w, x):
    return jnp.mean(jax.nn.logsumexp(x @ w + prior(x), 1))


@mixes
def teachers_centre(w, x):
    """As self-distillation does."""
    teacher = lax.stop_gradient(x @ w)
    p = jax.nn.softmax(teacher - teacher.mean(0))
    return -jnp.mean(jnp.sum(p * jax.nn.log_softmax(x @ w), 1))


@mixes
def named_axis(w, x):
    one = lambda e: hidden(w, e) * lax.pmean(hidden(w, e), "batch")  # noqa: E731
    return jnp.mean(jax.vmap(one, axis_name="batch")(x))


@mixes
def added_up_over_devices(w, x):
    mesh = jax.make_mesh((1,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
    along, all_of_it = jax.P("devices"), jax.P()

    def part(w, x):
        return lax.psum(jnp.sum(hidden(w, x), 0), "devices") ** 2

    return jnp.sum(
        jax.shard_map(part, mesh=mesh, in_specs=(all_of_it, along), out_specs=all_of_it)(w, x)
    )


@mixes
def gathered_from_devices(w, x):
    mesh = jax.make_mesh((1,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
    along, all_of_it = jax.P("devices"), jax.P()

    def part(w, x):
        h = hidden(w, x)
        return h @ lax.all_gather(h, "devices", tiled=True).T

    return jnp.mean(
        jax.nn.relu(
            jax.shard_map(part, mesh=mesh, in_specs=(all_of_it, along), out_specs=along)(w, x)
        )
    )


@mixes
def asked_of_the_host(w, x):
    scale = jax.pure_callback(lambda h: h / (1 + abs(h.sum())), x, x)
    return jnp.mean(hidden(w, scale))


@mixes
def held_back_by_a_barrier(w, x):
    h, total = lax.optimization_barrier((hidden(w, x), jnp.sum(hidden(w, x))))
    return jnp.mean(h * total)


@exact(own=lambda w, x, b: jnp.mean(hidden(w, x[b]) * jnp.mean(x, 0)))
def marked_as_a_constant(w, x):
    return jnp.mean(hidden(w, x) * hs.constant(jnp.mean(x, 0)))


@mixes
def the_larger_of_two_sums(w, x):
    one, other = jnp.mean(hidden(w, x) ** 2, 0), jnp.mean(jnp.abs(x @ w), 0)
    return jnp.sum(jnp.where(one < other - 0.3, one, other))


@unshown
def guarded_against_infinity(w, x):
    total = jnp.mean(hidden(w, x) ** 2)
    return jnp.where(jnp.isfinite(total), total, 0.0)


@unshown
def guarded_against_nan(w, x):
    total = jnp.mean(hidden(w, x) ** 2)
    return jnp.where(jnp.isnan(total), 0.0, total)
