"""Refusals of losses word for word, and the ways out that they name, which are ways out."""

import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental import io_callback
from jax.experimental import pallas as pl

import hlo_surgery as hs
from tests.acceptance.test_contributions import EXPERTS, PARAMS, WIDTH, X, squares
from tests.acceptance.test_refusals import MIXING_HELP, SUMS_HELP
from tests.axes.traps.test_traps import GIVEN, PICKING, RANKING
from tests.equivalence.test_dumps import EFFECT_HELP


def experts_loss(p, x, gates):
    """gates [N, E]"""
    outputs = jnp.tanh(jnp.einsum("nd,edf->nef", x, p["experts"]))
    return squares((gates[..., None] * outputs).sum(1))


def routed(p, x):
    """Each token's probabilities, and its expert, one hot: [N, E] both."""
    probabilities = jax.nn.softmax(x @ p["router"])
    return probabilities, jax.nn.one_hot(jnp.argmax(probabilities, -1), EXPERTS)


def experts_with_capacity(p, x):
    probabilities, chosen = routed(p, x)
    place = jnp.cumsum(chosen, 0)  # refused here
    return experts_loss(p, x, probabilities * chosen * (place <= 2))


def experts_with_capacity_for_tokens(p, x):
    return experts_with_capacity(p, x.reshape(-1, WIDTH))


def experts_with_balanced_load(p, x):
    probabilities, chosen = routed(p, x)
    load = jnp.sum(chosen.mean(0) * probabilities.mean(0))  # refused here, summed here
    return experts_loss(p, x, probabilities * chosen) + 0.01 * load


def sorted_over_examples(p, x):
    h = jnp.sort(x @ p["w"], axis=0)  # refused here
    return squares(h + x)


def cumulated_over_examples(p, x):
    h = jnp.cumsum(x @ p["w"], axis=0)  # refused here
    return squares(h)


def mixed_in_reverse(p, x):
    x = 0.3 * x + 0.7 * x[::-1]  # refused here
    return squares(jnp.tanh(x @ p["w"]))


def penalised_gradient(p, x):
    def inner(p):
        return squares(jnp.tanh(x @ p["w"]))  # summed here

    slope = jax.grad(inner)(p)["w"]
    return inner(p) + 0.1 * jnp.sqrt(jnp.sum(slope**2))  # refused here


def ragged(p, x):
    h = jnp.tanh(x @ p["w"])  # refused here
    return squares(jax.ops.segment_sum(h, jnp.array([0, 0, 1, 1, 1, 2]), 3))  # summed here


def called_back(p, x):
    sines = jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)  # refused here
    return squares(x @ p["w"] * sines)


def read_and_written(p, x):
    sines = io_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)  # refused here
    return squares(x @ p["w"] * sines)


APART = (
    "each example meets others: the operands hold the examples along different or divided "
    "dimensions"
)
ALONG = "values are moved or combined along the example axis"
CALLS = (
    "refused: stablehlo.custom_call: the program calls its host back (by "
    "xla_ffi_python_cpu_callback)"
)


MOVING_HELP = f"  help:    {PICKING}{GIVEN}"
RANKING_HELP = f"  help:    {RANKING}{GIVEN}"


def mixing(op, why, output, way_out=MIXING_HELP):
    return f"{{refused}}: refused: stablehlo.{op}: {why}\n  output:  {output}\n{way_out}"


TEXTS = {
    experts_with_capacity: mixing("reduce_window", ALONG, "['experts'] (and 1 more)", MOVING_HELP),
    experts_with_balanced_load: mixing(
        "add",
        "a sum over the examples (stablehlo.reduce at {summed}) meets each example's own values",
        "['router']",
    ),
    sorted_over_examples: mixing("sort", ALONG, "['w']", RANKING_HELP),
    cumulated_over_examples: mixing("reduce_window", ALONG, "['w']", MOVING_HELP),
    mixed_in_reverse: mixing("add", APART, "['w']", MOVING_HELP),
    penalised_gradient: mixing(
        "multiply",
        "two sums over the examples (the first by stablehlo.dot_general at {summed}) are "
        "multiplied",
        "['w']",
        SUMS_HELP,
    ),
    ragged: mixing(
        "multiply",
        "a sum over the examples (stablehlo.scatter at {summed}) meets each example's own values",
        "['w']",
    ),
    **dict.fromkeys((called_back, read_and_written), f"{{refused}}: {CALLS}\n{EFFECT_HELP}"),
}


def marked(function, mark):
    """The line of this file, in the function, that holds the mark."""
    lines, first = inspect.getsourcelines(function)
    return next(
        (f"{__file__}:{first + i}" for i, line in enumerate(lines) if f"{mark} here" in line), ""
    )


@pytest.mark.parametrize(("loss", "text"), TEXTS.items(), ids=[loss.__name__ for loss in TEXTS])
def test_a_loss_is_refused_in_these_words(loss, text):
    with pytest.raises(hs.Refusal) as refused:
        hs.grad(loss, statistics=hs.second_moment())(PARAMS, X)
    assert str(refused.value) == text.format(
        refused=marked(loss, "refused"), summed=marked(loss, "summed")
    )


def test_capacity_over_the_tokens_of_all_examples():
    with pytest.raises(hs.Refusal) as refused:
        hs.grad(experts_with_capacity_for_tokens, statistics=hs.second_moment())(
            PARAMS, X.reshape(3, 2, WIDTH)
        )
    assert str(refused.value) == TEXTS[experts_with_capacity].format(
        refused=marked(experts_with_capacity, "refused")
    )


def of_one(w, row):
    return squares(jnp.tanh(row @ w)[None])


def of_rows(w, rows):
    return jnp.mean(jax.vmap(of_one, (None, 0))(w, rows))


PICKED = {
    "one by one": lambda w, x: sum(of_one(w, x[b]) for b in range(6)) / 6,
    "group by group": lambda w, x: sum(of_rows(w, x.reshape(2, 3, WIDTH)[g]) for g in range(2)) / 2,
}


@pytest.mark.parametrize("loss", PICKED.values(), ids=PICKED)
def test_examples_that_are_picked_are_told_apart(loss):
    squared = hs.grad(loss, statistics=hs.second_moment())(PARAMS["w"], X)[1]
    expected = hs.grad(of_rows, statistics=hs.second_moment())(PARAMS["w"], X)[1]
    np.testing.assert_allclose(squared, expected, rtol=1e-5, atol=1e-7)


def kept_if_finite(gradient):
    whole = jnp.isfinite(jnp.sum(gradient))
    return jax.lax.cond(whole, lambda g: g, jnp.zeros_like, gradient)


# What is done to a gradient once it is summed, and in which words that is refused.
GUARDS = {
    "by leaf": (lambda g: jnp.where(jnp.isfinite(g).all(), g, 0), "is tested for NaN"),
    "by a branch": (kept_if_finite, "the examples decide together which branch is taken"),
    "of each element": (jnp.nan_to_num, "is tested for NaN"),
    "by its norm": (lambda g: g * jax.lax.rsqrt(jnp.sum(g * g)), "are multiplied"),
}


@pytest.mark.parametrize(("guard", "why"), GUARDS.values(), ids=GUARDS)
def test_what_guards_a_summed_gradient_belongs_outside(guard, why):
    def guarded(w, x):
        return guard(jax.grad(of_rows)(w, x))

    asked = hs.rewrite(guarded, batch_argnums=1, statistics=hs.norms())
    with pytest.raises(hs.Refusal, match=why) as refused:
        asked(PARAMS["w"], X)
    assert refused.value.help.startswith("clip, guard, normalise or apply gradients outside")


def test_a_loss_that_guards_its_mean_is_told_to_take_it_unguarded():
    def ranked(w, x, reduce_fn=jnp.mean):
        labels = jnp.arange(WIDTH, dtype=float)
        return jnp.mean(optax.losses.ranking_softmax_loss(x @ w, labels, reduce_fn=reduce_fn))

    with pytest.raises(hs.Refusal, match="is tested for NaN") as refused:
        hs.grad(ranked, statistics=hs.norms())(PARAMS["w"], X)
    assert "reduce_fn=None" in refused.value.help
    way_out = partial(ranked, reduce_fn=None)
    assert hs.explain(hs.grad(way_out, statistics=hs.norms()), PARAMS["w"], X).outputs


def kept_by_a_mark(w, x):
    gradient = jax.grad(of_rows)(w, x)
    return jnp.where(hs.constant(jnp.isfinite(gradient).all()), gradient, 0)


def test_a_guard_beside_a_clip_is_told_to_stand_outside():
    options = {"statistics": hs.clipped_mean(1.0), "on_mixing": "contribution"}
    with pytest.raises(hs.Refusal, match="bounds each example's influence") as refused:
        hs.rewrite(kept_by_a_mark, batch_argnums=1, **options)(PARAMS["w"], X)
    assert "guards its gradients itself" in refused.value.help


def kernel(x_ref, y_ref):
    y_ref[...] = jnp.tanh(x_ref[...])


def test_a_kernel_that_is_interpreted_can_be_declared():
    block = pl.BlockSpec((1, WIDTH), lambda i: (i, 0))

    @jax.custom_vjp
    def by_kernel(x):
        like = jax.ShapeDtypeStruct(x.shape, x.dtype)
        run = pl.pallas_call(
            kernel, like, grid=len(x), in_specs=[block], out_specs=block, interpret=True
        )
        return run(x)

    by_kernel.defvjp(lambda x: (by_kernel(x), x), lambda x, d: (d * (1 - jnp.tanh(x) ** 2),))
    declared = hs.per_example_call(by_kernel)
    with pytest.raises(hs.Refusal, match="out of the batch") as refused:
        hs.grad(lambda w, x: squares(by_kernel(x @ w)), statistics=hs.norms())(PARAMS["w"], X)
    assert "hs.per_example_call(fn, in_axes, out_axes)" in refused.value.help
    found = hs.grad(lambda w, x: squares(declared(x @ w)), statistics=hs.norms())(PARAMS["w"], X)
    expected = hs.grad(of_rows, statistics=hs.norms())(PARAMS["w"], X)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected
    )


W, INPUTS = jnp.cos(jnp.arange(9.0)).reshape(3, 3), jnp.sin(jnp.arange(24.0)).reshape(8, 3)
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
        hs.grad(by_batch, **asked)(W, INPUTS, mask)
    assert "jnp.mean(mask * losses)" in refusal.value.help
    assert "jnp.mean((mask * losses).sum(1) / mask.sum(1))" in refusal.value.help
    found = hs.grad(way_out, **asked)(W, INPUTS, mask)[1]
    one = jax.vmap(lambda x, m: jax.grad(way_out)(W, x[None], m[None]))(INPUTS, mask)
    norms = jnp.linalg.norm(one.reshape(8, -1), axis=1)
    clipped = one * jnp.minimum(1, 0.1 / norms)[:, None, None]
    assert jnp.allclose(found, clipped.mean(0), rtol=1e-5, atol=1e-7)


def hardest(w, x):
    return jnp.sort(losses(w, x).mean(1))[4:].mean()


def weighted(w, x, weights):
    return jnp.mean(weights * losses(w, x).mean(1))


def test_ranks_go_in_as_weights():
    with pytest.raises(hs.Refusal) as refusal:
        hs.grad(hardest, batch_argnums=1, statistics=hs.second_moment())(W, INPUTS)
    assert refusal.value.op == "stablehlo.sort"
    assert refusal.value.help.startswith("rank examples before the call")
    weights = jnp.where(losses(W, INPUTS).mean(1).argsort().argsort() >= 4, 2.0, 0.0)
    f = hs.grad(weighted, batch_argnums=(1, 2), statistics=hs.second_moment())
    assert jnp.allclose(f(W, INPUTS, weights)[0], jax.grad(hardest)(W, INPUTS), atol=1e-6)


def test_pairs_are_said_to_lie_behind_one_another():
    def preferences(w, x):
        scores = jnp.tanh(x @ w).sum(1)
        return -jax.nn.log_sigmoid(scores[::2] - scores[1::2]).mean()

    with pytest.raises(hs.Refusal) as refusal:
        hs.grad(preferences, statistics=hs.second_moment())(W, INPUTS)
    assert "one behind the other, pass rows_per_example=" in refusal.value.help
    f = hs.grad(preferences, statistics=hs.second_moment(), rows_per_example=2)
    assert jnp.allclose(f(W, INPUTS)[0], jax.grad(preferences)(W, INPUTS), atol=1e-6)
