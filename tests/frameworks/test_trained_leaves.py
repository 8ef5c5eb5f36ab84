"""What has a gradient, of pytrees that hold other things as well."""

import jax
import jax.numpy as jnp

import hlo_surgery as hs
from tests.frameworks.closeness import assert_close

X = jnp.sin(jnp.arange(12.0)).reshape(4, 3)
PARAMS = {"w": jnp.arange(1.0, 4.0), "count": jnp.int32(2), "activation": jnp.tanh, "name": "relu"}


def loss(params, x):
    return jnp.mean(params["activation"](x @ params["w"]) ** 2 * params["count"])


def float_loss(w, x):
    return loss({**PARAMS, "w": w}, x)


def test_what_is_no_float_has_no_gradient_and_no_statistic():
    statistics = {"squares": hs.second_moment(), "each": hs.norms(per="parameter")}
    gradient, found = hs.grad(loss, statistics=statistics)(PARAMS, X)
    none = {"count": None, "activation": None, "name": None}
    wanted = jax.grad(float_loss)(PARAMS["w"], X)
    each = jnp.stack([jax.grad(float_loss)(PARAMS["w"], x[None]) for x in X])
    assert {key: gradient[key] for key in none} == none
    assert_close(gradient["w"], wanted)
    assert_close(found["squares"].pop("w"), jnp.mean(each**2, 0))
    assert_close(found["each"].pop("w"), jnp.linalg.norm(each, axis=1))
    assert found == {"squares": none, "each": none}


def test_several_arguments_and_an_aux():
    def with_aux(other, params, x):
        return loss(params, x) * other, params["name"] == "relu"

    f = hs.value_and_grad(
        with_aux, (1, 0), has_aux=True, batch_argnums=2, statistics=hs.per_example_losses()
    )
    ((value, aux), (of_params, of_other)), losses = f(2.0, PARAMS, X)
    assert aux
    assert_close(value, 2 * float_loss(PARAMS["w"], X))
    assert_close(of_params["w"], 2 * jax.grad(float_loss)(PARAMS["w"], X))
    assert_close(of_other, float_loss(PARAMS["w"], X))
    assert_close(jnp.mean(losses), value)
