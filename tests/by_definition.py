"""Statistics by NumPy, of the examples' gradients: trees of arrays [B, *parameter]."""

import jax
import numpy as np

from hlo_surgery.estimators import NoiseScale
from hlo_surgery.statistics.directions import TopDirections


def flat(tree):
    """Each example's whole gradient, [B, entries]."""
    return np.concatenate([g.reshape(len(g), -1) for g in jax.tree.leaves(tree)], 1)


def length(tree, ord=2):
    return np.linalg.norm(flat(tree), ord, 1)


def weighted(weights, tree):
    """The mean over the examples of what their weights make of them."""
    return jax.tree.map(lambda g: np.tensordot(weights, g, 1) / len(g), tree)


def weighted_squares(weights, tree):
    return weighted(weights**2, jax.tree.map(lambda g: np.abs(g) ** 2, tree))


def noise_scale(tree):
    """The trace of the covariance, and the square of the mean without what is noise in it."""
    g = flat(tree)
    noise = np.sum(np.abs(g - g.mean(0)) ** 2) / (len(g) - 1)
    return NoiseScale(noise, np.sum(np.abs(g.mean(0)) ** 2) - noise / len(g))


def top_directions(tree, k):
    """By singular values; of both signs that by which the largest part is positive."""
    u, s, v = np.linalg.svd(flat(tree), full_matrices=False)
    signs = np.sign(np.real(u[np.abs(u).argmax(0), np.arange(len(s))]))
    leaves, structure = jax.tree.flatten(tree)
    ends = np.cumsum([g[0].size for g in leaves])[:-1]
    parts = np.split((signs * v.T).T[:k], ends, 1)
    shaped = [part.reshape(-1, *g.shape[1:]) for part, g in zip(parts, leaves, strict=True)]
    return TopDirections(s[:k], jax.tree.unflatten(structure, shaped))
