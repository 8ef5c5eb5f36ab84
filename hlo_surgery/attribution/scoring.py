"""Scores: inner products of queries with the rows of all examples."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hlo_surgery.attribution.blocks import block_slices, matrix
from hlo_surgery.attribution.index import Index, check_index
from hlo_surgery.attribution.named_rows import rows_like


def scores(index: Index, queries: Any) -> np.ndarray:
    """Inner products of each query's rows with each example's, [Q, N], over all arrays together.

    `queries`: what the index's f returns of Q queries, or what `preconditioned` makes of it: a
    pytree of arrays [Q, ...]. Of gradients the unit is that of the loss per parameter, squared:
    to first order, a step of `rate` along example i's gradient lowers query q's loss by `rate *
    scores[q, i]` (Pruthi et al., "Estimating Training Data Influence by Tracing Gradient Descent",
    section 3). What is in memory is [Q, N] and a block of rows. Computed in float32, or in what
    is wider of rows and queries where JAX's x64 is on.

    Raises TypeError for what is no index, as its path is none; ValueError for queries of other
    names or shapes than the index, complex or not finite, and where a score is not finite; one that
    is too small for the dtype is zero.

    >>> import tempfile
    >>> from hlo_surgery.attribution import write_index
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     index = write_index(lambda x: x, np.eye(3), folder)
    ...     print(scores(index, np.array([[1.0, 2.0, 3.0]])))
    [[1. 2. 3.]]
    """
    names = tuple(check_index("scores", index).rows)
    asked = rows_like({name: x.shape[1:] for name, x in index.rows.items()}, queries)
    wide = jnp.asarray(matrix(asked, names))
    found = np.concatenate(
        [
            np.asarray(_products(wide, matrix(index.rows, names, part)))
            for part in block_slices(index.rows)
        ],
        axis=1,
    )
    if not np.isfinite(found).all():
        raise ValueError(
            f"scores leave the range of {found.dtype}; scale the queries, or the rows in f"
        )
    return found


def _products(queries: jax.Array, rows: np.ndarray) -> jax.Array:
    """[Q, n]."""
    found = jnp.asarray(rows)
    dtype = jnp.promote_types(jnp.result_type(queries, found), jnp.float32)
    return jnp.matmul(queries.astype(dtype), found.astype(dtype).T, precision="highest")
