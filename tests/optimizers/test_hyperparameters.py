"""Hyperparameters and optimizers that are none: errors where they are made, not other training."""

import jax
import jax.numpy as jnp
import optax
import pytest

import hlo_surgery as hs
import hlo_surgery.optimizers as ho

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


@pytest.mark.parametrize("make", [ho.adam, ho.micro_sign_sgd, MAKERS["dp_adam"]])
@pytest.mark.parametrize("decay", [None, -0.1, NAN])
def test_decays_of_weights_that_are_none(make, decay):
    with pytest.raises(ValueError, match=r"weight_decay is .*at least 0, or a schedule"):
        make(0.1, weight_decay=decay)


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


def test_schedules_and_injected_numbers_are_taken():
    schedule = optax.linear_schedule(0.1, 0.0, 10)
    injected = optax.inject_hyperparams(ho.micro_adam)
    made = [
        ho.micro_adam(schedule, b1=0.0, weight_decay=schedule),
        injected(schedule, b1=0.5, clip_norm=1.0),
    ]
    for optimizer in made:
        step, state = hs.train_step(loss, optimizer), jax.jit(optimizer.init)(W)
        assert jnp.isfinite(step(jnp.copy(W), state, X)[0]).all()


@pytest.mark.parametrize("every_k", [1.5, lambda step: 2, "2", None])
def test_numbers_of_microbatches_that_are_no_integers(every_k):
    with pytest.raises(TypeError, match=r"every_k is .*an integer number of microbatches"):
        ho.multi_steps(ho.micro_adam(0.1), every_k)


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


@pytest.mark.parametrize(("base", "size"), [(0, 16), (-8, 16), (16, 0), ("16", 16)])
def test_batch_sizes_that_are_none(base, size):
    with pytest.raises(ValueError, match=r"batch_size_rule takes a positive (base_)?batch_size"):
        ho.batch_size_rule(0.1, base, size)
