"""Verification tells right from wrong statistics, and what it cannot tell from either."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.requests.request import make_request
from hlo_surgery.verification.inputs import disjoint_changes, draw_inputs
from hlo_surgery.verification.verify import second_differences, verify, verify_rewritten
from tests.products import covering

FIXTURES = Path(__file__).resolve().parent.parent.parent / "fixtures"
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
    folder = FIXTURES / name
    meta, stored = json.loads((folder / "meta.json").read_text()), np.load(folder / "inputs.npz")
    axes = {
        i: a["example_axis"]
        for i, a in enumerate(meta["arguments"])
        if a["example_axis"] is not None
    }
    inputs = [
        np.asarray(jnp.asarray(stored[f"arg{i}"], a["dtype"]))
        for i, a in enumerate(meta["arguments"])
    ]
    return (
        hs.load(folder / "module.mlir"),
        {"batch": axes, "loss_reduction": meta["loss_reduction"]},
        inputs,
    )


def request(module, batch, statistics=None, loss_reduction="mean"):
    return make_request(
        module, batch, statistics or hs.second_moment(), None, loss_reduction, "refuse", {}
    )


def lowered(gradient, *arrays):
    return hs.load(jax.jit(gradient).lower(*arrays).as_text(debug_info=True))


def altered(module, change):
    """A module that returns what `change` makes of the outputs, with the plan of the given one."""

    def flat(*arrays):
        return change(list(module.exported.call(*arrays)))

    with jax.enable_x64(True):
        structs = [jax.ShapeDtypeStruct(port.shape, port.dtype) for port in module.arguments]
        text = jax.jit(flat, keep_unused=True).lower(*structs).as_text()
    return hs.Module(hs.load(text).code, module.plan)


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


def verdict_on(change, statistics=None):
    """The verdict on the rewritten MLP, its outputs altered: 4 gradients, then the statistics."""
    module, options, inputs = fixture("mlp_biases")
    rewritten = hs.rewrite_module(module, statistics=statistics or hs.second_moment(), **options)
    return verify_rewritten(
        module, altered(rewritten, change), request(module, options["batch"], statistics), inputs
    )


def scaled(number, factor):
    def change(outputs):
        outputs[number] = outputs[number] * factor
        return outputs

    return change


def test_the_altered_module_is_equivalent_where_nothing_is_altered():
    assert verdict_on(lambda outputs: outputs).verdict == "equivalent"


@pytest.mark.parametrize(("output", "statistic"), covering(range(4), list(STATISTICS)))
def test_a_statistic_off_by_a_thousandth_is_caught(statistic, output):
    chosen = {statistic: STATISTICS[statistic]}
    verdict = verdict_on(scaled(4 + output, 1.001), chosen)
    assert verdict.verdict == "not equivalent"
    assert verdict.why.startswith(f"{statistic}/")


def test_one_wrong_sign_of_one_example_is_caught():
    def change(outputs):
        outputs[5] = outputs[5].at[0, 0].add(-2 / 5)
        return outputs

    assert verdict_on(change, {"signs": hs.mean_sign()}).verdict == "not equivalent"


def test_the_square_of_the_mean_is_no_second_moment():
    verdict = verdict_on(lambda outputs: [*outputs[:4], *(g * g for g in outputs[:4])])
    assert verdict.verdict == "not equivalent"
    assert str(verdict).startswith(
        "not equivalent: second_moment/['hidden']['bias'] is not that of"
    )


def test_statistics_in_the_wrong_order_are_caught():
    def change(outputs):
        outputs[4:] = outputs[8:] + outputs[4:8]
        return outputs

    assert (
        verdict_on(change, {"one": hs.second_moment(), "two": hs.mean_abs()}).verdict
        == "not equivalent"
    )


@pytest.mark.parametrize("factor", [1.001, np.nan])
def test_a_changed_output_of_the_original_is_caught(factor):
    verdict = verdict_on(scaled(2, factor))
    assert (verdict.verdict, verdict.why) == (
        "not equivalent",
        "['output']['bias'] is not what the original returns",
    )


def test_nan_in_a_statistic_is_not_equivalent():
    verdict = verdict_on(scaled(4, np.nan))
    assert verdict.verdict == "not equivalent"
    assert "nan" in str(verdict)


@pytest.mark.parametrize("name", ["batch_norm_training", "contrastive", "global_norm_clip"])
def test_the_second_difference_of_what_is_not_separable_is_not_zero(name):
    module, options, inputs = fixture(name)
    differences = second_differences(module, request(module, **options), inputs)
    assert [d.name for d in differences] == [port.name for port in module.outputs]
    assert max(d.share for d in differences) > 100


@pytest.mark.parametrize("name", ["lm_tied", "mlp_mixed_precision", "time_major"])
def test_the_second_difference_of_what_is_separable_vanishes(name):
    module, options, inputs = fixture(name)
    assert (
        max(d.share for d in second_differences(module, request(module, **options), inputs)) < 0.1
    )


@pytest.mark.parametrize("size", [2, 3, 64, 257])
def test_mixing_of_all_examples_shows_at_every_batch_size(size):
    def loss(w, x):
        h = x @ w
        return jnp.mean(jnp.exp((h - h.mean(0)) / jnp.sqrt(h.var(0) + 0.1)))

    w, x = np.random.default_rng(0).normal(size=(2, size, 4)).astype(np.float32)
    module = lowered(jax.grad(loss), w[:1].T, x)
    assert second_differences(module, request(module, [1]), [w[:1].T, x])[0].share > 100


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


def test_a_changed_output_is_caught_where_copies_do_not_apply():
    module, options, inputs = fixture("masked_mean")
    rewritten = hs.rewrite_module(module, statistics=hs.second_moment(), **options)
    changed = altered(rewritten, scaled(0, 1.001))
    assert (
        verify_rewritten(module, changed, request(module, **options), inputs).verdict
        == "not equivalent"
    )


def test_a_mask_by_position_makes_it_not_applicable():
    mask = np.array([1, 0, 2, 1], np.float32)

    def loss(w, x):
        return jnp.mean(mask * jnp.tanh(x @ w))

    w, x = np.ones(3, np.float32), np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    verdict = verify(
        lowered(jax.grad(loss), w, x), batch=[1], statistics=hs.second_moment(), inputs=[w, x]
    )
    assert verdict.verdict == "not applicable"
    assert "places in the batch" in verdict.why


def root_loss(w, x):
    return jnp.mean(jnp.sqrt(x @ w))


def test_nan_from_the_original_is_said_to_be_its_own():
    w, x = np.ones(3, np.float32), np.ones((4, 3), np.float32)
    module = lowered(jax.grad(root_loss), w, x)

    def verdict(inputs):
        return verify(module, batch=[1], statistics=hs.second_moment(), inputs=inputs)

    assert verdict([w, x]).verdict == "equivalent"
    negative = verdict([w, -x])
    assert negative.verdict == "not applicable"
    assert "returns NaN or infinity on these inputs" in negative.why
    assert "the inputs hold NaN in x" in verdict([w, np.where(x > 2, x, np.nan)]).why


def test_a_gradient_that_is_zero_but_for_rounding_is_no_mismatch():
    """A bias common to all logits moves no probability: its gradient is the rounding of a sum of
    nothing.
    """

    def loss(parameters, x, labels):
        logits = x @ parameters["w"] + parameters["b"][0]
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1))

    generator = np.random.default_rng(0)
    parameters = {
        "b": np.ones(1, np.float32),
        "w": generator.normal(size=(20, 30)).astype(np.float32),
    }
    x, labels = generator.normal(size=(8, 20)).astype(np.float32), generator.integers(0, 30, 8)
    module = lowered(jax.grad(loss), parameters, x, labels)
    flat = [parameters["b"], parameters["w"], x, labels.astype(np.int32)]
    verdict = verify(module, batch=[2, 3], statistics=hs.second_moment(), inputs=flat)
    assert verdict.verdict == "equivalent", verdict


def complex_loss(w, x):
    return jnp.mean(jnp.abs(jnp.tanh(x @ w)) ** 2)


@pytest.mark.parametrize("dtype", [np.complex64, np.float16])
def test_other_dtypes_are_verified(dtype):
    w, x = jax.ShapeDtypeStruct((3,), dtype), jax.ShapeDtypeStruct((4, 3), dtype)
    statistics = {"squares": hs.second_moment(), "all": hs.per_example()}
    assert (
        verify(lowered(jax.grad(complex_loss), w, x), batch=[1], statistics=statistics).verdict
        == "equivalent"
    )


def test_double_precision_is_held_to_its_own_tolerance():
    with jax.enable_x64(True):
        w, x = np.linspace(-1, 1, 3), np.linspace(-2, 1, 12).reshape(4, 3)
        module = lowered(jax.grad(complex_loss), w, x)
    options = {"batch": [1], "statistics": hs.second_moment()}
    assert verify(module, inputs=[w, x], **options).verdict == "equivalent"
    wrong = altered(hs.rewrite_module(module, **options), scaled(1, 1 + 1e-9))
    assert verify_rewritten(module, wrong, request(module, [1]), [w, x]).verdict == "not equivalent"


def test_one_example_is_its_own_batch():
    w, x = np.ones(3, np.float32), np.ones((1, 3), np.float32)
    verdict = verify(
        lowered(jax.grad(complex_loss), w, x), batch=[1], statistics=STATISTICS, inputs=[w, x]
    )
    assert verdict.verdict == "equivalent"


def test_arguments_that_copies_lack_are_named():
    """With labels that are not the batch's, copies of an example are held against all labels."""

    def loss(w, x, labels):
        return jnp.mean((x @ w - labels) ** 2)

    w, x, labels = np.ones(3, np.float32), np.eye(5, 3, dtype=np.float32), np.arange(5.0)
    module = lowered(jax.grad(loss), w, x, labels.astype(np.float32))
    verdict = verify(module, batch=["x"], statistics=hs.norms())
    assert verdict.verdict == "not applicable"
    assert "labels, float32[5], has as many rows as there are examples" in verdict.why
    assert verify(module, batch=["x", "labels"], statistics=hs.norms()).verdict == "equivalent"


def test_each_goes_over_all_examples_once():
    module, options, inputs = fixture("mlp_biases")
    seen = []
    verify(
        module,
        statistics=hs.second_moment(),
        inputs=inputs,
        each=lambda numbers: (seen.append(n) or n for n in numbers),
        **options,
    )
    assert seen == list(range(5))


def test_inputs_are_drawn_by_shape_and_dtype():
    module, _, stored = fixture("mlp_mixed_precision")
    drawn, again = draw_inputs(module.arguments), draw_inputs(module.arguments)
    assert [(a.shape, a.dtype) for a in drawn] == [(a.shape, a.dtype) for a in stored]
    assert all((a == b).all() for a, b in zip(drawn, again, strict=True))
    integers = [a for a in drawn if a.dtype.kind == "i"]
    assert integers
    assert all(set(np.unique(a)) <= {0, 1} for a in integers)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_changes_are_disjoint_and_take_examples_of_the_batch(size):
    same = np.arange(size)
    pairs = list(disjoint_changes(size))
    assert pairs
    for first, second in pairs:
        assert (first != same).any()
        assert (second != same).any()
        assert not ((first != same) & (second != same)).any()
        assert set(first) | set(second) <= set(same)
