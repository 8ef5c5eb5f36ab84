"""Traps of pairs: each example meets all others, or a matrix is made of them."""

import jax
import jax.numpy as jnp
from jax import lax

from tests.axes.traps import B, drawn, exact, mixes
from tests.axes.traps_of_places import hidden, labels

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
