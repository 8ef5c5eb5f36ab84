"""Digests: of an index's rows and of the data that they are of, which have to stay the same."""

import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hlo_surgery.attribution.batches import batch_at
from hlo_surgery.attribution.named_rows import named

Digests = dict[str, int]


def digests_of(arrays: Mapping[str, Any], count: int, before: Digests) -> Digests:
    """A checksum of each array, up to a batch's first `count` examples; `before`: of those before.

    >>> x = np.arange(6.0)
    >>> digests_of({"x": x[2:]}, 4, digests_of({"x": x}, 2, {})) == digests_of({"x": x}, 6, {})
    True
    """
    return {
        name: zlib.crc32(_as_bytes(array[:count]), before.get(name, 0))
        for name, array in arrays.items()
    }


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
        found = digests_of(named(batch_at(data, places)), len(places), found)
    return next((name for name, digest in found.items() if there.get(name) != digest), None)
