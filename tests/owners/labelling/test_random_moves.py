"""Random programs that move examples: what is accepted does not mix, by the mixed second
difference.
"""

import jax
import numpy as np
import pytest

from hlo_surgery.module import Module, load
from hlo_surgery.passes.dataflow import sharding_rules
from hlo_surgery.passes.dataflow.ancestors import ancestors
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.normalise.normalize import normalize
from hlo_surgery.passes.owners.analysis import find_owners
from hlo_surgery.passes.owners.verdicts import undivided_reason
from tests.owners.claims.probes import vanishes
from tests.owners.labelling.random_moves import B, D, gradient

W, X, Y = (np.random.default_rng(k).normal(size=s) for k, s in enumerate([(D, D), (B, D), (B, D)]))


def accepted(code):
    main = mlir.main_function(code)
    sharding_rules.populate(code)
    block = mlir.body(main)
    (found,) = mlir.operands(mlir.return_operation(block))
    owners = find_owners(main, {1: 0}, B, [0])
    sharding_rules.strip(code)
    return undivided_reason(owners, block, found, ancestors([found])) is None and not owners.data


def mixes(code):
    module = Module(code)

    def run(*examples):
        x = np.where(np.isin(np.arange(B), examples)[:, None], Y, X)
        return np.asarray(module.call(W, x)[0])

    pairs = ((a, b) for a in range(B) for b in range(a))
    return not all(vanishes(run(), run(a), run(b), run(a, b)) for a, b in pairs)


@pytest.mark.parametrize("seed", range(24))
def test_what_is_accepted_does_not_mix(seed):
    function, names = gradient(seed)
    with jax.enable_x64(True):
        text = jax.jit(function, keep_unused=True).lower(W, X).as_text()
    code = mlir.clone(load(text).code)
    normalize(code)
    assert not (accepted(code) and mixes(code)), names
