"""mu**2 and sigma**2 of a state with `track_moments`, as values to log."""

from typing import Any

import jax

import hlo_surgery.optimizers as ho
from tools.experiments.training.logs import Row


def logged(state: Any, batch_size: int) -> Row:
    """Medians by layer, and what there is for all together, with B the effective batch size."""
    found = jax.device_get(ho.tracked_moments(state, batch_size))
    return {
        kind: _named(value) if isinstance(value, dict) else float(value)
        for kind, value in found.items()
    }


def _named(tree: Any) -> dict[str, float]:
    return {
        jax.tree_util.keystr(path): float(leaf) for path, leaf in jax.tree.leaves_with_path(tree)
    }
