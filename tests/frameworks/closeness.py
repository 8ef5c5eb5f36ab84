"""Pytrees that are the same up to what float32 rounds."""

import jax
import numpy as np


def assert_close(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), found, wanted)
