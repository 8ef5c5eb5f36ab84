"""Convolutions by patches: whatever strides, padding, dilations, groups and layouts, they agree."""

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import hlo_surgery as hs
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.raising.raise_op import raise_op
from hlo_surgery.passes.terms.site_functions import convolution_by_patches

SPATIAL = "HWD"


def convolution_in(function, *operands):
    code = mlir.clone(hs.modules.load(jax.jit(function).lower(*operands).as_text()).code)
    (found,) = [
        op
        for op in mlir.body(mlir.main_function(code)).operations
        if op.operation.name.endswith("convolution")
    ]
    return code, found.operation


@st.composite
def convolutions(draw):
    rank = draw(st.integers(1, 3))
    small = st.integers(1, 3)
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    sizes = dict(zip("NIO", [groups * draw(small), draw(small), groups * draw(small)], strict=True))
    image, kernel = (
        [draw(st.integers(low, high)) for _ in range(rank)] for low, high in ((3, 6), (1, 3))
    )
    layouts = [
        "".join(draw(st.permutations(letters + SPATIAL[:rank]))) for letters in ("NC", "OI", "NC")
    ]
    per_dim = lambda values: tuple(draw(st.lists(values, min_size=rank, max_size=rank)))  # noqa: E731
    shapes = [
        [
            {"N": sizes["N"], "C": sizes["I"], **dict(zip(SPATIAL, image, strict=False))}[c]
            for c in layouts[0]
        ],
        [
            {"O": sizes["O"], "I": sizes["I"], **dict(zip(SPATIAL, kernel, strict=False))}[c]
            for c in layouts[1]
        ],
    ]
    options = {
        "window_strides": per_dim(st.integers(1, 3)),
        "padding": [
            tuple(pair) for pair in per_dim(st.tuples(st.integers(-1, 2), st.integers(-1, 2)))
        ],
        "lhs_dilation": per_dim(st.integers(1, 2)),
        "rhs_dilation": per_dim(st.integers(1, 2)),
        "dimension_numbers": tuple(layouts),
        "batch_group_count": groups,
    }
    return shapes, options, draw(st.booleans())


@given(convolutions())
def test_equals_the_convolution(drawn):
    shapes, options, reverse = drawn
    generator = np.random.default_rng(0)
    operands = [generator.normal(size=shape).astype(np.float32) for shape in shapes]

    def convolve(image, window):
        flipped = (
            lax.rev(window, [options["dimension_numbers"][1].index("H")]) if reverse else window
        )
        return lax.conv_general_dilated(image, flipped, precision="highest", **options)

    _, op = convolution_in(convolve, *operands)
    if not all(mlir.shape(op.results[0])):
        return
    by_patches, raised = convolution_by_patches(op), raise_op(op)
    assert by_patches is not None
    assert raised is not None
    np.testing.assert_allclose(by_patches(*operands)[0], raised(*operands)[0], rtol=1e-5, atol=1e-5)
