"""The ways out that refusals name are ways out."""

import jax
import jax.numpy as jnp
import pytest

import hlo_surgery as hs

W, X = jnp.cos(jnp.arange(9.0)).reshape(3, 3), jnp.sin(jnp.arange(24.0)).reshape(8, 3)
EXAMPLES, POSITIONS = jnp.arange(8) % 3 > 0, jnp.arange(24).reshape(8, 3) % 5 > 0


def losses(w, x):
    return jnp.tanh(x @ w) ** 2


def by_batch(w, x, mask):
    own = losses(w, x).mean(1) if mask.ndim == 1 else losses(w, x)
    return jnp.sum(mask * own) / jnp.sum(mask)


def of_examples(w, x, mask):
    return jnp.mean(mask * losses(w, x).mean(1))


def of_positions(w, x, mask):
    return jnp.mean((mask * losses(w, x)).sum(1) / mask.sum(1))


@pytest.mark.parametrize(("mask", "way_out"), [(EXAMPLES, of_examples), (POSITIONS, of_positions)])
def test_a_masked_mean_that_clipped_mean_takes(mask, way_out):
    asked = {"batch_argnums": (1, 2), "statistics": hs.clipped_mean(0.1)}
    with pytest.raises(hs.Refusal) as refusal:
        hs.grad(by_batch, **asked)(W, X, mask)
    assert "jnp.mean(mask * losses)" in refusal.value.help
    assert "jnp.mean((mask * losses).sum(1) / mask.sum(1))" in refusal.value.help
    found = hs.grad(way_out, **asked)(W, X, mask)[1]
    one = jax.vmap(lambda x, m: jax.grad(way_out)(W, x[None], m[None]))(X, mask)
    norms = jnp.linalg.norm(one.reshape(8, -1), axis=1)
    clipped = one * jnp.minimum(1, 0.1 / norms)[:, None, None]
    assert jnp.allclose(found, clipped.mean(0), rtol=1e-5, atol=1e-7)


def hardest(w, x):
    return jnp.sort(losses(w, x).mean(1))[4:].mean()


def weighted(w, x, weights):
    return jnp.mean(weights * losses(w, x).mean(1))


def test_ranks_go_in_as_weights():
    with pytest.raises(hs.Refusal) as refusal:
        hs.grad(hardest, batch_argnums=1, statistics=hs.second_moment())(W, X)
    assert refusal.value.op == "stablehlo.sort"
    assert refusal.value.help.startswith("rank examples before the call")
    weights = jnp.where(losses(W, X).mean(1).argsort().argsort() >= 4, 2.0, 0.0)
    f = hs.grad(weighted, batch_argnums=(1, 2), statistics=hs.second_moment())
    assert jnp.allclose(f(W, X, weights)[0], jax.grad(hardest)(W, X), atol=1e-6)


def test_mixed_examples_are_arguments():
    def mixup(w, x):
        return losses(w, 0.3 * x + 0.7 * x[::-1]).mean()

    with pytest.raises(hs.Refusal) as refusal:
        hs.grad(mixup, batch_argnums=1, statistics=hs.second_moment())(W, X)
    assert refusal.value.help.startswith("permute, choose or mix examples before the call")
    f = hs.grad(lambda w, x: losses(w, x).mean(), batch_argnums=1, statistics=hs.second_moment())
    assert jnp.allclose(f(W, 0.3 * X + 0.7 * X[::-1])[0], jax.grad(mixup)(W, X), atol=1e-6)


def test_pairs_are_said_to_lie_behind_one_another():
    def preferences(w, x):
        scores = jnp.tanh(x @ w).sum(1)
        return -jax.nn.log_sigmoid(scores[::2] - scores[1::2]).mean()

    with pytest.raises(hs.Refusal) as refusal:
        hs.grad(preferences, statistics=hs.second_moment())(W, X)
    assert "one behind the other, pass rows_per_example=" in refusal.value.help
    f = hs.grad(preferences, statistics=hs.second_moment(), rows_per_example=2)
    assert jnp.allclose(f(W, X)[0], jax.grad(preferences)(W, X), atol=1e-6)


class Model:
    """A model as Equinox has them: a function is among its leaves."""

    def __init__(self, w, activation):
        self.w, self.activation = w, activation


jax.tree_util.register_pytree_node(
    Model, lambda model: ((model.w, model.activation), None), lambda _, leaves: Model(*leaves)
)
