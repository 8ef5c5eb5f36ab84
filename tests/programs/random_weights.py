"""Ways to make a weight matrix [c, d] of parameters: each leaves another tail behind its gradient.

To add one, write a function of (scope, c, d); its name is what a drawn program prints.
"""

import jax.numpy as jnp
import numpy as np

WEIGHTS = {}


def weight(function):
    WEIGHTS[function.__name__] = function
    return function


@weight
def plain(s, c, d):
    return s.param(c, d)


@weight
def transposed(s, c, d):
    return s.param(d, c).T


@weight
def flat(s, c, d):
    return s.param(c * d).reshape(c, d)


@weight
def flipped(s, c, d):
    return s.param(c, d)[::-1, ::-1]


@weight
def padded(s, c, d):
    return jnp.pad(s.param(c, max(d - 1, 1)), ((0, 0), (0, int(d > 1))))


@weight
def sliced(s, c, d):
    return s.param(c + 2, d + 1)[1:-1, 1:]


@weight
def strided(s, c, d):
    return s.param(2 * c, d)[::2]


@weight
def joined(s, c, d):
    return jnp.concatenate([s.param(c, d), s.param(1, d)])[1:]


@weight
def permuted(s, c, d):
    return s.param(c + 1, d)[np.random.default_rng(0).permutation(c + 1)[:c]]


@weight
def rolled(s, c, d):
    return jnp.roll(s.param(c, d), 1, axis=1)


@weight
def tiled(s, c, d):
    return jnp.tile(s.param(1, d), (c, 1)) + jnp.eye(c, d, dtype=s.compute)


@weight
def stacked(s, c, d):
    return s.param(3, c, d).sum(0)


@weight
def cumulative(s, c, d):
    return jnp.cumsum(s.param(c, d), axis=0)


@weight
def updated(s, c, d):
    return s.param(c, d).at[0].set(s.param(d))


@weight
def masked(s, c, d):
    return s.param(c, d) * np.tri(c, d).astype(s.compute)


@weight
def selected(s, c, d):
    return jnp.where(np.arange(c * d).reshape(c, d) % 3 > 0, s.param(c, d), 0.5)


@weight
def scaled(s, c, d):
    return s.param(c, d) * s.param(d) * s.param()


@weight
def normalised(s, c, d):
    v = s.param(c, d)
    return s.param(d) * v / jnp.sqrt(jnp.sum(v * v, axis=0) + 0.1)


@weight
def adapted(s, c, d):
    return s.param(c, d) + 0.5 * s.param(c, 2) @ s.param(2, d)


@weight
def factored(s, c, d):
    return s.param(c, 2) @ s.param(2, d)


@weight
def bounded(s, c, d):
    return jnp.tanh(s.param(c, d))


@weight
def spectral(s, c, d):
    return jnp.fft.fft(s.param(c, d).astype(s.stored), axis=0).real.astype(s.compute)
