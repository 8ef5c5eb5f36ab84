"""Signs: random +1 and -1, the same whatever runs them: by seed and place, on any device."""

from collections.abc import Sequence
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np

WORD_BITS = 32
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
    is_known = all(isinstance(number, int) for number in place)
    if is_known and count * k <= WRITTEN:
        with jax.ensure_compile_time_eval():
            drawn = np.asarray(_drawn(seed, place, count, k).astype(jnp.int8))
        return jnp.asarray(drawn).astype(jnp.float32)
    return _drawn(seed, place, count, k).astype(jnp.float32)


def _drawn(seed: int, place: Sequence[int | jax.Array], count: int, k: int) -> jax.Array:
    """[count, k] integers, by the first k bits of each row of random words."""
    # The user's settings choose generators, widths, offsets and layouts: none may change a sign.
    halves = jnp.asarray([seed >> WORD_BITS, seed % (1 << WORD_BITS)], jnp.uint32)
    with jax.threefry_partitionable(True):
        key = jax.random.wrap_key_data(halves, impl="threefry2x32")
        shape = count, -(-k // WORD_BITS)
        words = jax.random.bits(reduce(jax.random.fold_in, place, key), shape, jnp.uint32)
    bits = words[..., None] >> jnp.arange(WORD_BITS, dtype=jnp.uint32) & 1
    return 1 - 2 * bits.reshape(count, shape[1] * WORD_BITS)[:, :k].astype(jnp.int32)


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
