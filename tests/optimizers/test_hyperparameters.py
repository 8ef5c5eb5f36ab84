"""Hyperparameters that are none, statistics that are missing: errors, not other training."""

import jax.numpy as jnp
import optax
import pytest

import hlo_surgery as hs
import hlo_surgery.optimizers as ho
from tests.optimizers.optimizer_runs import LEAVES, MAX_NORM, SIZE, drawn, statistics_of, tree_of
from tests.optimizers.test_optimizers import NAMES, optimizer_of

W, X = jnp.ones(3), jnp.ones((4, 3))
NAN, INF = float("nan"), float("inf")
MAKERS = {
    "adam": ho.adam,
    "micro_adam": ho.micro_adam,
    "micro_adam_var": ho.micro_adam_var,
    "sign_ema": ho.sign_ema,
    "micro_sign_sgd": ho.micro_sign_sgd,
    "dp_sgd": lambda rate, **more: ho.dp_sgd(rate, 1.0, 1.0, 0, **more),
    "dp_adam": lambda rate, **more: ho.dp_adam(rate, 1.0, 1.0, 0, **more),
}


def loss(w, x):
    return jnp.mean((x @ w) ** 2)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("rate", [None, -0.1, NAN, INF, "0.1"])
def test_learning_rates_that_are_none(make, rate):
    with pytest.raises(ValueError, match=r"learning_rate is .*at least 0, or a schedule"):
        make(rate)


@pytest.mark.parametrize("decay", [None, 2.0, 1.0, -0.1, NAN])
@pytest.mark.parametrize("name", ["b1", "b2"])
def test_averages_that_are_none(decay, name):
    makers = [ho.adam, ho.micro_adam_msq, MAKERS["dp_adam"]]
    makers += [ho.sign_ema, ho.micro_sign_sgd] if name == "b1" else []
    for make in makers:
        with pytest.raises(ValueError, match=rf"{name} is .*from 0 to below 1"):
            make(0.1, **{name: decay})
    with pytest.raises(ValueError, match=r"b2 is .*from 0 to below 1"):
        ho.track_moments(decay)


@pytest.mark.parametrize("norm", [0, -1.0, NAN, INF, "a"])
def test_bounds_that_are_none(norm):
    with pytest.raises(ValueError, match=r"positive clip_norm .*finite"):
        ho.micro_adam(0.1, clip_norm=norm)
    with pytest.raises(ValueError, match=r"positive max_ratio .*finite"):
        ho.micro_adam_msq(0.1, max_ratio=norm)


NO_OPTIMIZERS = {
    "a name": ("adam", "such as micro_adam"),
    "nothing": (None, "such as micro_adam"),
    "not called": (ho.micro_adam, r"call it, as in micro_adam\(learning_rate\)"),
    "of optax, not called": (optax.adam, r"call it, as in adam\(learning_rate\)"),
}


@pytest.mark.parametrize(("wrong", "said"), NO_OPTIMIZERS.values(), ids=NO_OPTIMIZERS)
def test_what_is_no_optimizer(wrong, said):
    with pytest.raises(TypeError, match=said):
        hs.train_step(loss, wrong)
    with pytest.raises(TypeError, match=said):
        ho.multi_steps(wrong, 2)


@pytest.mark.parametrize("other", [optax.sgd(0.1), optax.adam(0.1), ho.sign_ema(0.1)])
def test_the_state_of_another_optimizer(other):
    with pytest.raises(ValueError, match=r"not of this optimizer; begin with optimizer\.init"):
        hs.train_step(loss, ho.micro_adam(0.1))(jnp.copy(W), other.init(W), X)


PARAMS = tree_of(LEAVES, jnp.float32)
FOUND = statistics_of([x[0] for x in drawn()], jnp.float32)
SQUARES, SIGNS = {"second_moment": hs.second_moment()}, {"mean_sign": hs.mean_sign()}
OPTIMIZERS = {name: optimizer_of(name, 0.01) for name in NAMES} | {
    "dp_sgd": ho.dp_sgd(0.1, MAX_NORM, 1.0, seed=0)
}
NEEDY = [
    (name, statistic) for name, of in OPTIMIZERS.items() for statistic in of.required_statistics
]


def update(optimizer, **given):
    return optimizer.update(FOUND["gradient"], optimizer.init(PARAMS), PARAMS, **given)


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("adam", {}),
        ("micro_adam", SQUARES),
        ("micro_adam_var", SQUARES),
        ("micro_adam_msq", SQUARES),
        ("sign_sgd", {}),
        ("sign_ema", {}),
        ("micro_sign_sgd", SIGNS),
    ],
)
def test_what_each_requires(name, needs):
    optimizer = optimizer_of(name, 0.01)
    assert optimizer.required_statistics == needs
    assert ho.required_statistics(optimizer, PARAMS) == needs


def test_two_clippings_are_not_mixed():
    """Both go by one name; the noise of the second would hide less than the clipping of the first
    lets through.
    """
    kinds = {"wide": ho.dp_sgd(0.1, 10.0, 1.0, seed=0), "narrow": ho.dp_sgd(0.1, 0.1, 1.0, seed=1)}
    with pytest.raises(ValueError, match="clipped_mean"):
        ho.required_statistics(
            optax.multi_transform(kinds, {"bias": "narrow", "layer": "wide"}), PARAMS
        )


@pytest.mark.parametrize(("name", "statistic"), NEEDY)
def test_a_missing_statistic_is_named(name, statistic):
    own = OPTIMIZERS[name]
    for optimizer in (own, optax.chain(optax.clip(1.0), own), ho.multi_steps(own, 2)):
        with pytest.raises(TypeError, match=statistic):
            update(optimizer, batch_size=SIZE)


def test_accumulation_that_would_lose_statistics_is_refused():
    """That of optax adds up the gradient alone."""
    with pytest.raises(TypeError, match="multi_steps"):
        ho.required_statistics(optax.MultiSteps(ho.micro_adam(0.01), 2), PARAMS)


@pytest.mark.parametrize(("base", "size"), [(0, 16), (-8, 16), (16, 0), ("16", 16)])
def test_batch_sizes_that_are_none(base, size):
    with pytest.raises(ValueError, match=r"batch_size_rule takes a positive (base_)?batch_size"):
        ho.batch_size_rule(0.1, base, size)
