"""A fixture's reference numbers, one example at a time, and checks that its verdict is true."""

# pyright: reportUnknownMemberType=false
# JAX's own signatures are partly untyped.

from typing import Any, cast

import jax
import numpy as np

from tools.models.fixtures.model import EXAMPLES, Model, Parameters

Arrays = list[np.ndarray[Any, Any]]


def gradient_function(model: Model) -> Any:
    return model.gradient if model.gradient else cast(Any, jax.grad(model.loss))


def flat_gradient(function: Any, parameters: Parameters, *arguments: Any) -> Arrays:
    """The gradient's leaves in float32 (bfloat16 leaves are exact in it)."""
    return [
        np.asarray(leaf, np.float32) for leaf in jax.tree.leaves(function(parameters, *arguments))
    ]


def example(arguments: tuple[Any, ...], axes: tuple[Any, ...], index: int) -> tuple[Any, ...]:
    """The batch of one that holds example `index`."""

    def pick(array: Any, axis: int) -> Any:
        return array if axis < 0 else np.take(array, [index], axis)

    return cast(tuple[Any, ...], jax.tree.map(pick, arguments, axes))


def per_example_gradients(
    model: Model, parameters: Parameters, arguments: Any, axes: Any
) -> list[Arrays]:
    """g_1 .. g_B: the gradient function on single examples, or `example_loss`'s gradient."""
    function = jax.jit(
        jax.grad(model.example_loss) if model.example_loss else gradient_function(model)
    )
    whole = arguments if model.example_loss else ()
    return [
        flat_gradient(function, parameters, *example(arguments, axes, b), *whole)
        for b in range(EXAMPLES)
    ]


def exchange(arguments: Any, others: Any, axes: Any, indices: tuple[int, ...]) -> Any:
    """`arguments` with the examples `indices` taken from `others`."""

    chosen = np.isin(np.arange(EXAMPLES), indices)

    def put(array: Any, other: Any, axis: int) -> Any:
        if axis < 0:
            return array
        along_axis = chosen.reshape([-1] + [1] * (array.ndim - axis - 1))
        return cast(Any, np.where(along_axis, other, array))

    return jax.tree.map(put, arguments, others, axes)


def second_difference(
    model: Model, parameters: Parameters, arguments: Any, others: Any, axes: Any
) -> Arrays:
    """y(x) - y(x, example 1 changed) - y(x, 3 changed) + y(x, both changed): zero where examples
    are only summed.
    """
    function = jax.jit(gradient_function(model))
    neither, first, second, both = (
        flat_gradient(function, parameters, *exchange(arguments, others, axes, indices))
        for indices in ((), (1,), (3,), (1, 3))
    )
    return [n - f - s + b for n, f, s, b in zip(neither, first, second, both, strict=True)]


def deviation(got: Arrays, want: Arrays) -> float:
    """The worst leaf's largest error, relative to that leaf's largest entry."""
    pairs = zip(got, want, strict=True)
    return max(float(np.abs(g - w).max() / np.abs(w).max()) for g, w in pairs)


def check_verdict(
    model: Model, gradient: Arrays, examples: list[Arrays], difference: Arrays, tolerance: float
) -> None:
    """Raise AssertionError unless the numbers bear the verdict out.

    Separable: the examples' gradients average (or sum) to the gradient, and the second difference
    is rounding. Not separable: neither. Given data, the first holds alone, since changing an
    example changes the data.
    """
    total = [sum(leaves) for leaves in zip(*examples, strict=True)]
    combined = [np.asarray(t) / (EXAMPLES if model.loss_reduction == "mean" else 1) for t in total]
    adds_up = deviation(combined, gradient) <= tolerance
    unmixed = (
        deviation([d + g for d, g in zip(difference, gradient, strict=True)], gradient) <= tolerance
    )
    expected = {
        "separable": (True, True),
        "separable given data": (True, False),
        "not separable": (False, False),
    }[model.verdict]
    assert (adds_up, unmixed) == expected, (
        f"adds up: {adds_up}, second difference vanishes: {unmixed}"
    )
    assert min(np.abs(g).max() for g in gradient) > 1e-4, (
        "a gradient that is nearly zero tests nothing"
    )


def second_moments(examples: list[Arrays]) -> Arrays:
    """mean_b g_b**2, leaf by leaf."""
    return [np.mean(np.square(np.stack(leaves)), axis=0) for leaves in zip(*examples, strict=True)]
