"""Text to train on: the bytes of the project's own documents, cut at places that the step says.

A batch rests on the number of its step alone, so that a run that is resumed goes on with the same
batches, and each process cuts the part that it needs.
"""

from functools import cache
from pathlib import Path

import jax
import numpy as np
from jax.sharding import NamedSharding

ROOT = Path(__file__).resolve().parent.parent.parent


@cache
def corpus() -> np.ndarray:
    """All documents' bytes, one behind the other."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return np.frombuffer(b"".join(file.read_bytes() for file in files), np.uint8)


def rows(step: int, size: int, length: int) -> np.ndarray:
    """The batch of a step: so many texts of length + 1 bytes each, int32[size, length + 1]."""
    starts = np.random.default_rng(step).integers(0, len(corpus()) - length, size)
    return np.stack([corpus()[start : start + length + 1] for start in starts]).astype(np.int32)


def batch(step: int, size: int, length: int, sharding: NamedSharding) -> jax.Array:
    """The batch on the devices, of which this process may have a part."""
    whole = rows(step, size, length)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])
