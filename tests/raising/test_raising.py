"""Each raising rule is a claim: the raised function does what XLA does with the op itself.

Its vmap is a loop; and applied to single examples it returns contributions that add up to what the
op makes of all.

This folder alone tests each op's JAX function, against XLA.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_surgery.passes.ir.constants import dtype_of, elements
from hlo_surgery.passes.raising.raise_op import RULES, raise_op
from tests.products import covering
from tests.raising import op_snippets as rows
from tests.raising.single_ops import executable, execute, random_operands, snippet_op


def assert_equal_to_rounding(actual, expected, dtype):
    """Equal element types; values within a few roundings of 1 or of the largest result."""
    assert actual.dtype == dtype
    assert actual.shape == expected.shape
    if not jnp.issubdtype(dtype, jnp.inexact):
        np.testing.assert_array_equal(actual, expected)
        return
    wide = np.complex128 if dtype.kind == "c" else np.float64
    actual, expected = np.asarray(actual).astype(wide), np.asarray(expected).astype(wide)
    scale = 1 + np.max(np.abs(expected[np.isfinite(expected)]), initial=0)
    np.testing.assert_allclose(
        actual, expected, rtol=0, atol=float(16 * jnp.finfo(dtype).eps * scale)
    )


def operands_for(op, seed=0):
    operands = random_operands(op, np.random.default_rng(seed))
    if op.name == "stablehlo.triangular_solve":  # keep the matrix well away from singular
        operands[0] = operands[0] + 4 * np.eye(3, dtype=operands[0].dtype)
    if op.name in ("stablehlo.reduce", "stablehlo.reduce_window"):
        # How often another initial value than zero counts StableHLO leaves open; XLA goes by sizes.
        operands = [np.zeros_like(x) if x.ndim == 0 else x for x in operands]
    return operands


def assert_raised_as_executed(op):
    raised = raise_op(op)
    assert raised is not None
    run = executable(op)
    for seed in range(3):
        operands = operands_for(op, seed)
        with jax.enable_x64(True):
            actual = jax.jit(raised)(*operands)
        for result, y, expected in zip(op.results, actual, run(operands), strict=True):
            assert_equal_to_rounding(y, expected, dtype_of(result))


def assert_vmap_is_a_loop(op, shared):
    """Three sets of operands at once; those in `shared` are one for all three, and not batched."""
    raised = raise_op(op)
    sets = [operands_for(op, seed) for seed in range(3)]
    for operands in sets:
        for i in shared:
            operands[i] = sets[0][i]
    in_axes = [None if i in shared else 0 for i in range(len(op.operands))]
    batched = [
        sets[0][i] if i in shared else np.stack([s[i] for s in sets])
        for i in range(len(op.operands))
    ]
    with jax.enable_x64(True):
        together = jax.jit(jax.vmap(raised, in_axes))(*batched)
        one_by_one = [jax.jit(raised)(*operands) for operands in sets]
    for i, result in enumerate(op.results):
        expected = np.stack([np.asarray(ys[i]) for ys in one_by_one])
        assert_equal_to_rounding(together[i], expected, dtype_of(result))


def named(table):
    return pytest.mark.parametrize("row", table.values(), ids=table.keys())


@pytest.mark.first(10)
@named(rows.EXACT)
def test_raised_as_executed(row):
    assert_raised_as_executed(snippet_op(*row))


@pytest.mark.first(10)
@named(rows.EXACT)
def test_vmap_is_a_loop(row):
    op = snippet_op(*row)
    assert_vmap_is_a_loop(op, shared=())


OF_SEVERAL = rows.CONTRACTIONS | rows.INDEXING | rows.TRANSFORMS


@pytest.mark.first(10)
@pytest.mark.parametrize(
    ("name", "batched"), covering(list(OF_SEVERAL), ["the first operand", "the last operand"])
)
def test_vmap_over_one_operand_is_a_loop(name, batched):
    op = snippet_op(*OF_SEVERAL[name])
    count = len(op.operands)
    assert_vmap_is_a_loop(
        op, shared=range(1, count) if batched == "the first operand" else range(count - 1)
    )


# Sites, and the axis of each operand that holds 2 examples; every other operand is shared.
SITES = {
    "dot_general": (
        rows.dot("2x3xf32", "2x4xf32", "3x4xf32", "contracting_dims = [0] x [0]"),
        {0: 0, 1: 0},
    ),
    "dot_general over examples and positions": (
        rows.dot("3x2x4xf32", "2x5x3xf32", "4x5xf32", "contracting_dims = [0, 1] x [2, 0]"),
        {0: 1, 1: 0},
    ),
    "dot_general batched": (
        rows.dot(
            "5x2x3xbf16",
            "5x2x4xbf16",
            "5x3x4xf32",
            "batching_dims = [0] x [0], contracting_dims = [1] x [1]",
        ),
        {0: 1, 1: 1},
    ),
    "reduce": (rows.reduce("3x2x4xf32", "f32", "4xf32", [0, 1]), {0: 1}),
    "filter gradient": (
        rows.convolution("2x6x3xf32", "2x4x5xf32", "3x3x5xf32", "[f, 0, b]x[i, 0, o]->[0, b, f]"),
        {0: 0, 1: 0},
    ),
    "filter gradient, strided and padded": (
        rows.convolution(
            "2x6x3xf32",
            "2x3x5xf32",
            "4x3x5xf32",
            "[f, 0, b]x[i, 0, o]->[0, b, f]",
            "pad = [[1, 1]], rhs_dilate = [2]",
        ),
        {0: 0, 1: 0},
    ),
    "scatter of updates": (
        rows.scatter(
            ["4x3xf32", "6x1xi32", "6x3xf32"],
            rows.ROWS_BY_INDEX + ", index_vector_dim = 1",
            rows.adds("f32"),
        ),
        {1: 0, 2: 0},
    ),
}


@pytest.mark.parametrize(("row", "axes"), SITES.values(), ids=SITES.keys())
def test_contributions_of_single_examples_add_up(row, axes):
    op = snippet_op(*row)
    raised, dtype = raise_op(op), dtype_of(op.results[0])
    operands = [x if i in axes else np.zeros_like(x) for i, x in enumerate(operands_for(op))]
    (expected,) = execute(op, operands)
    examples = [np.stack(np.split(operands[i], 2, axis)) for i, axis in axes.items()]

    def contribution(*example):
        (y,) = raised(
            *(example[list(axes).index(i)] if i in axes else x for i, x in enumerate(operands))
        )
        return y

    def accumulate(total, example):
        return total + contribution(*example), None

    lifted = jax.jit(jax.vmap(contribution))(*examples).sum(0)
    looped, _ = jax.jit(lambda xs: lax.scan(accumulate, jnp.zeros(expected.shape, dtype), xs))(
        examples
    )
    assert_equal_to_rounding(lifted, expected, dtype)
    assert_equal_to_rounding(looped, expected, dtype)


@named(rows.WITHOUT_RULE)
def test_no_rule(row):
    assert raise_op(snippet_op(*row)) is None


def test_every_rule_has_a_row():
    covered = {snippet_op(*row).name for row in rows.EXACT.values()}
    assert covered == set(RULES)


@named(rows.CONSTANTS)
def test_elements_of_a_constant(row):
    op = snippet_op(*row)
    (expected,) = execute(op, [])
    np.testing.assert_array_equal(elements(op), expected)
