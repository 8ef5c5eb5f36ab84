"""Every fixture's projections, against their definition on its model's gradients of one example at
a time.
"""

import jax
import numpy as np
import pytest

import hlo_surgery as hs
from tests.equivalence.test_fixtures import METAS, SEPARABLE, inputs, rewritten
from tools.dumps.make_fixtures import axis_or_minus_one
from tools.dumps.references import per_example_gradients
from tools.exactness.projections_by_definition import projections_of
from tools.models.fixtures import MODELS

K, SEED = 4, 3


def own_gradients(name):
    """[B, *shape] of each gradient, in float64."""
    model = MODELS[name]
    specs = tuple(model.inputs.values())
    structure = jax.tree.structure((model.parameters, specs))
    parameters, arguments = jax.tree.unflatten(structure, inputs(name))
    axes = jax.tree.map(axis_or_minus_one, specs)
    rows = per_example_gradients(model, parameters, arguments, axes)
    return [np.stack(leaf).astype(np.float64) for leaf in zip(*rows, strict=True)]


@pytest.mark.parametrize("name", SEPARABLE)
def test_projections_are_those_of_single_examples(name):
    gradients = own_gradients(name)
    outputs = rewritten(name, hs.projected(K, SEED)).call(*inputs(name))[len(gradients) :]
    for i, (g, found) in enumerate(zip(gradients, outputs, strict=True)):
        # Of sums with signs the terms are as large as the gradient's norm.
        norm = np.linalg.norm(g.reshape(len(g), -1), axis=1).max()
        np.testing.assert_allclose(
            np.asarray(found, np.float64),
            projections_of(g, K, SEED, i),
            rtol=0,
            atol=METAS[name]["tolerance"] * norm,
            err_msg=METAS[name]["gradients"][i],
        )
