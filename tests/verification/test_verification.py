"""Verification tells right from wrong statistics, and what it cannot tell from either.

This folder alone tests that `verify` sees wrong statistics.
"""

import jax
import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.requests.request import make_request
from hlo_surgery.verification.verify import verify, verify_rewritten
from tests.equivalence.test_fixtures import FIXTURES, inputs, options
from tests.products import covering

EXACT = [
    "dlrm",
    "lm_tied",
    "mlp_biases",
    "mlp_mixed_precision",
    "mlp_sum_loss",
    "mlp_width_equals_batch",
    "several_batch_arguments",
    "time_major",
]
STATISTICS = {
    "squares": hs.second_moment(),
    "signs": hs.mean_sign(),
    "cubes": hs.mean_power(3),
    "all": hs.per_example(),
}


def fixture(name):
    """The module of a fixture, its options, and its inputs."""
    module = hs.modules.load(FIXTURES / name / "module.mlir")
    return module, options(name), [np.asarray(x) for x in inputs(name)]


def request(module, batch, statistics=None, loss_reduction="mean"):
    return make_request(
        module, batch, statistics or hs.second_moment(), None, loss_reduction, "refuse", {}
    )


def altered(module, change):
    """A module that returns what `change` makes of the outputs, with the plan of the given one."""

    def flat(*arrays):
        return change(list(module.exported.call(*arrays)))

    with jax.enable_x64(True):
        structs = [jax.ShapeDtypeStruct(port.shape, port.dtype) for port in module.arguments]
        text = jax.jit(flat, keep_unused=True).lower(*structs).as_text()
    return hs.modules.Module(hs.modules.load(text).code, module.plan)


@pytest.mark.first(1)
@pytest.mark.parametrize(("source", "name"), covering(["stored", "random"], list(EXACT)))
def test_rewritten_fixtures_are_equivalent(name, source):
    module, options, inputs = fixture(name)
    verdict = verify(
        module, statistics=STATISTICS, inputs=inputs if source == "stored" else None, **options
    )
    assert verdict.verdict == "equivalent", verdict
    assert sum(c.kind == "statistic" for c in verdict.comparisons) == len(STATISTICS) * len(
        module.outputs
    )


def test_a_module_that_claims_statistics_of_what_is_not_separable_is_not_equivalent():
    module, options, inputs = fixture("contrastive")
    claimed = altered(module, lambda outputs: [*outputs, *(g * g for g in outputs)])
    verdict = verify_rewritten(module, claimed, request(module, options["batch"]), inputs)
    assert verdict.verdict == "not equivalent"
    assert "the original is not separable" in verdict.why


def test_what_is_refused_stays_refused():
    module, options, _ = fixture("contrastive")
    with pytest.raises(hs.Refusal):
        verify(module, statistics=hs.second_moment(), **options)


@pytest.mark.parametrize(
    ("name", "line"), [("masked_mean", "language.py:55"), ("standardised_inputs", "batches.py:5")]
)
def test_data_taken_as_constant_makes_it_not_applicable(name, line):
    module, options, inputs = fixture(name)
    verdict = verify(module, statistics=hs.second_moment(), inputs=inputs, **options)
    assert verdict.verdict == "not applicable"
    assert line in verdict.why
    assert all(c.passes for c in verdict.comparisons if c.kind == "output")
