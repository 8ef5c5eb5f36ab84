"""What `hs.constant` marks is a constant of the batch, and what reaches marks alone is data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs
from hlo_surgery.passes.dataflow.held import held_values
from hlo_surgery.passes.ir import mlir
from tests.products import covering

STATISTICS = {"second_moment": hs.second_moment(), "norms": hs.norms()}


def problem():
    r = np.random.default_rng(0)
    params = {"v": r.normal(size=3), "w": r.normal(size=(3, 4))}
    return params, r.normal(size=(6, 5, 3)), r.normal(size=(6, 5)), r.integers(0, 4, (6, 5))


def log_probabilities(params, seen, actions):
    chosen = jax.nn.log_softmax(seen @ params["w"])
    return jnp.take_along_axis(chosen, actions[..., None], -1)[..., 0]


def discounted(differences):
    """Generalised advantages, [B, T], by a scan from the last step."""

    def step(carry, d):
        return (d + 0.9 * carry,) * 2

    return lax.scan(step, jnp.zeros(len(differences)), differences.T, reverse=True)[1].T


def advantages(params, seen, rewards):
    values = jnp.tanh(seen @ params["v"])
    return discounted(rewards - values), values


def of_statistics(params, seen, rewards, actions, mean, deviation):
    """One example's loss where the mean and deviation of all advantages are given."""
    found, values = advantages(params, seen, rewards)
    weights = lax.stop_gradient((found - mean) / deviation)
    policy = -weights * log_probabilities(params, seen, actions)
    return jnp.mean(policy + (values - rewards) ** 2)


def normalised(params, seen, rewards, actions):
    found, values = advantages(params, seen, rewards)
    weights = hs.constant((found - found.mean()) / found.std())
    policy = -weights * log_probabilities(params, seen, actions)
    return jnp.mean(policy + (values - rewards) ** 2)


def of_marked_statistics(params, seen, rewards, actions):
    """Only the mean and the deviation are marked, and no gradient goes by the rest either."""
    found, values = advantages(params, seen, rewards)
    mean, deviation = hs.constant((found.mean(), found.std()))
    weights = lax.stop_gradient(found - mean) / deviation
    policy = -weights * log_probabilities(params, seen, actions)
    return jnp.mean(policy + (values - rewards) ** 2)


def in_a_checkpointed_scan(params, seen, rewards, actions):
    """The same within a loop of one step, and computed again on the way back."""

    def step(total, _):
        return total + normalised(params, seen, rewards, actions), None

    return lax.scan(jax.checkpoint(step), 0.0, None, 1)[0]


def logged(params, seen, rewards, actions):
    """The mean is returned as well."""
    return normalised(params, seen, rewards, actions), advantages(params, seen, rewards)[0].mean()


@pytest.fixture(scope="module")
def each():
    """Each example's own gradient, by `jax.vmap`, in float64."""
    with jax.enable_x64(True):
        params, *batch = problem()
        found, _ = advantages(params, *batch[:2])
        given = found.mean(), found.std()

        def of_one(params, *example):
            return of_statistics(params, *(x[None] for x in example), *given)

        return jax.device_get(jax.vmap(jax.grad(of_one), (None, 0, 0, 0))(params, *batch))


LOSSES = [normalised, of_marked_statistics, in_a_checkpointed_scan, logged]


@pytest.mark.parametrize(("loss", "strategy"), covering(LOSSES, ["auto", "lift", "loop", "ghost"]))
def test_statistics_take_it_as_given(loss, strategy, each):
    asked = STATISTICS if strategy != "ghost" else {"norms": hs.norms()}
    how = {"batch_argnums": (1, 2, 3), "statistics": asked, "strategy": strategy}
    f = hs.grad(loss, has_aux=loss is logged, **how)
    with jax.enable_x64(True):
        _, found = f(*problem())
        assert any("sum of data" in str(reason) for reason in f.explain(*problem()).data)
    squares = {name: g**2 for name, g in each.items()}
    norms = np.sqrt(sum(s.reshape(len(s), -1).sum(1) for s in squares.values()))
    np.testing.assert_allclose(found["norms"], norms, rtol=1e-9)
    for name in squares if "second_moment" in found else ():
        np.testing.assert_allclose(found["second_moment"][name], squares[name].mean(0), rtol=1e-9)


def unmarked(params, seen, rewards, actions):
    found, values = advantages(params, seen, rewards)
    weights = lax.stop_gradient((found - found.mean()) / found.std())
    policy = -weights * log_probabilities(params, seen, actions)
    return jnp.mean(policy + (values - rewards) ** 2)


def also_used(params, seen, rewards, actions):
    """The mean reaches the loss beside the mark."""
    found, _ = advantages(params, seen, rewards)
    mean = found.mean()
    weights = hs.constant(found - mean)
    return jnp.mean(-weights * log_probabilities(params, seen, actions)) + mean**2


def beside_a_mark(params, seen, rewards, actions):
    """Another of the same kind is not marked."""
    return normalised(params, seen, rewards, actions) + unmarked(params, seen, rewards, actions)


def as_a_term(params, seen, rewards, actions):
    """What is marked is a term of the gradient, of which each example's share is not known."""
    total = hs.constant(jnp.sum(advantages(params, seen, rewards)[0]))
    own = log_probabilities(params, seen, actions)
    return jnp.mean(own) + total * jnp.sum(params["w"])


def of_another(params, seen, rewards, actions):
    """Each example meets another's advantages."""
    found, _ = advantages(params, seen, rewards)
    return jnp.mean(hs.constant(found[::-1]) * log_probabilities(params, seen, actions))


@pytest.mark.parametrize("loss", [unmarked, also_used, beside_a_mark, as_a_term, of_another])
def test_what_is_no_constant_of_all_is_refused(loss):
    with pytest.raises(hs.Refusal), jax.enable_x64(True):
        hs.grad(loss, batch_argnums=(1, 2, 3), statistics=STATISTICS)(*problem())


def test_a_refusal_says_how_to_mark():
    with pytest.raises(hs.Refusal, match=r"hs\.constant"):
        hs.grad(unmarked, batch_argnums=(1, 2, 3), statistics=STATISTICS)(*problem())


def of_groups(params, seen, rewards, actions):
    """Advantages are normalised over groups of examples: each meets a place of its own."""
    groups = advantages(params, seen, rewards)[0].reshape(3, 2, -1)
    weights = hs.constant((groups - groups.mean(1, keepdims=True)).reshape(6, -1))
    return jnp.mean(-weights * log_probabilities(params, seen, actions))


def test_data_of_groups_is_to_be_passed_as_an_argument():
    """That it is marked is no way out, and not named as one."""
    with pytest.raises(hs.Refusal) as refusal:
        hs.grad(of_groups, batch_argnums=(1, 2, 3), statistics=STATISTICS)(*problem())
    assert "one for each example as a batch argument" in refusal.value.help
    assert "hs.constant" not in refusal.value.help


def test_no_clip_bounds_what_all_decide():
    with pytest.raises(hs.Refusal, match="bounds each example's influence"):
        hs.grad(normalised, batch_argnums=(1, 2, 3), statistics=hs.clipped_mean(1.0))(*problem())


def test_it_is_what_it_marks_and_has_no_gradient():
    x = {"a": jnp.arange(3.0), "n": jnp.arange(2)}
    assert jax.tree.all(jax.tree.map(np.array_equal, hs.constant(x), x))
    assert float(jax.grad(lambda y: hs.constant(y) * y)(3.0)) == 3.0
    mapped = jax.vmap(lambda y: hs.constant(y) + 1)(jnp.arange(3.0))
    assert mapped.tolist() == [1.0, 2.0, 3.0]


MODULE = """
func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = stablehlo.tanh %x : tensor<4xf32>
  %1 = stablehlo.negate %0 : tensor<4xf32>
  %2 = stablehlo.cosine %1 : tensor<4xf32>
  %3 = stablehlo.sine %1 : tensor<4xf32>
  %4 = "stablehlo.optimization_barrier"(%2) {held_constant} : (tensor<4xf32>) -> tensor<4xf32>
  %5 = stablehlo.exponential %0 : tensor<4xf32>
  return %4, %5 : tensor<4xf32>, tensor<4xf32>
}
"""


def test_held_is_what_reaches_marks_alone():
    """Neither what is used elsewhere too, nor what is used by an op that nothing uses."""
    module = mlir.parse(MODULE)
    block = mlir.body(mlir.main_function(module))
    held = held_values(block)
    names = [op.name for op in mlir.operations(block)[:-1] if op.results[0] in held]
    assert names == ["stablehlo.cosine", "stablehlo.optimization_barrier"]
