"""Kronecker factors held against the gradients that they are made of, in float64.

Of g_b = sum_t a_t d_t' with L = mean_b sum_t a a' and R = mean_bt d d', the inequality of Cauchy
and Schwarz says of all unit vectors u, v that (u' g_b v)**2 <= (u' B L u) (v' B T R v). So no
gradient has a part outside of the factors' ranges, and between the roots of their inverses none is
longer than B sqrt(T). What the inequality leaves of T, the number of positions, is returned here.
"""

from typing import Any

import numpy as np

import hlo_surgery as hs
from hlo_surgery.passes.measures.kronecker import stacked_axes
from tools.exactness.cases import Array, Arrays, Case, copies, deviation

# Eigenvalues below are rounding of the largest, in float64.
CUT = 1e-12


def factored(case: Case) -> tuple[list[int], list[hs.curvature.KroneckerFactors]]:
    """The gradients that have factors, by number, and these, a pair for each."""
    left = list(range(len(case.gradients)))
    while left:
        try:
            module = _with_factors(case, left)
        except hs.Refusal as refusal:
            left = _without(case, left, str(refusal))
            continue
        found = _sides(module, case.arrays, left)
        return left, [
            hs.curvature.KroneckerFactors(*found[i : i + 2]) for i in range(0, len(found), 2)
        ]
    return [], []


def off_from_mean(case: Case, gradients: list[int]) -> float:
    """How far factors are from the mean of each example's own, of batches of its copies."""
    module = _with_factors(case, gradients)
    found = _sides(module, case.arrays, gradients)
    alone = [_sides(module, copies(case, b), gradients) for b in range(case.size)]
    means = [np.mean(np.asarray(sides, np.float64), 0) for sides in zip(*alone, strict=True)]
    return max(deviation([f], [mean]) for f, mean in zip(found, means, strict=True))


def _with_factors(case: Case, gradients: list[int]) -> Any:
    return hs.modules.rewrite_module(
        case.text,
        batch=case.batch,
        statistics={"factors": hs.kronecker_factors()},
        gradients=gradients,
        loss_reduction=case.loss_reduction,
    )


def _sides(module: Any, arrays: Arrays, gradients: list[int]) -> list[Any]:
    """Left and right of each."""
    return module.call(*arrays)[-2 * len(gradients) :]


def _without(case: Case, left: list[int], refusal: str) -> list[int]:
    """Raises ValueError where the refusal names none of the gradients."""
    names = [port.name for port in hs.modules.load(case.text).outputs]
    kept = [i for i in left if f"the gradient {names[i]} is" not in refusal]
    if len(kept) == len(left):
        raise ValueError(f"a refusal of no gradient: {refusal.splitlines()[0]}")
    return kept


def least_positions(factors: Any, own: Array) -> float:
    """The least T that the inequality allows, of own gradients [B, *shape]."""
    stacked = stacked_axes(factors)
    left, right = (_matrices(side, stacked) for side in factors)
    size, layers = len(own), max(len(left), len(right))
    gradients = own.reshape(size, layers, left.shape[-1], right.shape[-1])
    found = [
        _longest(_inverse_root(left[n]), gradients[:, n], _inverse_root(right[n]))
        for n in range(layers)
    ]
    return (max(found) / size) ** 2


def _matrices(side: Any, stacked: int) -> Array:
    """[layers, D, D]; a diagonal as a matrix."""
    x = np.asarray(side, np.float64)
    if x.ndim == stacked + 1:
        x = x[..., None] * np.eye(x.shape[-1])
    return x.reshape(-1, *x.shape[-2:])


def _inverse_root(matrix: Array) -> Array:
    """Where there is nothing, a part that should not be there is as large as the cut makes it."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    largest = max(values[-1], 0)
    floor = np.maximum(values, CUT * largest) if largest else np.full_like(values, 1e-300)
    return vectors / np.sqrt(floor) @ vectors.T


def _longest(left: Array, gradients: Array, right: Array) -> float:
    return max(float(np.linalg.norm(left @ g @ right, 2)) if g.any() else 0.0 for g in gradients)
