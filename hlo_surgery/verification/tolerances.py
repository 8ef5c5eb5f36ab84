"""Tolerances of verification: how far rounding alone may move a result; comparisons by them.

Each entry has its own: the entries of one array may span more powers of ten than its precision has
digits, second moments twice as many as gradients.

Verdicts: what verification showed; a value that prints what failed and the worst that passed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from hlo_surgery.module import Module
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import dtype_of, is_static_array
from hlo_surgery.requests.gradient_outputs import is_inexact

Array = np.ndarray[Any, Any]

# float32 and float64: sums are taken in another order. The roundings of n terms add up like a
# random walk, to sqrt(n) of them; this is for sums of 65,536 terms.
ROUNDINGS = 256
# Lower precisions round only what enters and leaves a sum, which XLA accumulates in float32.
LOW_PRECISION_ROUNDINGS = 8
# A program rounds at each of its ops, not at its inputs alone.
ROUNDED_OPS = 16
# Accelerators contract float32 in TF32 or bfloat16 unless the module asks for more.
CONTRACTION_EPSILON = {"gpu": 2.0**-10, "cuda": 2.0**-10, "rocm": 2.0**-10, "tpu": 2.0**-7}


@dataclass(frozen=True)
class Comparison:
    """One array held against what it should be. It passes where `share`, difference / tolerance, is
    at most 1.

    `kind`: "output", "statistic", "second difference" or "mean of copies". `error`: the largest
    difference as a part of the largest entry.
    """

    kind: str
    name: str
    error: float
    share: float

    @property
    def passes(self) -> bool:
        """Whether the difference is within the tolerance; NaN is not."""
        return self.share <= 1

    def __str__(self) -> str:
        result = "within" if self.passes else "beyond"
        return (
            f"{self.kind} {self.name}: off by {self.error:.2g} of its largest entry, {result} the "
            f"tolerance ({self.share:.2g} of it)"
        )


def epsilon(module: Module) -> float:
    """The spacing of the coarsest float in the module, or of the backend's contractions where that
    is coarser.
    """
    ops = mlir.all_operations(module.code)
    values = [v for op in ops for v in op.results if mlir.is_inexact(v) and is_static_array(v)]
    dtypes = {dtype_of(v) for v in values} | {p.dtype for p in module.outputs if is_inexact(p)}
    spacings = [float(jnp.finfo(dtype).eps) for dtype in dtypes or {jnp.float32}]
    return max(*spacings, CONTRACTION_EPSILON.get(jax.default_backend(), 0.0))


def relative_tolerance(spacing: float) -> float:
    """The part of its terms by which a sum in another order may differ: 3e-5 for float32, 0.06 for
    bfloat16.

    >>> round(relative_tolerance(2.0**-23), 6)
    3.1e-05
    """
    return spacing * (ROUNDINGS if spacing <= 2.0**-23 else LOW_PRECISION_ROUNDINGS)


def hold(kind: str, name: str, got: Array, want: Array, allowed: Array | float) -> Comparison:
    """Compare arrays of equal shape; `allowed` is the largest difference, for all entries or
    each.
    """
    difference = distance(got, want)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(difference == 0, 0.0, difference / np.asarray(allowed))
        size = np.float64(largest(want[np.isfinite(want)]))
        error = np.float64(largest(difference)) / size if np.any(difference != 0) else 0.0
    return Comparison(kind, name, float(error), largest(shares))


def hold_returned(
    kind: str, name: str, got: Any, want: Array, allowed: Array, size: int
) -> Comparison:
    """Compare what a module returned with exact numbers, up to what its dtype can hold of `size`
    terms.

    The terms of a mean are squares of parts of one `size`-th on some ways, so that they leave the
    range before it does.
    """
    lowest, highest = limits(np.asarray(got).dtype)
    wide = widened(got)
    overflown = ~np.isfinite(wide) & (np.abs(want) * size**2 > highest)
    return hold(kind, name, np.where(overflown, want, wide), want, allowed + lowest * size**2)


def limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    """The least and the largest magnitude that a computation in this dtype keeps.

    XLA flushes subnormal numbers to zero, but for those of float16, which it computes in float32.
    """
    if not jnp.issubdtype(dtype, jnp.inexact):
        return 0.0, float("inf")
    info = jnp.finfo(dtype)
    is_half = info.bits == 16 and info.nmant == 10
    return float(info.smallest_subnormal if is_half else info.tiny), float(info.max)


def distance(a: Array, b: Array) -> Array:
    """How far apart entries are: 0 where both are the same infinity or NaN, NaN where but one is
    NaN.
    """
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        return np.where(same, 0.0, np.abs(a - b))


def largest(array: Array) -> float:
    """The largest magnitude in an array; 0 for an empty one, NaN where there is one."""
    return float(np.max(np.abs(array), initial=0.0))


def widened(array: Any) -> Array:
    """The array in double precision, so that comparing adds no rounding of its own."""
    wide = np.asarray(array)
    return wide.astype(np.complex128 if wide.dtype.kind == "c" else np.float64)


Answer = Literal["equivalent", "not equivalent", "not applicable"]


@dataclass(frozen=True)
class Verdict:
    """What running the original showed, with every comparison; it prints. `taken`: which outputs as
    gradients.
    """

    verdict: Answer
    why: str
    comparisons: tuple[Comparison, ...] = ()
    taken: str = ""

    def __str__(self) -> str:
        head = [f"{self.verdict}: {self.why}", *([f"  {self.taken}"] if self.taken else [])]
        return "\n".join([*head, *(f"  {each}" for each in notable(self.comparisons))])


def notable(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Of each kind all that failed, or else the one nearest to its tolerance."""
    chosen: list[Comparison] = []
    for kind in dict.fromkeys(c.kind for c in comparisons):
        alike = [c for c in comparisons if c.kind == kind]
        chosen += [c for c in alike if not c.passes] or [max(alike, key=lambda c: c.share)]
    return chosen
