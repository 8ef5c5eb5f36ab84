"""Which output is the loss that `per_example_losses` takes apart; a question where many may be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs

W = jnp.asarray(np.random.default_rng(1).normal(size=(3, 5)), jnp.float32)
X = jnp.asarray(np.random.default_rng(2).normal(size=(4, 3)), jnp.float32)
P = {"w": W}
OWN = jnp.sum(jnp.tanh(X @ W) ** 2, -1)


def loss(p, x):
    return jnp.mean(jnp.sum(jnp.tanh(x @ p["w"]) ** 2, -1))


def accuracy(p, x):
    return jnp.mean(jnp.where(x @ p["w"] > 0, 1.0, 0.0))


def with_metrics(p, x):
    value, gradient = jax.value_and_grad(loss)(p, x)
    found = {
        "accuracy": accuracy(p, x),
        "loss": value,
        "rate": 0.1,
        "decay": jnp.sum(p["w"] ** 2),
        "n": 4,
    }
    return {"metrics": found, "gradient": gradient}


def asked(function, **options):
    source = jax.jit(function).lower(P, X).as_text(debug_info=True)
    return hs.rewrite_module(source, batch=["x"], statistics=hs.per_example_losses(), **options)


def test_two_that_the_examples_reach_are_asked_about():
    with pytest.raises(
        ValueError, match=r"not clear: .*'accuracy'.*'loss'.*loss=\.\.\. \(--loss\)"
    ) as problem:
        asked(with_metrics)
    assert str(problem.value).endswith("""such as loss="['metrics']['loss']\"""")
    assert not any(f"'{name}'" in str(problem.value) for name in ("rate", "decay", "n"))


@pytest.mark.parametrize("name", ["['metrics']['loss']", 3])
def test_the_one_that_is_named(name):
    module = asked(with_metrics, loss=name)
    np.testing.assert_allclose(module.call(W, X)[-1], OWN, rtol=1e-5)
    assert "['metrics']['loss'] (the loss)" in str(module.plan)


def test_one_that_mixes_the_examples_may_be_the_loss_too():
    def with_norm(p, x):
        value, gradient = jax.value_and_grad(loss)(p, x)
        return {"accuracy": accuracy(p, x), "loss": jnp.log(value)}, gradient

    with pytest.raises(ValueError, match="which output is the loss is not clear"):
        asked(with_norm)


WRONG = {
    "no such output": ("loss", "no output is named 'loss'"),
    "a gradient": ("['gradient']['w']", "named both as the loss and as a gradient"),
    "a tree": ("['metrics']", r"a tree of \['metrics'\]\['accuracy'\]: float32\[\], .*name one"),
    "an integer": ("['metrics']['n']", "one real number"),
}


@pytest.mark.parametrize(("name", "said"), WRONG.values(), ids=WRONG)
def test_what_is_no_loss(name, said):
    with pytest.raises(ValueError, match=said):
        asked(with_metrics, loss=name)


@pytest.mark.parametrize("has_aux", [False, True])
def test_the_value_of_value_and_grad_is_the_loss(has_aux):
    def fun(p, x):
        return (loss(p, x), {"accuracy": accuracy(p, x)}) if has_aux else loss(p, x)

    f = hs.value_and_grad(fun, has_aux=has_aux, statistics=hs.per_example_losses())
    np.testing.assert_allclose(f(P, X)[1], OWN, rtol=1e-5)


def test_rewrite_is_told_the_loss():
    how = {
        "batch_argnums": 1,
        "statistics": hs.per_example_losses(),
        "gradients": lambda found: found["gradient"],
    }
    with pytest.raises(ValueError, match="not clear"):
        hs.rewrite(with_metrics, **how)(P, X)
    found = hs.rewrite(with_metrics, **how, loss=lambda found: found["metrics"]["loss"])(P, X)[1]
    np.testing.assert_allclose(found, OWN, rtol=1e-5)
    with pytest.raises(ValueError, match="one real number"):
        hs.rewrite(with_metrics, **how, loss=lambda found: found["metrics"])(P, X)


def test_a_loss_that_is_no_sum_of_terms_is_told_how_to_be_one():
    def squared(p, x):
        return jnp.sum(jnp.tanh(x @ p["w"])) ** 2

    asked = {"batch_argnums": 1, "loss_reduction": "sum"}
    f = hs.value_and_grad(squared, statistics=hs.per_example_losses(), **asked)
    with pytest.raises(hs.Refusal, match=r"sums? over the examples"):
        f(P, X)
