"""Digests: of the data that an index's rows are of, so that it goes on with the same data alone."""

import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hlo_surgery.attribution.batches import batch_at
from hlo_surgery.attribution.named_rows import named

Digests = dict[str, int]


def digests_of(batch: Any, count: int, before: Digests) -> Digests:
    """A checksum of each array, up to a batch's first `count` examples; `before`: of those before.

    >>> x = np.arange(6.0)
    >>> digests_of(x[2:], 4, digests_of(x, 2, {})) == digests_of(x, 6, {})
    True
    """
    leaves = named(batch).items()
    return {name: zlib.crc32(_as_bytes(leaf[:count]), before.get(name, 0)) for name, leaf in leaves}


def _as_bytes(examples: Any) -> bytes:
    """Of text and other objects what they print, as their bytes are places in memory."""
    if isinstance(examples, jax.Array) and jnp.issubdtype(examples.dtype, jax.dtypes.prng_key):
        examples = jax.random.key_data(examples)
    array = np.asarray(examples)
    return repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()


def first_other(data: Any, done: int, step: int, there: Digests) -> str | None:
    """The first array whose first `done` examples are others than were digested; None if none."""
    found: Digests = {}
    for start in range(0, done, step):
        places = np.arange(start, min(start + step, done))
        found = digests_of(batch_at(data, places), len(places), found)
    return next((name for name, digest in found.items() if there.get(name) != digest), None)
