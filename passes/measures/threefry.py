"""Threefry: random words by key and place, as NumPy numbers that a program has for constants.

The words of `jax.random.bits` with the generator threefry2x32, partitionable, whatever the user's
settings say. (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3".)
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]
ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
PARITY = np.uint32(0x1BD11BDA)
WORD_BITS = 32


def written_words(seed: int, place: Sequence[int], count: int) -> Words:
    """So many words, from a key that is folded with each number of a place."""
    key = _as_words(seed >> WORD_BITS), _as_words(seed)
    for number in place:
        key = _threefry(key, _as_words(0), _as_words(number))
    numbers = np.arange(count, dtype=np.uint32)
    one, other = _threefry(key, np.zeros_like(numbers), numbers)
    return one ^ other


def _as_words(number: int) -> Words:
    return np.array([number % (1 << WORD_BITS)], np.uint32)


def _threefry(key: tuple[Words, Words], x: Words, y: Words) -> tuple[Words, Words]:
    """Twenty rounds, and after every four of them a part of the key."""
    keys = (*key, key[0] ^ key[1] ^ PARITY)
    x, y = x + keys[0], y + keys[1]
    for i in range(5):
        for bits in ROTATIONS[i % 2]:
            x = x + y
            y = (y << np.uint32(bits) | y >> np.uint32(WORD_BITS - bits)) ^ x
        x, y = x + keys[(i + 1) % 3], y + keys[(i + 2) % 3] + np.uint32(i + 1)
    return x, y
