"""Gradients that a loop adds up over microbatches: statistics in its steps, in no more memory.

The references are the gradients of one example at a time, in float64.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs
from tests.microbatches.microbatch_statistics import (
    FLAGS,
    LAYERS,
    NOISE,
    PARAMS,
    REWEIGHTING,
    SPREADS,
    STATISTICS,
    TOLERANCE,
    WEIGHTS,
    WIDTH,
    B,
    X,
    along,
    assert_right,
    draw,
    examples,
    expected,
    mean_of,
    one,
    recurrent,
    sums_of,
)
from tests.products import covering

STEPS = 3


def over(parts, each=one):
    """Gradients of the means of parts, added up, and their mean."""

    def gradient(p, x):
        step = jax.grad(lambda p, part: mean_of(p, part, each))
        return sums_of(p, lambda part: step(p, part), parts(x), lambda g: g / STEPS)

    return gradient


def runs(x):
    return x.reshape(STEPS, -1, WIDTH)


def cut_out(p, x):
    def step(i, total):
        part = lax.dynamic_slice_in_dim(x, i * (B // STEPS), B // STEPS)
        return jax.tree.map(lambda t, g: t + g / STEPS, total, jax.grad(mean_of)(p, part))

    return lax.fori_loop(0, STEPS, step, jax.tree.map(jnp.zeros_like, p))


def inside_the_loss(p, x):
    return jax.grad(lambda p: jnp.mean(lax.map(lambda part: mean_of(p, part), runs(x))))(p)


def one_by_one(p, x):
    return sums_of(p, lambda row: jax.grad(one)(p, row), x, lambda g: g / B)


CASES = {
    "runs": over(runs),
    "strides": over(lambda x: x.reshape(-1, STEPS, WIDTH).swapaxes(0, 1)),
    "recurrent": over(runs, recurrent),
    "cut out": cut_out,
    "inside the loss": inside_the_loss,
    "one by one": one_by_one,
}
MOMENTS = [pytest.param(name, marks=pytest.mark.slow) for name in ("squares", "variance")]
ASKED = {"measures": STATISTICS, "weights": REWEIGHTING, "spreads": SPREADS | NOISE}


@pytest.mark.parametrize("name", CASES)
def test_every_measure_of_every_form(name, steps_taken):
    assert_exact(name, "measures", "auto")
    assert len(steps_taken) == 1


@pytest.mark.parametrize(("name", "asked"), covering(list(CASES), ["weights", "spreads"]))
def test_weights_and_spreads_of_every_form(name, asked, steps_taken):
    assert_exact(name, asked, "auto")
    assert len(steps_taken) == 1


@pytest.mark.parametrize(("asked", "name"), covering(list(ASKED), ["runs", "one by one"]))
def test_every_statistic_by_a_loop_over_the_examples_of_a_step(asked, name):
    assert_exact(name, asked, "loop")


def assert_exact(name, asked, strategy):
    f = hs.rewrite(CASES[name], batch_argnums=1, statistics=ASKED[asked], strategy=strategy)
    gradient, found = f(PARAMS, X)
    own = examples(recurrent if name == "recurrent" else one)
    assert_right({"plain": gradient}, {"plain": jax.tree.map(lambda x: x.mean(0), own)})
    assert_right(found, expected(own))


def test_the_plan_counts_all_examples_and_all_steps():
    f = hs.rewrite(CASES["runs"], batch_argnums=1, statistics=hs.second_moment())
    plan, _ = hs.explain(f, PARAMS, X).outputs
    assert plan.lifted_bytes == B * 4 * WIDTH
    assert [site.trips for site in plan.sites] == [STEPS]


@pytest.mark.parametrize("name", ["runs", "strides", "one by one"])
def test_padding_counts_nowhere(name, steps_taken):
    f = hs.rewrite(CASES[name], batch_argnums=1, statistics=STATISTICS, is_real=FLAGS)
    own = jax.tree.map(lambda g: g * FLAGS.sum() / B, examples())
    assert_right(f(PARAMS, X)[1], expected(own, FLAGS))
    assert len(steps_taken) == 1


def test_a_sum_and_what_is_clipped_of_it(steps_taken):
    def gradient(p, x):
        step = jax.grad(lambda p, part: B / STEPS * mean_of(p, part))
        return sums_of(p, lambda part: step(p, part), runs(x))

    statistics = {"clipped": REWEIGHTING["clipped"], "squares": STATISTICS["squares"]}
    f = hs.rewrite(gradient, batch_argnums=1, statistics=statistics, loss_reduction="sum")
    assert_right(f(PARAMS, X)[1], expected(examples()))
    assert len(steps_taken) == 1


def weighted(p, x, weights, each=one):
    return jnp.sum(jax.vmap(each, (None, 0))(p, x) * weights)


def by_weights(p, x, weights):
    """The weights' sum is known only when all microbatches have been seen."""
    zeros = jax.tree.map(jnp.zeros_like, p), jnp.zeros(())

    def step(state, part):
        loss, g = jax.value_and_grad(weighted)(p, *part)
        total, count = state
        return (jax.tree.map(jnp.add, total, g), count + part[1].sum()), loss

    (total, count), losses = lax.scan(step, zeros, (runs(x), weights.reshape(STEPS, -1)))
    return jax.tree.map(lambda g: g / count, total), losses.sum() / count


@pytest.mark.parametrize("name", ["squares", "norms", "cosines", "products"])
def test_weights_are_added_up_before(name, steps_taken):
    f = hs.rewrite(
        by_weights,
        batch_argnums=(1, 2),
        statistics={name: {**STATISTICS, **REWEIGHTING}[name]},
        gradients=lambda outputs: outputs[0],
    )
    own = jax.tree.map(
        lambda g: g * (WEIGHTS * B / WEIGHTS.sum()).reshape(-1, *[1] * (g.ndim - 1)), examples()
    )
    assert_right(f(PARAMS, X, WEIGHTS)[1], expected(own))
    assert len(steps_taken) == 1


@pytest.mark.parametrize("in_steps", [True, False])
def test_a_parameter_without_use_is_no_term(in_steps, steps_taken):
    """Zero, though what it is divided by is made of the whole batch."""

    def at_once(p, x, weights):
        return jax.tree.map(lambda g: g / weights.sum(), jax.grad(weighted)(p, x, weights))

    f = hs.rewrite(
        (lambda p, x, weights: by_weights(p, x, weights)[0]) if in_steps else at_once,
        batch_argnums=(1, 2),
        statistics={name: STATISTICS[name] for name in ("squares", "own", "norms")},
    )
    own = jax.tree.map(
        lambda g: g * (WEIGHTS * B / WEIGHTS.sum()).reshape(-1, *[1] * (g.ndim - 1)), examples()
    )
    found = f({**PARAMS, "unused": np.ones(3, np.float32)}, X, WEIGHTS)[1]
    for name in ("squares", "own"):
        assert not np.any(found[name].pop("unused"))
    assert_right(found, expected(own))
    assert len(steps_taken) == in_steps


def test_losses_of_all_examples(steps_taken):
    def losses(p, x):
        zeros = jax.tree.map(jnp.zeros_like, p), jnp.zeros(())

        def step(state, part):
            loss, g = jax.value_and_grad(mean_of)(p, part)
            return jax.tree.map(jnp.add, state, (g, loss)), None

        (total, loss), _ = lax.scan(step, zeros, runs(x))
        return loss / STEPS, jax.tree.map(lambda g: g / STEPS, total)

    statistics = {"losses": hs.per_example_losses(), "norms": hs.norms()}
    f = hs.rewrite(losses, batch_argnums=1, statistics=statistics, gradients=lambda o: o[1])
    found = f(PARAMS, X)[1]
    assert_right({"norms": found["norms"]}, expected(examples()))
    each = [one(PARAMS, row) for row in X]
    np.testing.assert_allclose(found["losses"], each, rtol=TOLERANCE)
    assert len(steps_taken) == 1


def decayed(p, part):
    return mean_of(p, part) + 0.1 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p))


def added_up(step, behind=lambda g, p: g):
    def gradient(p, x):
        total = sums_of(p, lambda part: step(p, part), runs(x), lambda g: g / STEPS)
        return jax.tree.map(behind, total, p)

    return gradient


def from_the_parameters(p, x):
    """The sum does not start at zero."""
    step = jax.grad(mean_of)

    def add(total, part):
        return jax.tree.map(lambda t, g: t + g / STEPS, total, step(p, part)), None

    return lax.scan(add, jax.tree.map(lambda w: 0.3 * w, p), runs(x))[0]


def twice(p, x):
    """Every example is in two steps."""
    return added_up(jax.grad(mean_of))(p, jnp.concatenate([x, x]).reshape(STEPS, -1, WIDTH))


def with_momentum(p, x):
    """What a step adds rests on the examples of all steps before."""

    def step(state, part):
        momentum, total = state
        g = jax.grad(mean_of)(p, part)
        momentum = jax.tree.map(lambda m, g: m / 2 + g / STEPS, momentum, g)
        return (momentum, jax.tree.map(jnp.add, total, momentum)), None

    zeros = jax.tree.map(jnp.zeros_like, p)
    return lax.scan(step, (zeros, zeros), runs(x))[0][1]


def again_by(orders):
    """The examples of a step, and others, or the same in an order that differs by step."""

    def gradient(p, x):
        def loss(p, i):
            again = mean_of(p, x[jnp.array(orders)[i]])
            return (mean_of(p, lax.dynamic_slice_in_dim(x, 2 * i, 2)) + again) / 2

        return sums_of(p, lambda i: jax.grad(loss)(p, i), jnp.arange(STEPS), lambda g: g / STEPS)

    return gradient


def one_by_one_decayed(p, x):
    """A constant that is added to what a single example owns."""

    def decayed_one(p, row):
        return one(p, row) + 0.1 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p))

    return sums_of(p, lambda row: jax.grad(decayed_one)(p, row), x, lambda g: g / B)


def added_beside(p, x):
    """A constant that a step adds to the sum by itself."""
    step = jax.grad(mean_of)

    def add(total, part):
        grown = jax.tree.map(lambda t, g: t + g / STEPS, total, step(p, part))
        return jax.tree.map(lambda t, w: t + 0.1 * w, grown, p), None

    return lax.scan(add, jax.tree.map(jnp.zeros_like, p), runs(x))[0]


def penalised(p, part):
    """A scan over layers that adds a penalty for each."""

    def layer(state, w):
        h, penalty = state
        return (jnp.tanh(h @ w), penalty + 0.1 * jnp.sum(w**2)), None

    (h, penalty), _ = lax.scan(layer, (part, jnp.zeros(())), p["w"])
    return jnp.mean(jnp.sum((h * p["v"]) ** 2, -1)) + penalty


def from_the_parameters_inside(p, x):
    """A loop in each step, of which the sum starts at the parameters and is halved each time."""

    def step(part):
        g = jax.grad(mean_of)(p, part)
        start = jax.tree.map(lambda w: 0.2 * w, p)

        def halved(_, total):
            return jax.tree.map(lambda t, g: t / 2 + g, total, g)

        return lax.fori_loop(0, 2, halved, start)

    return sums_of(p, step, runs(x), lambda g: g / STEPS)


def head_behind(p, x):
    """The layers of microbatches, and what comes behind of the whole batch."""

    def layers(p, part):
        return lax.scan(lambda h, w: (jnp.tanh(h @ w), None), part, p["w"])[0]

    def loss(p):
        h = lax.map(lambda part: layers(p, part), runs(x)).reshape(B, WIDTH)
        return jnp.mean(jnp.sum((h * p["v"]) ** 2, -1))

    return jax.grad(loss)(p)


def whole_batch_behind(p, x):
    return jax.tree.map(jnp.add, over(runs)(p, x), jax.grad(mean_of)(p, x))


def whole_batch_before(p, x):
    def loss(p):
        return jnp.mean(lax.map(lambda part: mean_of(p, part), runs(x))) + mean_of(p, x)

    return jax.grad(loss)(p)


def flat_mean(p, x):
    return jnp.mean(jnp.tanh(x @ p["v"])) + jnp.mean(jnp.sum(x @ p["w"].sum(0), -1))


def whole_batch_in_each_step(p, x):
    """What each step adds is its own examples' and, once more, all of them."""
    whole = jax.grad(flat_mean)(p, x)
    step = jax.grad(flat_mean)
    return sums_of(p, lambda part: jax.tree.map(jnp.add, step(p, part), whole), runs(x))


EVEN = np.ones(B)
LAYERS_ALONE = {"w": 0.2, "v": 0.0}
OTHERS = {
    "a head behind": (head_behind, EVEN, 0.0),
    "the whole batch behind": (whole_batch_behind, EVEN * 2, 0.0),
    "the whole batch before": (whole_batch_before, EVEN * 2, 0.0),
    "decay in a scan": (added_up(jax.grad(penalised)), EVEN, LAYERS_ALONE),
    "inside from the parameters": (from_the_parameters_inside, EVEN * 1.5, 0.05),
    "decay in each step": (added_up(jax.grad(decayed)), EVEN, 0.2),
    "decay of each example": (one_by_one_decayed, EVEN, 0.2),
    "decay beside": (added_beside, EVEN, 0.3),
    "decay behind": (added_up(jax.grad(mean_of), lambda g, p: g + 0.2 * p), EVEN, 0.2),
    "from the parameters": (from_the_parameters, EVEN, 0.3),
    "momentum": (with_momentum, np.repeat([1.75, 1.5, 1.0], 2), 0.0),
}


@pytest.mark.parametrize(("gradient", "scale", "decay"), OTHERS.values(), ids=OTHERS.keys())
def test_what_a_step_does_not_know_is_left_to_lifting(gradient, scale, decay, steps_taken):
    statistics = {"squares": STATISTICS["squares"], "clipped": REWEIGHTING["clipped"]}
    found = hs.rewrite(gradient, batch_argnums=1, statistics=statistics)(PARAMS, X)[1]
    decays = decay if isinstance(decay, dict) else dict.fromkeys(PARAMS, decay)
    own = jax.tree.map(lambda g, w, d: g * along(scale, g) + d * w, examples(), PARAMS, decays)
    assert_right(found, expected(own))
    assert not steps_taken


def test_the_whole_batch_in_each_step_is_left_to_lifting(steps_taken):
    statistics = {"squares": STATISTICS["squares"], "clipped": REWEIGHTING["clipped"]}
    f = hs.rewrite(whole_batch_in_each_step, batch_argnums=1, statistics=statistics)
    own = examples(lambda p, row: 2 * STEPS * flat_mean(p, row[None]))
    assert_right(f(PARAMS, X)[1], expected(own))
    assert not steps_taken


def from_an_example(p, x):
    """The sum starts at what the first example has."""
    step = jax.grad(mean_of)

    def add(total, part):
        return jax.tree.map(lambda t, g: t + g / STEPS, total, step(p, part)), None

    start = jax.tree.map(lambda w: jnp.full(w.shape, x[0].sum() / B), p)
    return lax.scan(add, start, runs(x))[0]


MOVED = {
    "permuted": over(lambda x: runs(x[jnp.array([4, 1, 0, 5, 3, 2])])),
    "backwards": over(lambda x: runs(x)[::-1]),
    "twice": twice,
    "some twice and some never": over(lambda x: runs(x[jnp.array([0, 1, 0, 1, 2, 3])])),
    "in another order": again_by([[0, 1], [3, 2], [4, 5]]),
    "with the next step's": again_by([[2, 3], [4, 5], [0, 1]]),
    "from an example": from_an_example,
}


@pytest.mark.parametrize("gradient", MOVED.values(), ids=MOVED)
def test_examples_that_are_moved_are_refused(gradient):
    with pytest.raises(hs.Refusal) as refused:
        hs.rewrite(gradient, batch_argnums=1, statistics=hs.norms())(PARAMS, X)
    assert "/tests/microbatches/" in refused.value.where
    assert refused.value.help


def beside_all(p, x):
    """A term of the whole batch, without a loop."""
    beside = jax.grad(lambda p: jnp.mean(jnp.sum(x * p["v"], -1)))(p)
    return jax.tree.map(jnp.add, over(runs)(p, x), beside)


def behind_all(p, x):
    """The same, computed when the loop is done."""
    total = over(runs)(p, x)
    rows = jax.grad(lambda p: jnp.mean(jnp.sum(x * p["v"], -1)))(p)
    return jax.tree.map(jnp.add, total, rows)


BESIDE = {
    "beside all": (beside_all, {"w": np.zeros(B), "v": X}),
    "behind all": (behind_all, {"w": np.zeros(B), "v": X}),
}


@pytest.mark.parametrize(("gradient", "beside"), BESIDE.values(), ids=BESIDE.keys())
def test_examples_outside_of_the_steps_are_left_to_lifting(gradient, beside, steps_taken):
    statistics = {"squares": STATISTICS["squares"], "clipped": REWEIGHTING["clipped"]}
    found = hs.rewrite(gradient, batch_argnums=1, statistics=statistics)(PARAMS, X)[1]
    own = jax.tree.map(lambda g, b: g + (b if b.ndim > 1 else along(b, g)), examples(), beside)
    assert_right(found, expected(own))
    assert not steps_taken


def test_a_sum_that_scales_itself_is_known_to_no_step(steps_taken):
    def clipped(p, x):
        total = over(runs)(p, x)
        size = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(total)))
        return jax.tree.map(lambda g: g * jnp.minimum(1, 0.1 / size), total)

    f = hs.rewrite(
        clipped, batch_argnums=1, statistics=STATISTICS["squares"], on_mixing="contribution"
    )
    own = examples()
    size = np.sqrt(sum(np.sum(g.mean(0) ** 2) for g in jax.tree.leaves(own)))
    scaled = jax.tree.map(lambda g: g * min(1, 0.1 / size), own)
    assert_right({"squares": f(PARAMS, X)[1]}, expected(scaled))
    assert not steps_taken


@pytest.mark.parametrize("name", ["squares", "cosines", "norms", "own"])
def test_narrow_layers_that_are_added_up_in_float32(name, steps_taken):
    def narrow(p, part):
        return mean_of(jax.tree.map(lambda w: w.astype(jnp.bfloat16), p), part)

    def gradient(p, x):
        grown = sums_of(p, lambda part: jax.grad(narrow)(p, part), runs(x.astype(jnp.bfloat16)))
        return jax.tree.map(lambda g: g / STEPS, grown)

    f = hs.rewrite(gradient, batch_argnums=1, statistics={name: STATISTICS[name]})
    wanted = jax.tree.leaves(expected(examples())[name])
    for actual, value in zip(jax.tree.leaves(f(PARAMS, X)[1]), wanted, strict=True):
        assert actual.dtype == jnp.float32
        # A few roundings to eight bits on the way.
        np.testing.assert_allclose(actual, value, rtol=0.05, atol=0.05 * np.abs(value).max())
    assert len(steps_taken) == 1


@pytest.mark.parametrize(("steps", "inside"), [(256, 1), (257, 1)])
def test_a_number_of_steps_that_the_gradients_type_does_not_hold(steps, inside, steps_taken):
    x = jnp.asarray(draw(4, 2 * steps, WIDTH), jnp.bfloat16)
    w = jnp.ones(WIDTH, jnp.bfloat16)

    def gradient(w, x):
        step = jax.grad(lambda w, part: jnp.mean(part @ w))
        return sums_of(w, lambda part: step(w, part), x.reshape(steps, 2, WIDTH))

    norms = hs.rewrite(gradient, batch_argnums=1, statistics=hs.norms())(w, x)[1]
    own = steps * np.linalg.norm(np.asarray(x, np.float32), axis=1)
    np.testing.assert_allclose(norms, own, rtol=2 * float(jnp.finfo(jnp.bfloat16).eps))
    assert len(steps_taken) == inside


def test_spreads_of_real_examples_are_left_to_lifting(steps_taken):
    f = hs.rewrite(CASES["runs"], batch_argnums=1, statistics=SPREADS, is_real=FLAGS)
    own = jax.tree.map(lambda g: g * FLAGS.sum() / B, examples())
    assert_right(f(PARAMS, X)[1], expected(own, FLAGS))
    assert not steps_taken


@pytest.mark.parametrize("factor", [1, 1e-3j])
def test_spreads_about_a_mean_far_off(factor, steps_taken):
    """A hundred thousand times as far off as the examples are apart, in single precision."""
    rows = (1 + 1e-5 * draw(5, B, WIDTH)).astype(np.float32)

    def loss(w, x):
        return jnp.mean(jnp.real(x @ (factor * w)))

    def gradient(w, x):
        step = jax.grad(loss)
        return sums_of(w, lambda part: step(w, part), runs(x))

    w = np.ones(WIDTH, np.complex64 if factor != 1 else np.float32)
    f = hs.rewrite(gradient, batch_argnums=1, statistics=hs.variance(), loss_reduction="sum")
    found = f(w, rows)[1]
    # The sum over the steps of means over two examples: twice less than that of all.
    want = np.var(rows.astype(np.float64), 0, ddof=1) * abs(factor) ** 2 * (STEPS / B) ** 2
    np.testing.assert_allclose(found, want, rtol=2e-2)
    assert len(steps_taken) == 1


@pytest.mark.parametrize("name", CASES)
def test_products_of_all_pairs_are_left_to_lifting(name, steps_taken):
    asked = {"gram": hs.gram(), "top": hs.top_directions(2)}
    found = hs.rewrite(CASES[name], batch_argnums=1, statistics=asked)(PARAMS, X)[1]
    own = examples(recurrent if name == "recurrent" else one)
    rows = np.concatenate([g.reshape(B, -1) for g in jax.tree.leaves(own)], 1)
    values, directions = found["top"]
    flat = np.concatenate([d.reshape(2, -1) for d in jax.tree.leaves(directions)], 1)
    left, singular, right = np.linalg.svd(rows, full_matrices=False)
    signs = np.sign(left[np.abs(left).argmax(0), range(B)])
    wanted = {"gram": rows @ rows.T, "values": singular[:2], "top": (signs * right.T).T[:2]}
    assert_right({"gram": found["gram"], "values": values, "top": flat}, wanted)
    assert not steps_taken


def temporaries(f, *args):
    compiled = jax.jit(f).lower(*args).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("name", ["norms", "clipped", *MOMENTS])
def test_temporaries_do_not_grow_with_the_number_of_microbatches(name):
    width, statistic = 64, {**STATISTICS, **REWEIGHTING, **SPREADS}[name]
    p = {"w": draw(0, LAYERS, width, width), "v": draw(1, width)}

    def taken(steps):
        def gradient(p, x):
            step = jax.grad(mean_of)
            parts = x.reshape(steps, 2, width)
            return sums_of(p, lambda part: step(p, part), parts, lambda g: g / steps)

        f = hs.rewrite(gradient, batch_argnums=1, statistics=statistic)
        return temporaries(f, p, draw(3, 2 * steps, width))

    rows = 2 * 12 * 4 * 8  # of float32: norms and weights of 12 more examples, some copies of them
    assert taken(8) <= taken(2) + rows


@pytest.mark.parametrize("strategy", ["lift", "loop"])
def test_a_step_contracts_its_gradient_once(strategy):
    """Where it makes those of its examples, their mean is what is added up."""
    f = hs.rewrite(over(runs), batch_argnums=1, statistics=hs.mean_of(jnp.cos), strategy=strategy)
    kept = hs.rewrite(
        over(runs),
        batch_argnums=1,
        statistics=hs.mean_of(jnp.cos),
        strategy=strategy,
        reuse_gradient=False,
    )

    def contractions(g):
        text = jax.jit(g).lower(PARAMS, X).compile().as_text()
        return len(re.findall(r"= \S+ dot\(", text))

    assert contractions(f) < contractions(kept)
    gradient, _ = f(PARAMS, X)
    for got, want in zip(
        jax.tree.leaves(gradient), jax.tree.leaves(kept(PARAMS, X)[0]), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE * np.abs(want).max())
