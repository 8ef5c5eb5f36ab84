"""Ways to make a weight matrix [c, d] of parameters: each leaves another tail behind its gradient.

To add one, write a function of (scope, c, d); its name is what a drawn program prints.
"""

import jax.numpy as jnp
import numpy as np


def permuted(s, c, d):
    return s.param(c + 1, d)[np.random.default_rng(0).permutation(c + 1)[:c]]


def normalised(s, c, d):
    v = s.param(c, d)
    return s.param(d) * v / jnp.sqrt(jnp.sum(v * v, axis=0) + 0.1)


def spectral(s, c, d):
    return jnp.fft.fft(s.param(c, d).astype(s.stored), axis=0).real.astype(s.compute)


WEIGHTS = {
    "plain": lambda s, c, d: s.param(c, d),
    "transposed": lambda s, c, d: s.param(d, c).T,
    "flat": lambda s, c, d: s.param(c * d).reshape(c, d),
    "flipped": lambda s, c, d: s.param(c, d)[::-1, ::-1],
    "padded": lambda s, c, d: jnp.pad(s.param(c, max(d - 1, 1)), ((0, 0), (0, int(d > 1)))),
    "sliced": lambda s, c, d: s.param(c + 2, d + 1)[1:-1, 1:],
    "strided": lambda s, c, d: s.param(2 * c, d)[::2],
    "joined": lambda s, c, d: jnp.concatenate([s.param(c, d), s.param(1, d)])[1:],
    "permuted": permuted,
    "rolled": lambda s, c, d: jnp.roll(s.param(c, d), 1, axis=1),
    "tiled": lambda s, c, d: jnp.tile(s.param(1, d), (c, 1)) + jnp.eye(c, d, dtype=s.compute),
    "stacked": lambda s, c, d: s.param(3, c, d).sum(0),
    "cumulative": lambda s, c, d: jnp.cumsum(s.param(c, d), axis=0),
    "updated": lambda s, c, d: s.param(c, d).at[0].set(s.param(d)),
    "masked": lambda s, c, d: s.param(c, d) * np.tri(c, d).astype(s.compute),
    "selected": lambda s, c, d: jnp.where(
        np.arange(c * d).reshape(c, d) % 3 > 0, s.param(c, d), 0.5
    ),
    "scaled": lambda s, c, d: s.param(c, d) * s.param(d) * s.param(),
    "normalised": normalised,
    "adapted": lambda s, c, d: s.param(c, d) + 0.5 * s.param(c, 2) @ s.param(2, d),
    "factored": lambda s, c, d: s.param(c, 2) @ s.param(2, d),
    "bounded": lambda s, c, d: jnp.tanh(s.param(c, d)),
    "spectral": spectral,
}
