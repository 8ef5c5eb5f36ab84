"""Scores: inner products of queries with the rows of all examples.

Covariances: mean outer products of rows, and queries times their damped inverse.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jax import Array

from hlo_surgery.attribution.index import Index, check_index
from hlo_surgery.attribution.rows import Rows, block_slices, matrix, rows_like
from hlo_surgery.statistics.derived import positive


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
    shapes = _shapes(check_index("scores", index))
    wide = jnp.asarray(matrix(rows_like(shapes, queries), [*shapes]))
    blocks = (matrix(index.rows, [*shapes], part) for part in block_slices(index.rows))
    found = np.concatenate([_products(wide, block) for block in blocks], axis=1)
    if not np.isfinite(found).all():
        raise ValueError(
            f"scores leave the range of {found.dtype}; scale the queries, or the rows in f"
        )
    return found


def _shapes(index: Index) -> dict[str, tuple[int, ...]]:
    """Of one example's rows."""
    return {name: x.shape[1:] for name, x in index.rows.items()}


def _products(queries: Array, rows: np.ndarray) -> np.ndarray:
    """[Q, n]."""
    found = jnp.asarray(rows)
    dtype = jnp.promote_types(jnp.result_type(queries, found), jnp.float32)
    made = jnp.matmul(queries.astype(dtype), found.astype(dtype).T, precision="highest")
    return np.asarray(made)


Names = tuple[str, ...]


@dataclass(frozen=True)
class Covariance:
    """`blocks`: for arrays that belong together, by name, their [d, d]; `shapes`: of one row.

    >>> Covariance({("w",): np.eye(2)}, {"w": (2,)})
    Covariance(shapes={'w': (2,)})
    """

    blocks: dict[Names, np.ndarray] = field(repr=False)
    shapes: dict[str, tuple[int, ...]]


def covariance(index: Index, per: Literal["parameter", "global"] = "parameter") -> Covariance:
    """The mean over the index's examples of g g', of each array's rows g, or of all together.

    Uncentred: of projected gradients it is the projected empirical Fisher matrix. `per`:
    "parameter", a block [d, d] for each array, as Choe et al. have one for each layer ("What is
    Your Data Worth to GPT?", section 3); "global", one for all, as in Park et al. ("TRAK",
    section 3). Products are float32, of rows scaled to lie near one, and are added up over blocks
    of rows in float64; the unit is that of rows, squared.

    Raises TypeError for what is no index; ValueError where a block is not finite, or all zero.

    >>> import tempfile
    >>> from hlo_surgery.attribution import write_index
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     index = write_index(lambda x: x, np.array([[1.0, 1.0], [1.0, -1.0]]), folder)
    ...     print(covariance(index).blocks)
    {('rows',): array([[1., 0.],
           [0., 1.]])}
    """
    if per not in ("parameter", "global"):
        raise ValueError(f"per is 'parameter' or 'global', not {per!r}")
    names = tuple(check_index("covariance", index).rows)
    groups = [names] if per == "global" else [(name,) for name in names]
    return Covariance({group: _mean_outer(index.rows, group) for group in groups}, _shapes(index))


def _mean_outer(rows: Rows, names: Names) -> np.ndarray:
    """[d, d], float64."""
    total = np.float64(0)
    own = {name: rows[name] for name in names}
    for part in block_slices(own):
        total = total + _outer(matrix(own, names, part))
    mean = np.asarray(total / len(rows[names[0]]))
    if not (np.isfinite(mean).all() and np.trace(mean) > 0):
        raise ValueError(
            f"the rows {', '.join(names)} are all zero, as those of a parameter that no example "
            "reaches, or their squares leave the range of float64; leave them out of what f "
            "returns, or scale them in f"
        )
    return mean


def _outer(block: np.ndarray) -> np.ndarray:
    """The sum of g g', float64, of rows at whatever scale: float32 squares numbers near one."""
    wide = block.astype(np.promote_types(block.dtype, np.float32))
    exponent = int(np.frexp(np.abs(wide).max())[1])
    scaled = jnp.asarray(np.ldexp(wide, -exponent))
    products = jnp.matmul(scaled.T, scaled, precision="highest")
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(np.asarray(products, np.float64), 2 * exponent)


def preconditioned(queries: Any, covariance: Covariance, damping: float) -> Rows:
    """(C + damping * m I)^-1 times each query's rows, with m the mean eigenvalue of the block C:
    rows by name, [Q, ...], float32.

    `queries`: what the index's f returns of Q queries, or an index's `rows`. `scores` of the result
    are influences with the empirical Fisher matrix for the curvature (Choe et al., "What is Your
    Data Worth to GPT?", section 3). `damping` has no unit; 0.1 is a usual value. Unlike a query,
    the result goes by the inverse of the rows' unit.

    Raises ValueError for a damping that is not positive, or too small for the covariance to be
    inverted, and for queries of other names or shapes, or not finite.

    >>> C = Covariance({("rows",): np.diag([3.0, 1.0])}, {"rows": (2,)})
    >>> preconditioned(np.array([[4.0, 4.0]]), C, damping=0.5)
    {'rows': array([[1., 2.]], dtype=float32)}
    """
    relative = float(positive("preconditioned", "damping", damping))
    rows = rows_like(covariance.shapes, queries)
    found: Rows = {}
    for names, block in covariance.blocks.items():
        solved = _solved(block, matrix(rows, names).astype(np.float64), relative, names)
        ends = np.cumsum([math.prod(covariance.shapes[name]) for name in names])
        for name, own in zip(names, np.split(solved, ends[:-1], axis=1), strict=True):
            found[name] = own.reshape(rows[name].shape).astype(np.float32)
    return found


def _solved(
    block: np.ndarray, rows: np.ndarray, damping: float, names: Sequence[str]
) -> np.ndarray:
    """Each row times the inverse of the damped block."""
    shift = damping * np.trace(block) / len(block)
    damped = block + shift * np.eye(len(block))
    try:
        np.linalg.cholesky(damped)
    except np.linalg.LinAlgError:
        raise ValueError(
            f"the covariance of {', '.join(names)} cannot be inverted with a damping of {damping}; "
            "pass a larger one, such as 0.1"
        ) from None
    return np.linalg.solve(damped, rows.T).T
