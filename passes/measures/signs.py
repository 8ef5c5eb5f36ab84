"""Signs: random +1 and -1, the same whatever runs them: by seed and place, on any device."""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hlo_surgery.passes.measures.threefry import WORD_BITS, written_words

# So many are constants of the program, a byte each: to draw them, a TPU takes longer than for a
# small model's gradient, and half as long to take their bits apart.
WRITTEN = 1 << 18
SEEDS = 1 << 2 * WORD_BITS
# What signs are of, the first number of their place.
DIMENSIONS, BLOCKS, OUTPUTS, COLUMNS = range(4)


def random_signs(seed: int, place: Sequence[int | jax.Array], count: int, k: int) -> jax.Array:
    """[count, k], float32: k for each of so many elements; others at another place, and for another
    seed below SEEDS.
    """
    shape = count, -(-k // WORD_BITS)
    written = [number for number in place if isinstance(number, int)]
    if len(written) == len(place) and count * k <= WRITTEN:
        words = written_words(seed, written, math.prod(shape)).reshape(shape)
        signs = _signs(words, np.arange(WORD_BITS, dtype=np.uint32), k)
        return jnp.asarray(signs.astype(np.int8)).astype(jnp.float32)
    words = _drawn_words(seed, place, shape)
    return _signs(words, jnp.arange(WORD_BITS, dtype=jnp.uint32), k).astype(jnp.float32)


def _signs(words: Any, places: Any, k: int) -> Any:
    """Of the bits of each row of words, the first k, as integers."""
    bits = words[..., None] >> places & 1
    return 1 - 2 * bits.reshape(len(words), words.shape[1] * WORD_BITS)[:, :k].astype("int32")


def _drawn_words(seed: int, place: Sequence[int | jax.Array], shape: tuple[int, int]) -> jax.Array:
    # The user's settings choose generators, widths, offsets and layouts: none may change a sign.
    halves = jnp.asarray([seed >> WORD_BITS, seed % (1 << WORD_BITS)], jnp.uint32)
    with jax.threefry_partitionable(True):
        key = jax.random.wrap_key_data(halves, impl="threefry2x32")
        return jax.random.bits(reduce(jax.random.fold_in, place, key), shape, jnp.uint32)


def signs_of(seed: int, k: int, shape: Sequence[int], dims: Sequence[int]) -> jax.Array:
    """Products of signs along some of an array's dimensions, [elements, k].

    A dimension goes by its place from the end, and one of size 1 has no signs: a slice of a stack
    has those that it would have alone.
    """
    found = jnp.ones((1, k), jnp.float32)
    for d in dims:
        if shape[d] != 1:
            own = random_signs(seed, (DIMENSIONS, len(shape) - d), shape[d], k)
            found = (found[:, None] * own).reshape(-1, k)
    return found
