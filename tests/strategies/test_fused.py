"""Fused: measures by a kernel, interpreted here, against gradients of one example at a time in
float64.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.requests import options as rooflines
from hlo_surgery.requests.leaves import alone
from hlo_surgery.requests.options import runs_triton
from hlo_surgery.rewriting.pipeline import explain_module
from tools.bench.gpu.dense_sites import dense_site

B, EPS = 5, float(jnp.finfo(jnp.float32).eps)
rng = np.random.default_rng(0)


def drawn(*shape):
    return rng.normal(size=shape).astype(np.float32)


def bent(g):
    """Of slope 1 at most, not zero at zero, and by cases."""
    return jnp.where(g > 0.1, jnp.cos(g), 1 - g)


STATISTICS = {
    "squares": hs.second_moment(),
    "signs": hs.mean_sign(),
    "bent": hs.mean_of(bent),
}
TAKEN = {
    "squares": lambda g: (g**2).mean(0),
    "signs": lambda g: np.sign(g).mean(0),
    "bent": lambda g: np.where(g > 0.1, np.cos(g), 1 - g).mean(0),
}


def own_gradients(loss, w, *batch, reduction="mean"):
    """Each example's gradient, alone in a batch of one, in float64."""
    with jax.enable_x64(True):
        w, *batch = (x.astype(np.float64) for x in (w, *batch))
        alone = jax.vmap(lambda *example: jax.grad(loss)(w, *(x[None] for x in example)))
        return np.asarray(jax.jit(alone)(*batch))


def summed(h):
    """A loss of each example, of any shape, and their mean."""
    return jnp.mean(jnp.sum(jnp.tanh(h.reshape(len(h), -1)), 1))


DENSE = {
    "no position": (lambda w, x: summed(x @ w), (4, 3), (B, 4)),
    "one": (lambda w, x: summed(x @ w), (4, 3), (B, 6, 4)),
    "two": (lambda w, x: summed(x @ w), (4, 3), (B, 2, 3, 4)),
    "not first": (
        lambda w, x: summed(jnp.einsum("btd,df->tbf", x, w).swapaxes(0, 1)),
        (4, 3),
        (B, 6, 4),
    ),
    "transposed": (lambda w, x: summed(jnp.einsum("btd,fd->btf", x, w)), (3, 4), (B, 6, 4)),
    "heads out": (lambda w, x: summed(jnp.einsum("btd,dhk->bthk", x, w)), (4, 2, 3), (B, 6, 4)),
    "heads in": (lambda w, x: summed(jnp.einsum("bthk,hkd->btd", x, w)), (2, 3, 4), (B, 6, 2, 3)),
    "between": (lambda w, x: summed(jnp.einsum("btd,hdk->bhtk", x, w)), (2, 4, 3), (B, 6, 4)),
    "apart": (lambda w, x: summed(jnp.einsum("bhtd,hdk->bhtk", x, w)), (2, 4, 3), (B, 2, 6, 4)),
    "reshaped": (lambda w, x: summed(x @ w.reshape(4, 6)), (2, 2, 6), (B, 6, 4)),
    "scaled": (lambda w, x: summed(x @ (-3 * w.T)), (3, 4), (B, 6, 4)),
}


def assert_right(found, own, terms):
    """An element of a gradient is a sum of so many terms of size about 1."""
    gradient, statistics = found
    close = {"rtol": 1e-5, "atol": 8 * terms * EPS}
    np.testing.assert_allclose(gradient, own.mean(0), **close)
    for name, taken in TAKEN.items():
        np.testing.assert_allclose(statistics[name], taken(own), **close, err_msg=name)


@pytest.mark.parametrize("name", DENSE)
def test_dense_sites(name):
    loss, *shapes = DENSE[name]
    w, x = (drawn(*shape) for shape in shapes)
    f = hs.grad(loss, statistics=STATISTICS, strategy="fused")
    (output,) = f.explain(w, x).outputs
    assert set(output.strategies.values()) == {"fused"}
    assert_right(f(w, x), own_gradients(loss, w, x), terms=12)


def test_the_gradient_comes_along():
    loss, *shapes = DENSE["one"]
    w, x = (drawn(*shape) for shape in shapes)

    def contractions(reuse):
        f = hs.grad(loss, statistics=STATISTICS, strategy="fused", reuse_gradient=reuse)
        return f.module(w, x).text().count("stablehlo.dot_general")

    assert contractions(None) == contractions(False) - 1
    kept = hs.grad(loss, statistics=STATISTICS, strategy="fused", reuse_gradient=False)
    np.testing.assert_array_equal(kept(w, x)[0], jax.jit(jax.grad(loss))(w, x))


def test_a_function_that_rests_on_no_element():
    loss, *shapes = DENSE["one"]
    w, x = (drawn(*shape) for shape in shapes)
    three = hs.mean_of(lambda g: jnp.full_like(g, 3.0))
    _, found = hs.grad(loss, statistics=three, strategy="fused")(w, x)
    np.testing.assert_array_equal(found, np.full(w.shape, 3.0))


def test_a_sum_of_losses():
    loss, *shapes = DENSE["one"]
    w, x = (drawn(*shape) for shape in shapes)
    f = hs.grad(
        lambda w, x: B * loss(w, x),
        statistics=STATISTICS,
        loss_reduction="sum",
        strategy="fused",
    )
    gradient, statistics = f(w, x)
    own = own_gradients(loss, w, x)
    assert_right((gradient / B, statistics), own, terms=12)


def test_padding_counts_nothing():
    w, x, real = drawn(4, 3), drawn(B, 6, 4), np.array([1, 0, 1, 1, 0], np.float32)

    def loss(w, x, real):
        own = jnp.sum(jnp.tanh(x @ w), (1, 2))
        return jnp.sum(jnp.where(real > 0, own, 0)) / jnp.maximum(jnp.sum(real), 1)

    f = hs.grad(loss, batch_argnums=(1, 2), statistics=STATISTICS, is_real=2, strategy="fused")
    x[1] = np.inf
    _, statistics = f(w, x, real)
    own = own_gradients(lambda w, x: summed(x @ w), w, x[real > 0])
    assert_right((own.mean(0), statistics), own, terms=6)


@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, np.float16])
def test_narrow_operands(kind):
    """Products of them are exact in float32, which is what is squared and summed."""
    x, c = drawn(B, 6, 4).astype(kind), drawn(B, 6, 3).astype(kind)
    w = np.zeros((4, 3), kind)
    f = hs.grad(
        lambda w, x, c: jnp.sum((x @ w) * c),
        batch_argnums=(1, 2),
        statistics=STATISTICS,
        loss_reduction="sum",
        strategy="fused",
    )
    (output,) = f.explain(w, x, c).outputs
    assert set(output.strategies.values()) == {"fused"}
    own = np.einsum("btd,btf->bdf", x.astype(np.float64), c.astype(np.float64))
    gradient, statistics = f(w, x, c)
    assert gradient.dtype == kind
    np.testing.assert_array_equal(gradient, own.sum(0).astype(np.float32).astype(kind))
    assert_right((own.mean(0), statistics), own, terms=12)


WEIGHTED = {
    "clipped mean": (hs.clipped_mean, lambda g: g),
    "clipped squares": (hs.clipped_second_moment, lambda g: g**2),
}


@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_are_numbers_of_the_kernel_where_operands_would_be_rounded(name, kind):
    statistic, taken = WEIGHTED[name]
    x, c = drawn(B, 6, 4).astype(kind), drawn(B, 6, 3).astype(kind)
    w, own = np.zeros((4, 3), kind), np.einsum("btd,btf->bdf", *(v.astype(float) for v in (x, c)))
    x[2], own[2] = np.inf, 0  # left out, and counted
    norms = np.linalg.norm(own.reshape(B, -1), axis=1)
    most = float(np.median(norms[norms > 0]))
    f = hs.grad(
        lambda w, x, c: jnp.sum((x @ w) * c),
        batch_argnums=(1, 2),
        statistics=statistic(most, nan_safe=True),
        loss_reduction="sum",
        strategy="fused",
        reuse_gradient=False,
    )
    # The gradient, norms of what is lifted, sums with weights.
    assert f.module(w, x, c).text().count("stablehlo.dot_general") == 3
    weighted = own * np.minimum(1, most / np.maximum(norms, 1e-9))[:, None, None]
    found = f(w, x, c)[1]
    np.testing.assert_allclose(found, taken(weighted).mean(0), rtol=2e-5, atol=64 * EPS)


def test_layers_of_a_scan_have_their_kernel_in_the_loop():
    layers, x = drawn(3, 4, 4), drawn(B, 6, 4)

    def loss(layers, x):
        return summed(jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, layers)[0])

    f = hs.grad(loss, statistics=STATISTICS, strategy="fused")
    (output,) = f.explain(layers, x).outputs
    assert set(output.strategies.values()) == {"fused"}
    assert output.sites[0].trips == 3
    assert_right(f(layers, x), own_gradients(loss, layers, x), terms=100)


def test_microbatches():
    w, x = drawn(4, 3), drawn(6, 2, 4)

    def gradient(w, x):
        def step(total, part):
            return total + jax.grad(lambda w, x: summed(x @ w))(w, part), None

        return jax.lax.scan(step, jnp.zeros_like(w), x.reshape(3, 2, 2, 4))[0] / 3

    f = hs.rewrite(gradient, batch_argnums=1, statistics=STATISTICS, strategy="fused")
    found, statistics = f(w, x)
    own = own_gradients(lambda w, x: summed(x @ w), w, x)
    np.testing.assert_allclose(found, own.mean(0), rtol=1e-5, atol=1e-6)
    for name in STATISTICS:
        np.testing.assert_allclose(statistics[name], TAKEN[name](own), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("low", "high"), [(-70, -50), (40, 60)])
def test_scales_that_bring_a_gradient_into_range(low, high):
    """Of a loss that was scaled up, and of one scaled down, the tail takes that back."""
    w, x = np.zeros((4, 3), np.float32), drawn(B, 6, 4)
    scale = np.float32(2.0**low), np.float32(2.0**high)

    def gradient(w, x, scale, back):
        return jax.grad(lambda w: jnp.sum((x @ w) * scale * x[..., :3]))(w) * back

    f = hs.rewrite(
        gradient,
        batch_argnums=1,
        statistics=STATISTICS,
        loss_reduction="sum",
        strategy="fused",
    )
    back = np.float32(1) / scale[0]
    found = f(w, x, scale[0], back)
    (output,) = f.explain(w, x, scale[0], back).outputs
    assert set(output.strategies.values()) == {"fused"}
    own = np.einsum("btd,btf->bdf", x.astype(np.float64), x[..., :3].astype(np.float64))
    assert_right((found[0] / B, found[1]), own, terms=24)


def only_some(asked, w, x, loss=lambda w, x: summed(x @ w)):
    """The strategies that are taken where kernels are asked for."""
    (output,) = hs.grad(loss, statistics=asked, strategy="fused").explain(w, x).outputs
    return set(output.strategies.values())


W, X = np.ones((4, 3), np.float32), np.ones((B, 6, 4), np.float32)


@pytest.mark.parametrize(
    "asked",
    [
        hs.norms(),
        hs.variance(),
        hs.per_example(),
        hs.sum_of(lambda g: g.T @ g),
        hs.mean_of(jnp.arctan),
    ],
    ids=["norms", "about the mean", "all", "of the whole", "what kernels have not"],
)
def test_what_tiles_do_not_tell_is_made_otherwise(asked):
    assert "fused" not in only_some(asked, W, X)


def test_sums_of_two_sites_are_made_otherwise():
    def tied(w, x):
        return summed(jnp.tanh(x @ w) @ w.T)

    assert "fused" not in only_some(hs.second_moment(), W, X, tied)
    f = hs.grad(tied, statistics=STATISTICS, strategy="fused")
    w, x = drawn(4, 3), drawn(B, 6, 4)
    assert_right(f(w, x), own_gradients(tied, w, x), terms=40)


def test_so_are_convolutions_and_regularised_losses():
    def convolved(w, x):
        return summed(
            jax.lax.conv_general_dilated(x, w, (1,), "SAME", None, None, ("NWC", "WIO", "NWC"))
        )

    def regularised(w, x):
        return summed(x @ w) + jnp.sum(w**2)

    assert "fused" not in only_some(
        hs.second_moment(), np.ones((3, 4, 2), np.float32), X, convolved
    )
    assert "fused" not in only_some(hs.second_moment(), W, X, regularised)


def test_float64_is_made_otherwise():
    with jax.enable_x64(True):
        assert "fused" not in only_some(hs.second_moment(), W.astype(float), X.astype(float))


def test_one_example_needs_no_kernel():
    assert "fused" not in only_some(hs.second_moment(), W, X[:1])


def test_examples_on_several_devices_are_refused():
    f = hs.grad(DENSE["one"][0], statistics=hs.second_moment(), strategy="fused", shards=5)
    with pytest.raises(ValueError, match=r"examples lie on 5: call the function inside jax.shard_"):
        f(W, X)


def test_nobody_is_given_an_interpreter_unasked():
    plan = hs.grad(DENSE["one"][0], statistics=hs.second_moment()).explain(W, X)
    assert "fused" not in plan.outputs[0].predicted


def test_each_device_has_its_own_kernel_in_shard_map():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    P = jax.sharding.PartitionSpec
    f = hs.grad(DENSE["one"][0], statistics=hs.second_moment(), strategy="fused")
    mapped = jax.shard_map(
        lambda w, x: jax.tree.map(lambda g: jax.lax.pmean(g, "data"), f(w, x)),
        mesh=mesh,
        in_specs=(P(), P("data")),
        out_specs=P(),
        check_vma=False,
    )
    w, x = drawn(4, 3), drawn(B, 6, 4)
    found, expected = mapped(w, x), f(w, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)


W_SHORT = jax.ShapeDtypeStruct((1024, 4096), jnp.float32)
SHORT = W_SHORT, jax.ShapeDtypeStruct((32, 512, 1024), jnp.bfloat16)


def many_short(w, x):
    return summed(x @ w.astype(x.dtype))


def plan_of(x=SHORT[1], **planning):
    (output,) = (
        hs.grad(many_short, statistics=hs.second_moment(), **planning).explain(W_SHORT, x).outputs
    )
    return output


@pytest.mark.parametrize("target", ["tpu:v5e", "tpu:v5p", "gpu"])
def test_it_is_predicted_and_taken_by_who_asks(target):
    plan = plan_of(target=target)
    assert "fused" not in plan.strategies.values()
    (taken,) = plan.strategies.values()
    assert plan.predicted["fused"].seconds < plan.predicted[taken].seconds
    assert plan_of(target=target, strategy="fused").strategies == {"second_moment": "fused"}


def test_a_plan_takes_it_where_it_was_measured():
    assert plan_of(target="gpu:h200").strategies == {"second_moment": "fused"}
    assert "fused" not in plan_of(target="gpu:h200:1x1x8").strategies.values()
    assert "fused" not in plan_of(target="gpu:h200", shards=8).strategies.values()
    assert "fused" not in plan_of(target="gpu:a100").strategies.values()


def test_the_only_device_here_is_planned_for_by_its_name():
    h200, a100 = (
        SimpleNamespace(device_kind=kind, platform="gpu")
        for kind in ("NVIDIA H200", "NVIDIA A100-SXM4-80GB")
    )
    assert alone([h200]) == "gpu:h200"
    assert alone([h200, h200]) is None
    assert alone([a100]) is None
    assert alone(jax.devices()[:1]) is None


def test_a_dumped_module_is_for_any_device_unless_one_is_named(monkeypatch):
    """As on a machine with an H200."""
    monkeypatch.setattr(rooflines, "row_of", lambda device: "gpu:h200")
    monkeypatch.setattr(rooflines, "runs_triton", lambda device: True)
    shapes = jax.ShapeDtypeStruct((1024, 4096), jnp.bfloat16), SHORT[1]
    gradient = jax.jit(jax.grad(many_short)).lower(*shapes).as_text()
    asked = {"batch": [1], "statistics": hs.second_moment()}
    (here,) = explain_module(gradient, **asked).outputs
    (named,) = explain_module(gradient, **asked, target="gpu:h200").outputs
    assert "fused" in here.predicted
    assert "fused" not in here.strategies.values()
    assert "fused" in named.strategies.values()


def test_a_plan_takes_it_for_sums_of_narrow_products():
    def taken(w, statistic):
        f = hs.grad(many_short, statistics=statistic, target="gpu:h200")
        return f.explain(w, SHORT[1]).outputs[0].strategies.values()

    narrow = jax.ShapeDtypeStruct(W_SHORT.shape, jnp.bfloat16)
    assert "fused" in taken(narrow, hs.mean_sign())
    assert "fused" not in taken(narrow, hs.norms())


MICROSECONDS = {
    (16, 512, 512, 8192): {"fused": 107, "lift": 125, "loop": 282},
    (256, 16, 1024, 1024): {"fused": 60, "lift": 519, "loop": 1385},
    (64, 128, 1024, 1024): {"fused": 54, "lift": 198, "loop": 357},
    (8, 2048, 1024, 4096): {"fused": 114, "lift": 69, "loop": 70},
}
"""What each took on an H200 beside the plain gradient (`tools/RESULTS.md`)."""


@pytest.mark.parametrize("sizes", MICROSECONDS)
def test_a_plan_takes_what_was_the_fastest_on_a_gpu(sizes):
    problem, took = dense_site(*sizes), MICROSECONDS[sizes]
    f = hs.grad(
        problem.loss,
        batch_argnums=problem.batch_argnums,
        statistics=hs.second_moment(),
        target="gpu:h200",
    )
    (output,) = f.explain(*problem.structs).outputs
    assert output.strategies == {"second_moment": min(took, key=took.__getitem__)}
    assert 0.7 < output.predicted["fused"].seconds * 1e6 / took["fused"] < 1.4


def test_it_is_not_predicted_where_there_is_none():
    assert "fused" not in plan_of(target="tpu:v5e", shards=4).predicted
    assert "fused" not in plan_of(target="tpu:v4").predicted


def test_it_is_slower_where_sums_stay_on_the_chip_with_the_update():
    large = jax.ShapeDtypeStruct((8, 2048, 1024), jnp.bfloat16)
    predicted = plan_of(large, target="tpu:v5e").predicted
    assert predicted["fused"].seconds > predicted["loop"].seconds


@pytest.mark.parametrize(
    ("capability", "runs"), [("9.0", True), ("8.6", True), ("7.0", False), ("gfx942", False)]
)
def test_kernels_are_for_gpus_that_triton_knows(capability, runs):
    class Device:
        compute_capability = capability

    assert runs_triton(Device()) is runs


def test_a_device_without_a_capability_has_no_kernels():
    assert not runs_triton(jax.devices()[0])
