"""Models of Flax and Haiku, and pytrees that hold other things than trained leaves."""

import jax
import jax.numpy as jnp
import pytest

import hlo_surgery as hs
from tests.frameworks.closeness import assert_close

nnx = pytest.importorskip("flax.nnx")

X = jnp.sin(jnp.arange(40.0)).reshape(8, 5)
Y = jnp.cos(jnp.arange(40.0)).reshape(8, 5)
BATCH = (1, 2)


class Tied(nnx.Module):
    """One matrix is used twice, by two names."""

    def __init__(self, rngs):
        self.first = nnx.Param(jax.random.normal(rngs.params(), (5, 5)))
        self.second = self.first

    def __call__(self, x):
        return jnp.tanh(x @ self.first[...]) @ self.second[...].T


class Counting(nnx.Module):
    """A layer with dropout that counts its calls."""

    def __init__(self, rngs):
        self.layer = nnx.Linear(5, 5, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, x):
        self.calls[...] += 1
        return self.dropout(self.layer(x))


def loss(model, x, y):
    return jnp.mean((model(x) - y) ** 2)


def of_rewrite(**options):
    return hs.rewrite(nnx.grad(loss), batch_argnums=BATCH, **options)


def of_grad(**options):
    return hs.grad(loss, batch_argnums=BATCH, **options)


def each_gradient(make):
    """One example after another, each by a model of its own."""
    return [nnx.grad(loss)(make(), X[b : b + 1], Y[b : b + 1]) for b in range(len(X))]


MAKERS = pytest.mark.parametrize("make", [of_rewrite, of_grad])


@MAKERS
def test_a_tied_variable_has_one_gradient(make):
    model = Tied(nnx.Rngs(0))
    gradient, squares = make(statistics=hs.second_moment())(model, X, Y)
    wanted = nnx.grad(loss)(model, X, Y)
    assert jax.tree.structure(gradient) == jax.tree.structure(wanted)
    assert_close(gradient, wanted)
    each = each_gradient(lambda: Tied(nnx.Rngs(0)))
    assert_close(squares, jax.tree.map(lambda *g: jnp.mean(jnp.stack(g) ** 2, 0), *each))


def test_batch_norm_in_training_is_refused_and_running_averages_are_taken():
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(nnx.Linear(5, 5, rngs=rngs), nnx.BatchNorm(5, rngs=rngs))
    with pytest.raises(hs.Refusal, match="GroupNorm") as refusal:
        of_grad(statistics=hs.norms())(model, X, Y)
    assert refusal.value.library.startswith("flax/nnx/nn/normalization.py:")
    assert refusal.value.where.startswith(f"{__file__}:")
    model.eval()
    gradient, _ = of_grad(statistics=hs.norms())(model, X, Y)
    assert_close(gradient, nnx.grad(loss)(model, X, Y))


def test_a_train_step_updates_the_model_itself():
    optax = pytest.importorskip("optax")
    model, plain = Counting(nnx.Rngs(0)), Counting(nnx.Rngs(0))
    optimizer = optax.sgd(0.1)
    step = hs.train_step(loss, optimizer, batch_argnums=BATCH, statistics={"n": hs.norms()})
    state = optimizer.init(nnx.state(model, nnx.Param))
    for count in (1, 2):
        gradient = nnx.grad(loss)(plain, X, Y)
        nnx.update(
            plain, jax.tree.map(lambda p, g: p - 0.1 * g, nnx.state(plain, nnx.Param), gradient)
        )
        returned, state, metrics = step(model, state, X, Y)
        assert returned is model
        assert int(model.calls[...]) == count
    assert metrics["n"].shape == (8,)
    assert_close(*(nnx.state(m, nnx.Param) for m in (model, plain)))


hk = pytest.importorskip("haiku")

Y_OF_MODELS = jnp.cos(jnp.arange(24.0)).reshape(8, 3)


def test_state_and_keys_are_arguments_and_an_aux():
    def network(x):
        count = hk.get_state("count", [], init=jnp.zeros)
        hk.set_state("count", count + 1)
        return hk.Linear(3)(hk.dropout(hk.next_rng_key(), 0.5, x))

    model = hk.transform_with_state(network)
    params, state = model.init(jax.random.key(0), X)

    def loss(params, state, key, x, y):
        out, state = model.apply(params, state, key, x)
        return jnp.mean((out - y) ** 2), state

    f = hs.value_and_grad(loss, has_aux=True, batch_argnums=(3, 4), statistics=hs.norms())
    plain = jax.value_and_grad(loss, has_aux=True)
    arguments = params, state, jax.random.key(1), X, Y_OF_MODELS
    result, norms = f(*arguments)
    assert_close(result, plain(*arguments))
    assert norms.shape == (8,)
