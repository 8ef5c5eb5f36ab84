"""Which output is the loss that `per_example_losses` takes apart; a question where many may be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.verification.verify import verify

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


def with_loss(p, x):
    value, gradient = jax.value_and_grad(loss)(p, x)
    return {"decay": jnp.sum(p["w"] ** 2), "gradient": gradient, "loss": value, "rate": 0.1}


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


def test_the_only_one_that_the_examples_reach():
    np.testing.assert_allclose(asked(with_loss).call(W, X)[-1], OWN, rtol=1e-5)


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


def test_a_module_without_its_loss():
    with pytest.raises(ValueError, match="needs a module that returns its loss"):
        asked(jax.grad(loss))


def test_verify_takes_the_loss_that_is_named():
    source = jax.jit(with_metrics).lower(P, X).as_text(debug_info=True)
    options = {"batch": ["x"], "statistics": hs.per_example_losses(), "loss": "['metrics']['loss']"}
    verdict = verify(source, **options, inputs=[W, X])
    assert verdict.verdict == "equivalent"
    assert "gradients: ['gradient']['w']" in str(verdict)


@pytest.mark.parametrize("has_aux", [False, True])
def test_the_value_of_value_and_grad_is_the_loss(has_aux):
    def fun(p, x):
        return (loss(p, x), {"accuracy": accuracy(p, x)}) if has_aux else loss(p, x)

    f = hs.value_and_grad(fun, has_aux=has_aux, statistics=hs.per_example_losses())
    np.testing.assert_allclose(f(P, X)[1], OWN, rtol=1e-5)


def test_aux_of_grad_is_no_loss():
    def fun(p, x):
        return loss(p, x), accuracy(p, x)

    with pytest.raises(ValueError, match=r"returns its loss; use hs\.value_and_grad"):
        hs.grad(fun, has_aux=True, statistics=hs.per_example_losses())


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


def test_losses_alone_beside_a_scan_whose_gradients_nothing_is_asked_of():
    def loss(w, x):
        h, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, w)
        return jnp.mean(jnp.sum(h**2, axis=1))

    w, x = jnp.ones((3, 4, 4)) / 4, jnp.sin(jnp.arange(20.0)).reshape(5, 4)
    (_, gradient), found = hs.value_and_grad(loss, statistics=hs.per_example_losses())(w, x)
    np.testing.assert_allclose(found, [loss(w, row[None]) for row in x], 1e-6)
    np.testing.assert_allclose(gradient, jax.grad(loss)(w, x), 1e-5)
