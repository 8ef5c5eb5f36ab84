"""Rows by name: a pytree of arrays [B, ...] as a dict, by the path to each array."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

# Of a single array, to which no path leads.
ALONE = "rows"
Rows = dict[str, np.ndarray]


def named(tree: Any) -> dict[str, Any]:
    """The leaves of a pytree by the paths to them."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path) or ALONE: leaf for path, leaf in leaves}


def rows_like(shapes: Mapping[str, Sequence[int]], tree: Any) -> Rows:
    """A pytree's rows by name, or those of a dict that is by name already, each [Q, *shape].

    Raises ValueError for other names or shapes, and where a number is complex or not finite.
    """
    is_by_name = isinstance(tree, Mapping) and set(tree) == set(shapes)
    found = dict(tree) if is_by_name else named(tree)
    if set(found) != set(shapes):
        raise ValueError(
            f"queries have {sorted(found)}, and the index has {sorted(shapes)}; pass what the "
            "function that the index was written with returns of the queries"
        )
    rows = {name: np.asarray(found[name]) for name in shapes}
    _check_shapes(rows, shapes)
    for name, values in rows.items():
        if np.iscomplexobj(values):
            raise ValueError(f"queries have {name} of {values.dtype}; rows are real numbers")
        if not np.isfinite(values).all():
            raise ValueError(f"queries have numbers in {name} that are not finite")
    return rows


def _check_shapes(rows: Rows, shapes: Mapping[str, Sequence[int]]) -> None:
    count = next((len(x) for x in rows.values() if x.ndim), 0)
    for name, values in rows.items():
        expected = (count, *shapes[name])
        if values.shape != expected:
            raise ValueError(
                f"queries have {name} of shape {values.shape}, not {expected}; pass what the "
                "function that the index was written with returns of the queries"
            )
