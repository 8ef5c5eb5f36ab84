"""Eigenbases: of Kronecker factors.

Losses: such that statistics of the examples' gradients are of a curvature matrix.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from hlo_surgery.passes.measures.kronecker import Eigenbases, KroneckerFactors, is_factors
from hlo_surgery.public_function import publish

__all__ = ["Eigenbases", "KroneckerFactors", "eigenbases", "gauss_newton_score", "sampled_labels"]


def eigenbases(factors: Any) -> Any:
    """The eigenvectors of each of the `KroneckerFactors` in a pytree, as `Eigenbases`: in columns,
    by increasing eigenvalues; a side that is a diagonal stays as it is, and stands for its axes.

    Raises TypeError for other leaves, such as those of a gradient.

    >>> left, right = eigenbases(KroneckerFactors(jnp.diag(jnp.array([2.0, 1.0])), jnp.eye(1)))
    >>> jnp.abs(left).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """

    def of_one(found: Any) -> Eigenbases:
        if not isinstance(found, KroneckerFactors):
            raise TypeError(
                f"eigenbases takes KroneckerFactors in place of each parameter, not {found!r}; ask "
                "for hlo_surgery.kronecker_factors(), and pass what is found"
            )
        rank = max(side.ndim for side in found)
        return Eigenbases(
            *(side if side.ndim < rank else jnp.linalg.eigh(side)[1] for side in found)
        )

    return jax.tree.map(of_one, factors, is_leaf=is_factors)


def sampled_labels(key: Array, logits: Array) -> Array:
    """Labels drawn from the model's own softmax, `[*]`, of logits `[*, C]`, through which no
    gradient passes.

    In a loss in their place, `second_moment` is an unbiased estimate of the diagonal of the Fisher
    matrix, and `kronecker_factors` are those of K-FAC: both with the labels that are there would be
    of the empirical Fisher matrix, which is another one (Kunstner et al., "Limitations of the
    Empirical Fisher Approximation"). Where an example has several rows of logits, each has a label
    of its own. Another key is another draw.

    >>> import hlo_surgery as hs
    >>> def loss(w, x, key):
    ...     scores = jax.nn.log_softmax(x @ w)
    ...     labels = hs.curvature.sampled_labels(key, scores)
    ...     return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], 1))
    >>> fisher = hs.grad(loss, batch_argnums=1, statistics=hs.second_moment())
    >>> _, diagonal = fisher(jnp.zeros((1, 2)), jnp.ones((4, 1)), jax.random.key(0))
    >>> diagonal.tolist()  # (1 - p) ** 2 and p ** 2, p = 1/2
    [[0.25, 0.25]]
    """
    return jax.random.categorical(key, jax.lax.stop_gradient(logits))


def gauss_newton_score(logits: Array, label: Array | int) -> Array:
    """Scores `[B]` of logits `[B, C]`, whose squared gradients, summed over all labels, are the
    diagonal of the Gauss-Newton matrix of softmax cross entropy; a number of logits `[C]`.

    That is `sqrt(p_c) (logits_c - p' logits)` for the label c, the probabilities p being constants:
    the matrix is `J' (diag(p) - p p') J = sum_c p_c J' (e_c - p) (e_c - p)' J`. So the sum over c
    of `second_moment` of the mean of the scores is the mean of the examples' diagonals, exactly, in
    one backward pass for each of the C labels. Of the squared error `|f - y|**2 / 2` the scores are
    the outputs f_c themselves.

    Each example has one row of logits. Of several its matrix is the sum of theirs, and the square
    of the gradient of their scores' sum has products of different rows' gradients besides. Raises
    ValueError for several, as in `[B, T, C]`, and for a label that is none of 0 .. C - 1, whose
    scores are zero where it is traced; TypeError for one that is no integer.

    >>> import hlo_surgery as hs
    >>> loss = lambda w, x, c: jnp.mean(hs.curvature.gauss_newton_score(x @ w, c))
    >>> f = hs.grad(loss, batch_argnums=1, statistics=hs.second_moment())
    >>> w, x = jnp.zeros((1, 2)), 2 * jnp.ones((4, 1))
    >>> jnp.round(sum(f(w, x, c)[1] for c in range(2)), 4).tolist()  # x**2 p (1 - p)
    [[1.0, 1.0]]
    """
    if math.prod(logits.shape[1:-1]) != 1:
        raise ValueError(
            f"gauss_newton_score takes logits [B, C], one row for each example, not "
            f"{list(logits.shape)}: of several rows an example the squared gradient has products "
            "of different rows' gradients, and is not the diagonal. Draw labels with "
            "sampled_labels, one for each row, for an unbiased estimate of it, or make each row an "
            "example of its own"
        )
    _check_label(label, logits.shape[-1])
    shares = jax.lax.stop_gradient(jax.nn.softmax(logits))
    chosen = jax.nn.one_hot(label, logits.shape[-1], dtype=logits.dtype)
    weight = jnp.sqrt(jnp.sum(shares * chosen, -1))
    return weight * jnp.sum((chosen - shares) * logits, -1)


def _check_label(label: Array | int, count: int) -> None:
    """Labels counted from 1 would make another diagonal, and nothing would show it."""
    if not jnp.issubdtype(jnp.result_type(label), jnp.integer):
        raise TypeError(f"gauss_newton_score takes an integer for a label, not {label!r}")
    if not isinstance(label, Tracer) and np.any((np.asarray(label) < 0) | (label >= count)):
        raise ValueError(
            f"the label of gauss_newton_score is {label}; of logits [B, {count}] labels are 0 to "
            f"{count - 1}"
        )


publish(globals(), __all__)
