"""Traps: each is refused, and names its line, or is exact by numbers. The tables are beside."""

import re
import warnings

import jax
import numpy as np
import pytest

import hlo_surgery as hs
from tests.axes.traps import (  # noqa: F401
    of_all,
    of_choices,
    of_constants,
    of_data,
    of_loops,
    of_places,
    of_shapes,
    of_steps,
    of_sums,
)
from tests.axes.traps.traps import EXACT, MIXED, TRAPS, drawn, expected, second_difference

REFUSED = {name: trap for name, trap in TRAPS.items() if trap.verdict != EXACT}
TAKEN = {name: trap for name, trap in TRAPS.items() if trap.verdict == EXACT}


def asked(trap):
    return hs.grad(trap.loss, statistics=hs.per_example(), **trap.options)


@pytest.mark.parametrize("trap", REFUSED.values(), ids=REFUSED)
def test_a_trap_is_refused_at_its_line(trap):
    with pytest.raises(hs.Refusal) as refused:
        asked(trap)(trap.weights(), drawn(trap.x, 0))
    assert refused.value.where in (trap.lines() if trap.has_line else {"module"})
    assert refused.value.why
    assert refused.value.help


@pytest.mark.parametrize("trap", REFUSED.values(), ids=REFUSED)
def test_a_trap_mixes_as_it_says(trap):
    difference = second_difference(trap)
    assert np.isfinite(difference)
    assert (difference > 1e-6) == (trap.verdict == MIXED)


@pytest.mark.parametrize("trap", TAKEN.values(), ids=TAKEN)
def test_what_only_looks_like_a_trap_is_exact(trap):
    w, x = trap.weights(), drawn(trap.x, 0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", hs.BatchConstantWarning)
        gradient, found = asked(trap)(w, x)
    lines = [str(each.message).split(": ")[0] for each in said]
    assert bool(lines) == trap.holds_data
    assert trap.lines() >= set(lines)
    own = expected(trap)
    scale = 1 if trap.options.get("loss_reduction") == "sum" else trap.size
    total = jax.tree.map(lambda g: g.sum(0) / scale, own)
    for name, one, other in (("per example", found, own), ("gradient", gradient, total)):
        for mine, its in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            close = {"rtol": trap.rounding, "atol": trap.rounding, "err_msg": name}
            np.testing.assert_allclose(np.asarray(mine, np.float32), its, **close)


GIVEN = (
    "mark what the loss takes as given with hs.constant, in place of stop_gradient; "
    'or pass on_mixing="contribution" to treat such values as constants'
)
MIXING = (
    "make every example's gradient its own (running statistics, GroupNorm, a per-example loss); "
    f"{GIVEN}"
)
ROWS = (
    "of tokens sorted by expert, graphs and other rows that indices tell apart, pass segments=... "
    "(docs/guides/segments.md); else "
)
PARTS = (
    "let a loop over parts of the batch take each of them once, and say by is_real=... which "
    "examples count; "
)
PICKING = (
    "permute, choose or mix examples before the call; of examples of several rows, which lie one "
    "behind the other, pass rows_per_example=..., and keep an index within its example's rows by "
    f"jnp.clip(i, 0, rows - 1); {ROWS}"
)
BLOCKS = (
    "if this is a kernel, which JAX interprets here, say that it takes the examples one by one, by "
    "hs.per_example_call(fn, in_axes, out_axes) around it; "
)
RANKING = (
    "rank examples before the call, and pass what comes of it, such as a weight for each, as a "
    f"batch argument; {ROWS}"
)
SUMS = (
    "clip, guard, normalise or apply gradients outside, once the function has returned them, or "
    "have them by hs.grad within it; of a loss, take the mean itself, and what is made of it, as "
    "its root, outside; else "
)
NAN = (
    "clip, guard, normalise or apply gradients outside, once the function has returned them, or "
    "have them by hs.grad within it; of a loss that guards its mean, take each example's loss and "
    "their mean instead (of optax's ranking losses, with reduce_fn=None); or pass "
    'on_mixing="contribution" to treat such values as constants'
)
STEPS = (
    "call hs.grad, or the rewritten function, within the step, and return its statistics from "
    "there: they are those of the step's examples, at the step's parameters"
)
DATA = "compute what is made of the whole batch before the call, and pass it: one number for all"
TERMS = (
    "compute the constant before, and pass it as an argument of its own, as what is known to all "
    "examples; or ask for the statistics of other parameters"
)
DECIDED = (
    "let each example decide for itself: take them one at a time, with jax.lax.map in place of "
    'jax.vmap; or pass on_mixing="contribution" to treat such values as constants'
)
APART = "each example meets others: the operands hold the examples along different or divided "
ONE_BY_ONE = (
    "go over examples or groups of them with jax.vmap or jax.lax.map, and not with a Python loop; "
    "pass what differs from one to another as a batch argument"
)
CALL = (
    "if it takes the examples one by one, say so: hs.per_example_call(fn, in_axes, out_axes) "
    "around the function that calls it, and around its backward pass; of a dumped module, "
    "custom_calls=... with the call's name"
)
TERM = "a constant made of the whole batch is a term of the gradient, of which no example's share "
REARRANGED = "data of the whole batch, rearranged over the examples, meets each example's own "
MOVED = "values are moved or combined along the example axis"
PICKED = "examples are taken out of the batch, or in another order, and meet others"
A_SUM = "a sum over the examples ({}) is "
# Of each way to be refused one trap: the op, why, and the help, or how it begins.
WORDS = {
    "rolled": ("pad", MOVED, PICKING + GIVEN),
    "rolled_by_as_much_as_data_says": ("dynamic_slice", APART + "dimensions", PICKING + GIVEN),
    "mixed_up_with_the_one_before": ("concatenate", APART + "dimensions", MIXING),
    "reversed_order": ("reverse", PICKED, PICKING + GIVEN),
    "shifted_slices": (
        "slice",
        "the examples are reduced to one value, and not by a sum of floats",
        PICKING + GIVEN,
    ),
    "examples_as_channels": ("tanh", A_SUM + "used in a way that is not linear", SUMS + MIXING),
    "resized_along_the_batch": (
        "multiply",
        "a sum over the examples ({}) meets each example's own values",
        MIXING,
    ),
    "data_added_up_so_far": ("dot_general", REARRANGED + "values ({})", DATA),
    "sorted_examples": ("sort", MOVED, RANKING + GIVEN),
    "the_largest_loss": (
        "reduce",
        "the examples are reduced to one value by stablehlo.maximum, and not by a sum of floats",
        MIXING,
    ),
    "a_row_for_each_in_a_linear_loss": (
        "broadcast_in_dim",
        "no example reaches this part of a gradient, and its parameter may have a row for each: "
        "whether row b is example b's is not shown",
        "pass a parameter with a row for each example as a batch argument",
    ),
    "data_that_was_moved_as_a_term": (
        "reverse",
        TERM + f"is known: {PICKED}",
        PICKING + TERMS,
    ),
    "steps_with_the_label_of_the_mirrored": (
        "while",
        "a loop takes examples in two orders at once",
        MIXING,
    ),
    "solved_by_conjugate_gradients": (
        "dot_general",
        "two sums over the examples (the first by {}) are multiplied",
        SUMS + MIXING,
    ),
    "the_larger_of_two_sums": (
        "compare",
        "two sums over the examples (the first by {}) meet, and are not added",
        SUMS + MIXING,
    ),
    "guarded_against_infinity": ("is_finite", A_SUM + "tested for NaN", NAN),
    "guarded_against_nan": ("compare", A_SUM + "tested for NaN", NAN),
    "running_average_of_features": (
        "dynamic_update_slice",
        "a sum over the examples of earlier steps ({}) meets each example's own values",
        STEPS,
    ),
    "as_the_label_says": ("dynamic_slice", APART + "dimensions", BLOCKS + PARTS + PICKING + GIVEN),
    "loops_over_pairs": ("while", "a loop takes examples within a step that takes others", MIXING),
    "batch_decides_the_branch": (
        "case",
        "the examples decide together which branch is taken",
        SUMS + MIXING,
    ),
    "the_one_before_decides_the_branch": (
        "case",
        "the examples decide together which branch is taken",
        DECIDED,
    ),
    "until_all_are_small": (
        "while",
        "the examples decide together how often this loop runs",
        DECIDED,
    ),
    "data_decides_the_branch": (
        "reduce",
        TERM + "is known: a sum of data over the batch is used as a constant",
        TERMS,
    ),
    "a_penalty_beside_one_example": (
        "add",
        "a constant is added to a single example's part of this gradient: whether it is that "
        "example's or all examples' is not shown",
        ONE_BY_ONE,
    ),
    "one_or_a_constant": (
        "case",
        "a constant is added to a single example's part of this gradient: whether it is that "
        "example's or all examples' is not shown",
        ONE_BY_ONE,
    ),
    "a_decomposition_of_the_batch": (
        "custom_call",
        "nothing is known of how lapack_sgees_ffi treats the examples",
        CALL,
    ),
    "a_decomposition_of_data": ("multiply", REARRANGED + "values ({})", CALL),
    "contributions_of_a_bias_to_a_squared_mean": (
        "reduce",
        TERM + "is known: a sum over the batch is used as a constant",
        TERMS,
    ),
    "declared_along_the_features": (
        "custom_call",
        "it was declared to take examples one by one along axes along which they do not lie, or "
        "which this result has not",
        "give each operand and result with examples their axis, None being for what is one for "
        "all; what all examples share may go in, but a sum over them, as a weight's gradient is, "
        "may not come out: multiply by weights outside",
    ),
    "a_line_of_many_places": ("while", "what this loop carries does not settle", MIXING),
    "two_splits_that_cross": ("func", "parts of the batch lie in two orders", MIXING),
    "one_order_or_the_other": (
        "case",
        "a value of this loop or branch holds the examples now in one way, now in another",
        MIXING,
    ),
}
WORDS |= {
    name: (
        op,
        "no example reaches this gradient, or a part of it, and its parameter meets examples one "
        "by one: whose part is how much is not shown",
        "take all examples at once, by jax.vmap; or ask for other gradients",
    )
    for name, op in (
        ("one_of_them_alone", "broadcast_in_dim"),
        ("a_penalty_of_the_last_step", "while"),
    )
}
LINE = r"stablehlo\.\w+ at (\S+:\d+)"


@pytest.mark.parametrize(("name", "words"), WORDS.items(), ids=WORDS)
def test_in_which_words_a_trap_is_refused(name, words):
    trap, (op, why, help) = TRAPS[name], words
    with pytest.raises(hs.Refusal) as refused:
        asked(trap)(trap.weights(), drawn(trap.x, 0))
    assert refused.value.op.split(".")[-1] == op
    assert re.sub(LINE, "{}", refused.value.why) == why
    assert set(re.findall(LINE, refused.value.why)) <= trap.lines()
    assert refused.value.help.startswith(help)
    assert refused.value.help.endswith("as constants") == ("as constants" in help or help == DATA)
