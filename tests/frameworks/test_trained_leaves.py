"""What has a gradient, of pytrees that hold other things as well."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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


def test_an_argument_without_floats_is_refused_by_jax():
    with pytest.raises(TypeError, match="real- or complex-valued inputs"):
        hs.grad(lambda n, x: jnp.mean(x) * n, statistics=hs.norms())(jnp.arange(3), X)


def test_gradients_of_integers_are_returned_as_they_are():
    params = {"w": PARAMS["w"], "n": jnp.arange(2)}
    gradient = jax.grad(lambda p, x: float_loss(p["w"], x), allow_int=True)
    f = hs.rewrite(gradient, batch_argnums=1, statistics=hs.second_moment())
    found, squares = f(params, X)
    assert found["n"].dtype == jax.dtypes.float0
    assert np.shape(found["n"]) == (2,)
    assert squares["n"] is None
    assert_close(found["w"], jax.grad(float_loss)(params["w"], X))


def test_a_group_without_a_gradient_is_named():
    params = {"w": PARAMS["w"], "n": jnp.arange(2)}
    f = hs.grad(
        lambda p, x: float_loss(p["w"], x), statistics=hs.norms(per={"w": "all", "n": "none"})
    )
    with pytest.raises(ValueError, match=r"per of norms.* a group 'none': .* no gradient"):
        f(params, X)
