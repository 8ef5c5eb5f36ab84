"""optax.experimental's aggregators: a train step makes the same of statistics as they of `vmap`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
import hlo_surgery.optimizers as ho

optax = pytest.importorskip("optax")
aggregating = pytest.importorskip("optax.experimental").aggregating

KEYS = jax.random.split(jax.random.key(0), 4)
PARAMS = {"w1": jax.random.normal(KEYS[0], (3, 4)), "out": jax.random.normal(KEYS[1], (4,))}
BATCHES = [
    (3 * jax.random.normal(k, (5, 3)), jax.random.normal(k, (5,)))
    for k in jax.random.split(KEYS[2], 5)
]
MEAN = aggregating.average_per_element_updates
SPREAD = aggregating.get_per_element_mean_and_sum_sq_diff_grads
ADAM = optax.adam(0.05)


def one(params, x, y):
    return (jnp.tanh(x @ params["w1"]) @ params["out"] - y) ** 2


def loss(params, x, y):
    return jnp.mean(jax.vmap(one, (None, 0, 0))(params, x, y))


def of_each(function):
    return optax.stateless_with_tree_map(function)


def behind(preprocessor):
    return aggregating.process(preprocessor, MEAN(), ADAM)


AGGREGATORS = {
    "mean": lambda: optax.chain(MEAN(), ADAM),
    "mean in process": lambda: behind(optax.identity()),
    "mean, sequence of axes": lambda: aggregating.process(optax.identity(), MEAN((0,)), ADAM),
    "mean of microbatches": lambda: aggregating.process(
        optax.identity(), aggregating.average_incrementally_updates(0, 2), ADAM
    ),
    "one microbatch": lambda: aggregating.process(
        optax.identity(), aggregating.average_incrementally_updates(0, 1), ADAM
    ),
    "mean and variance": lambda: aggregating.add_mean_variance_to_opt(ADAM, 0.7),
    "in a chain": lambda: optax.chain(aggregating.add_mean_variance_to_opt(ADAM), optax.scale(0.5)),
    "clipped examples": lambda: behind(ho.clip_examples(0.5)),
    "clipped entries": lambda: behind(optax.clip(0.3)),
    "signs": lambda: behind(of_each(lambda g, _: jnp.sign(g))),
    "a function": lambda: behind(of_each(lambda g, _: g / (1 + jnp.abs(g)))),
}


def steps_of_optax(optimizer):
    params, state, each = PARAMS, optimizer.init(PARAMS), jax.vmap(jax.grad(one), (None, 0, 0))
    for x, y in BATCHES:
        updates, state = optimizer.update(each(params, x, y), state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def steps_of_ours(optimizer, **options):
    step = hs.train_step(loss, optimizer, batch_argnums=(1, 2), **options)
    params, state = jax.tree.map(jnp.copy, PARAMS), optimizer.init(PARAMS)
    for batch in BATCHES:
        params, state, _ = step(params, state, *batch)
    return params, state


@pytest.mark.first(2)
@pytest.mark.parametrize("name", AGGREGATORS)
def test_steps_and_states_are_those_of_optax_on_vmap(name):
    optimizer = AGGREGATORS[name]()
    wanted, found = steps_of_optax(optimizer), steps_of_ours(optimizer)
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert jnp.result_type(got) == jnp.result_type(want)
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-6)


def test_the_moments_are_read_by_optax():
    state = steps_of_ours(AGGREGATORS["mean and variance"]())[1]
    mean, variance = aggregating.get_unbiased_mean_and_variance_ema(state)
    assert jax.tree.structure(mean) == jax.tree.structure(PARAMS)
    assert all((leaf > 0).all() for leaf in jax.tree.leaves(variance))


def test_no_array_of_all_gradients_is_made():
    optimizer = AGGREGATORS["mean and variance"]()
    assert list(ho.required_statistics(optimizer, PARAMS)) == ["variance"]
    assert list(ho.required_statistics(AGGREGATORS["mean"](), PARAMS)) == []
    clipped = ho.required_statistics(AGGREGATORS["clipped examples"](), PARAMS)
    assert [s.name for s in clipped.values()] == ["clipped_mean(0.5)"]


def own_update(updates, state, params=None):
    return jax.tree.map(lambda g: jnp.median(g, 0), updates), state


def test_an_example_that_is_not_finite_counts_as_zero():
    rows = {"a": jnp.array([[3.0, 4.0], [jnp.nan, 0.0]]), "b": jnp.array([0.0, 1.0])}
    clipped, _ = ho.clip_examples(1.0).update(rows, optax.EmptyState())
    assert clipped["b"].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(clipped["a"], [[0.6, 0.8], [0, 0]], rtol=1e-6)


def test_padding_is_left_out_of_means_and_of_variances():
    """As of the real examples alone."""
    optimizer = AGGREGATORS["mean and variance"]()
    weighted = lambda p, x, y, real: jnp.sum(real * jax.vmap(one, (None, 0, 0))(p, x, y))  # noqa: E731
    step = hs.train_step(weighted, optimizer, (1, 2, 3), is_real=3, loss_reduction="sum")
    (x, y), real = BATCHES[0], jnp.array([1.0, 1, 0, 1, 0])
    found = step(jax.tree.map(jnp.copy, PARAMS), optimizer.init(PARAMS), x, y, real)[:2]
    each = jax.vmap(jax.grad(one), (None, 0, 0))(PARAMS, x[real > 0], y[real > 0])
    updates, state = optimizer.update(each, optimizer.init(PARAMS), PARAMS)
    wanted = optax.apply_updates(PARAMS, updates), state
    for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-6)


REFUSED = {
    "a median": (
        lambda: aggregating.Aggregator(optax.init_empty_state, own_update),
        "test_aggregators.own_update takes the examples' gradients",
    ),
    "in process": (
        lambda: aggregating.process(
            optax.identity(), aggregating.Aggregator(optax.init_empty_state, own_update), ADAM
        ),
        "own_update takes",
    ),
    "clipped together": (
        lambda: behind(optax.clip_by_global_norm(1.0)),
        "process behind clip_by_global_norm takes",
    ),
    "stateless": (
        lambda: behind(optax.stateless(lambda g, _: g)),
        "process behind stateless takes .*clip_examples",
    ),
    "variance of clipped": (
        lambda: aggregating.process(ho.clip_examples(1.0), SPREAD(), ADAM, aggregator_has_aux=True),
        "grads behind clip_examples takes .*hs.per_example",
    ),
    "behind others": (lambda: optax.chain(optax.clip(1.0), MEAN(), ADAM), "not the first in optax"),
    "microbatches": (
        lambda: aggregating.add_mean_variance_to_opt(ADAM, 0.7, accumulation_steps=2),
        "takes accumulation_steps=1.*strategy='loop'",
    ),
    "another axis": (lambda: optax.chain(MEAN(1), ADAM), "takes per_elt_axis=0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused_by_name(name):
    make, words = REFUSED[name]
    with pytest.raises(TypeError, match=words):
        hs.train_step(loss, make())


def stepped(optimizer):
    params = jax.tree.map(jnp.copy, PARAMS)
    return hs.train_step(loss, optimizer, (1, 2))(params, optimizer.init(params), *BATCHES[0])


def test_an_aggregator_of_ones_own_is_refused_by_its_updates():
    """They would be those of the mean gradient's first axis, and be added to all rows."""
    means = optax.stateless(lambda g, _: jax.tree.map(lambda x: jnp.mean(x, 0), g))
    optimizer = optax.chain(means, optax.sgd(0.1))
    with pytest.raises(TypeError, match="takes all examples' gradients"):
        stepped(optimizer)


def test_an_aggregator_inside_of_another_wrapper_is_refused_with_a_way_out():
    inside = aggregating.add_mean_variance_to_opt(optax.adam(0.1), 0.9)
    with pytest.raises(TypeError, match=r"as they are, or first in optax\.chain"):
        stepped(optax.masked(inside, True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_makes_its_own_mean_of_gradients_is_refused():
    optimizer = optax.contrib.dpsgd(0.1, 1.0, 1.0, seed=0)
    with pytest.raises(TypeError, match="private_gradient"):
        stepped(optimizer)


@pytest.mark.parametrize(
    "function", [lambda g, p: g * p, lambda g, _: g / jnp.sum(g)], ids=["parameters", "sums"]
)
def test_what_is_no_function_of_an_entry_is_refused(function):
    optimizer = behind(of_each(function))
    with pytest.raises(TypeError):
        stepped(optimizer)
