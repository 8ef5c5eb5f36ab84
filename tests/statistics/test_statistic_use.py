"""How statistics are asked for: arrays' names, groups of outputs, wrong use, per-token proxies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.passes.measures.measures import MEAN
from hlo_surgery.statistics.derived import Derived
from tests.statistics.statistic_models import MODELS, draws, in_float64, tokens

B = 3
MODULE = """
func.func @main(%v: tensor<4xf32>, %w: tensor<2x2xf32>, %x: tensor<3x4xf32>, %y: tensor<3x2x2xf32>)
    -> (tensor<4xf32> {jax.result_info = "v"}, tensor<2x2xf32> {jax.result_info = "w"}) {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %gx = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0]
    : (tensor<3x4xf32>, tensor<f32>) -> tensor<4xf32>
  %gy = stablehlo.reduce(%y init: %z) applies stablehlo.add across dimensions = [0]
    : (tensor<3x2x2xf32>, tensor<f32>) -> tensor<2x2xf32>
  return %gx, %gy : tensor<4xf32>, tensor<2x2xf32>
}"""
DRAW = draws(0)
X, Y = DRAW(B, 4), DRAW(B, 2, 2)
BOTH = np.concatenate([X, Y.reshape(B, -1)], 1)


def rewritten(statistics, batch=(2, 3), **options):
    return hs.modules.rewrite_module(
        MODULE, batch=list(batch), statistics=statistics, loss_reduction="sum", **options
    )


def outputs(statistics):
    """What the module returns beyond its gradients, by name."""
    module = rewritten(statistics)
    results = module.call(np.zeros(4, "f"), np.zeros((2, 2), "f"), X, Y)
    return {
        port.name: np.asarray(r) for port, r in zip(module.outputs[2:], results[2:], strict=True)
    }


def test_names_of_one_array_of_one_for_each_parameter_and_of_groups():
    grouped = {"all of it": ["v", 1]}
    found = outputs({
        "norms": hs.norms(),
        "each": hs.norms("parameter"),
        "gram": hs.gram(grouped),
        "clipped": hs.clipped_mean(1.0, {"a": ["w"], "b": [0]}),
        "noise": hs.noise_scale(),
        "noise of": hs.noise_scale("parameter"),
    })  # fmt: skip
    assert list(found) == [
        "norms",
        "each/v",
        "each/w",
        "gram/all of it",
        "clipped/v",
        "clipped/w",
        "noise.variance",
        "noise.squared_mean",
        *(f"noise of/{leaf}.{part}" for leaf in "vw" for part in ("variance", "squared_mean")),
    ]
    close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(found["norms"], np.linalg.norm(BOTH, axis=1), **close)
    np.testing.assert_allclose(found["each/v"], np.linalg.norm(X, axis=1), **close)
    np.testing.assert_allclose(found["each/w"], np.linalg.norm(Y, axis=(1, 2)), **close)
    np.testing.assert_allclose(found["gram/all of it"], BOTH @ BOTH.T, **close)
    of_each = X / np.maximum(1, np.linalg.norm(X, axis=1, keepdims=True))
    np.testing.assert_allclose(found["clipped/v"], of_each.mean(0), **close)


def test_one_statistic_goes_by_its_own_name():
    assert list(outputs(hs.norms(ord=1))) == ["norms(ord=1)"]
    assert list(outputs(hs.clipped_mean(2.0))) == ["clipped_mean(2.0)/v", "clipped_mean(2.0)/w"]


def squares(p, x):
    return jnp.mean(jnp.sum((x @ p["w"]) ** 2, -1))


def graded(statistic, size=B):
    """The statistic of a small model with one parameter."""
    return hs.grad(squares, statistics=statistic)(
        {"w": np.ones((4, 2), "f")}, np.ones((size, 4), "f")
    )


def grouped(statistic):
    """The statistic of a model with three parameters, of which two are in one part."""
    params = {"v": np.ones((4, 2), "f"), "w": {"a": np.ones((2, 3), "f"), "b": np.ones(3, "f")}}

    def loss(p, x):
        return jnp.mean(jnp.sum(jnp.tanh(x @ p["v"] @ p["w"]["a"] + p["w"]["b"]) ** 2, -1))

    return hs.grad(loss, statistics=statistic)(params, X)[1]


WRONG = {
    "an unknown per": (
        lambda: rewritten(hs.norms("layer")),
        "it is 'global', 'parameter', or a dict",
    ),
    "an unknown output": (lambda: rewritten(hs.norms({"a": ["v", "u"]})), "no output is named 'u'"),
    "an output left out": (
        lambda: rewritten(hs.gram({"a": ["v"]})),
        "must hold every gradient once",
    ),
    "no prefix": (lambda: graded(hs.norms({"u": 0})), "no pytree prefix of the gradient"),
    "a leaf that is none": (lambda: graded(hs.norms({"u": 0, "w": 1})), r"no part of it: \['u'\]"),
    "an unknown direction": (lambda: hs.inner_products("median"), "'mean' or a pytree"),
    "no loss": (lambda: graded(hs.per_example_losses()), "needs a module that returns its loss"),
    "variance of one": (lambda: graded(hs.variance(), 1), "at least 2 examples; the batch has 1"),
    "ord of zero": (lambda: hs.norms(ord=0), "takes ord > 0"),
    "a power of zero": (lambda: hs.mean_power(0), "integer k >= 1"),
    "a negative threshold": (lambda: hs.mean_of_clipped_entries(-1.0), "positive threshold"),
    "no max_norm": (lambda: hs.clipped_mean(0.0), "positive max_norm"),
    "a constant polynomial": (lambda: hs.polynomial([1.0]), "at least two"),
    "an infinite coefficient": (lambda: hs.polynomial([1, float("inf")]), "finite number"),
    "falling edges": (lambda: hs.histogram([0.0, 1.0, 0.5]), "at least two increasing edges"),
    "a per that is none": (lambda: hs.norms("layer"), "it is 'global', 'parameter'"),
    "a weight": (lambda: graded(hs.weighted_mean(lambda n: 2.0)), "w made 2.0"),
    "one weight for all": (lambda: graded(hs.weighted_mean(jnp.sum)), "one for each example"),
}


@pytest.mark.parametrize(("call", "said"), WRONG.values(), ids=WRONG.keys())
def test_wrong_use(call, said):
    with pytest.raises(ValueError, match=said):
        call()


NOT_ELEMENTWISE = {
    "normalised": lambda g: g / jnp.sum(jnp.abs(g)),
    "centred": lambda g: g - jnp.mean(g),
    "summed up": lambda g: jnp.cumsum(g, -1),
    "other noise for each": lambda g: g + jax.random.normal(jax.random.key(0), g.shape),
}


@pytest.mark.parametrize("phi", NOT_ELEMENTWISE.values(), ids=NOT_ELEMENTWISE)
def test_phi_that_keeps_the_shape_but_is_not_elementwise(phi):
    statistic = hs.mean_of(phi)
    with pytest.raises(TypeError, match="phi must work on each element alone"):
        hs.grad(lambda w, x: jnp.mean(jnp.tanh(x @ w)), statistics=statistic)(X[0], X)


@pytest.mark.parametrize(
    "flagged",
    [
        lambda flag: hs.clipped_mean(1.0, nan_safe=flag),
        lambda flag: hs.weighted_mean(jnp.reciprocal, nan_safe=flag),
        lambda flag: hs.variance(unbiased=flag),
        lambda flag: hs.mean_of(jnp.square, factorable=flag),
    ],
)
@pytest.mark.parametrize("flag", ["False", None, 1])
def test_flags_are_true_or_false(flagged, flag):
    with pytest.raises(TypeError, match=f"takes True or False for .*, not {flag!r}"):
        flagged(flag)


@pytest.mark.parametrize(
    "terms",
    [[], 3, [(1.0, hs.variance())], [(1.0, hs.per_example())], [hs.second_moment()], [(1.0,)]],
)
def test_terms_of_a_linear_combination_are_elementwise_means(terms):
    with pytest.raises(TypeError, match="elementwise mean"):
        hs.linear_combination(terms)


def shares(p, x):
    """Each position's own share of each example's gradient, [B, L, *parameter]: that of a copy of
    the parameters.
    """

    def alone(copies, row):
        h = jnp.tanh(jnp.einsum("ld,ldf->lf", row, copies["w"]))
        return jnp.mean(jnp.sum(jnp.sin(jnp.einsum("ld,ldf->lf", h, copies["v"])) ** 2, -1))

    copies = jax.tree.map(lambda w: jnp.stack([w] * x.shape[1]), p)
    return jax.vmap(jax.grad(alone), (None, 0))(copies, x)


def test_per_token_proxies():
    model = MODELS["tokens"]
    asked = {"squares": hs.per_token_second_moment(), "norms": hs.token_norms()}
    _, found = hs.grad(tokens, statistics=asked)(model.params, *model.batch)
    with jax.enable_x64(True):
        each = jax.tree.map(np.asarray, shares(in_float64(model.params), *in_float64(model.batch)))
    for name, share in each.items():
        np.testing.assert_allclose(found["squares"][name], np.sum(share**2, 1).mean(0), rtol=1e-4)
        np.testing.assert_allclose(
            found["norms"][name], np.linalg.norm(share, axis=(2, 3)), rtol=1e-4
        )


@pytest.mark.parametrize("statistic", [hs.per_token_second_moment(), hs.token_norms()])
def test_per_token_proxies_are_refused_where_a_gradient_is_no_single_contraction(statistic):
    model = MODELS["tied"]
    f = hs.grad(model.loss, batch_argnums=(1, 2), statistics=statistic)
    with pytest.raises(hs.Refusal, match="needs a single contraction over examples and positions"):
        f(model.params, *model.batch)


TAKEN = {
    "about_mean=True": lambda found: found.mean(),
    "reweights=True": lambda found: found.weighted([jnp.ones(B)] * 2),
    "losses=True": lambda found: [found.losses()],
    "measures=": lambda found: found.of(MEAN),
}


@pytest.mark.parametrize("said", TAKEN)
def test_what_a_statistic_takes_it_says(said):
    own = Derived("own", lambda found, groups: TAKEN[said](found))
    with pytest.raises(TypeError, match=rf"own takes found\..*Derived\(\.\.\., {said}"):
        rewritten(own)


X_OF_GRADIENT = jnp.array([[1.0, 2.0, 0.5], [3.0, -1.0, 2.0]])
P = {"a": jnp.array([1.0, 2.0, 3.0]), "b": jnp.array([-1.0, 0.5, 2.0])}
MANY = 12


def loss(params, x):
    return jnp.mean((x @ params["a"]) * 2 + jnp.tanh(x @ params["b"]))


@pytest.mark.parametrize(
    "direction",
    [[P["a"], P["b"]], [P["b"], P["a"]], {"c": P["a"], "d": P["b"]}, {"a": P}, P["a"], {}],
)
def test_a_direction_of_another_tree_is_refused(direction):
    f = hs.grad(loss, statistics=hs.inner_products(direction))
    wanted = r"must be like the gradient, .* has \['a'\], \['b'\]($|\. Several directions)"
    with pytest.raises(ValueError, match=wanted):
        f(P, X_OF_GRADIENT)


def dumped():
    """Gradients in a list: by their names, the one at 10 comes before the one at 2."""

    def of_list(params, x):
        return jnp.mean(sum((i + 1) * p * x for i, p in enumerate(params)))

    params, x = [jnp.float32(1)] * MANY, jnp.array([1.0, 2.0])
    gradient = jax.jit(jax.grad(of_list), keep_unused=True)
    return gradient.lower(params, x).as_text(debug_info=True), [*params, x]


def found(statistic):
    """The statistic's arrays, of example b's gradients (i + 1) x_b."""
    text, arguments = dumped()
    module = hs.modules.rewrite_module(
        text, batch={MANY: 0}, statistics={"it": statistic}, loss_reduction="mean"
    )
    return [np.asarray(output).tolist() for output in module.call(*arguments)[MANY:]]


def test_a_function_of_a_dumped_gradient_takes_each_by_its_name():
    last = hs.sum_of(lambda tree: [tree[f"[{i}]"] for i in range(MANY)], per="global")
    assert found(last) == [3.0 * (i + 1) for i in range(MANY)]


def test_directions_of_a_dumped_gradient_have_its_names():
    last = {f"[{i}]": float(i == MANY - 1) for i in range(MANY)}
    assert found(hs.inner_products(last)) == [[12.0, 24.0]]
    with pytest.raises(ValueError, match="a dict by the names of its outputs"):
        found(hs.inner_products([0.0] * MANY))


def of_attention(p, x):
    """What is added to all keys alike changes no weight."""
    queries, keys = x @ p["q"], x @ p["k"] + p["key_bias"]
    weights = jax.nn.softmax(jnp.einsum("btd,bsd->bts", queries, keys))
    return jnp.mean(jnp.sum(jnp.einsum("bts,bsd->btd", weights, x) * p["out"], (1, 2)) ** 2)


@pytest.mark.parametrize("per", ["parameter", {"key_bias": 0, "k": 0, "out": 0, "q": 0}])
def test_a_gradient_that_is_rounding_alone_has_no_signal(per):
    draw = lambda seed, *shape: jax.random.normal(jax.random.key(seed), shape)  # noqa: E731
    p = {"q": draw(1, 8, 8), "k": draw(2, 8, 8), "key_bias": draw(3, 8), "out": draw(4, 8)}
    statistics = {"noise": hs.noise_scale(per), "norms": hs.norms(per)}
    _, found = hs.grad(of_attention, statistics=statistics)(p, draw(5, 16, 12, 8))
    assert (found["norms"]["key_bias"] > 0).any()
    noise = found["noise"].pop("key_bias")
    assert (float(noise.squared_mean), float(noise.ratio)) == (0, np.inf)
    assert all(np.isfinite(each.ratio) for each in found["noise"].values())


def test_small_gradients_have_their_noise_scale():
    """Nor does one that is infinite make others rounding."""
    loss = lambda p, x: jnp.mean(p["a"] * x + 1e-5 * p["b"] * x + p["c"] * jnp.exp(60 * x))  # noqa: E731
    p, x = dict.fromkeys("abc", 1.0), jnp.array([1.0, 2.0, 4.0])
    _, found = hs.grad(loss, statistics=hs.noise_scale("parameter"))(p, x)
    np.testing.assert_allclose(found["b"].ratio, found["a"].ratio, rtol=1e-5)


def test_entries_without_a_ratio_are_left_out_of_that_of_their_parameter():
    """The third is reached by no example; the last one's variance is beyond the largest float."""
    loss = lambda w, x: jnp.mean(x[:, :2] @ w[:2] + 1e25 * x[:, 3] * w[3])  # noqa: E731
    w, x = jnp.ones(4), jnp.array([[1.0, 2.0, 3.0, 1.0], [3.0, 5.0, 1.0, -1.0]])
    entries = hs.grad(loss, statistics=hs.snr())(w, x)[1]
    assert np.isnan(entries).tolist() == [False, False, True, True]
    found = hs.grad(loss, statistics=hs.snr("parameter"))(w, x)[1]
    np.testing.assert_allclose(found, np.sqrt((2**2 + 3.5**2) / (2 + 4.5)), rtol=1e-6)
    zeros = hs.grad(lambda w, x: jnp.mean(0 * x[:, 0] * w[0]), statistics=hs.snr("parameter"))
    assert np.isnan(zeros(w, x)[1])
