"""Means over seeds with their 95 % intervals, by Student's t."""

from collections.abc import Sequence

import numpy as np
from scipy import stats


def interval(values: Sequence[float] | np.ndarray, digits: int = 3) -> str:
    """Such as `0.512 ± 0.010`: the mean, and half the interval's width."""
    return f"{np.mean(values):.{digits}f} ± {half_width(values):.{digits}f}"


def difference(values: Sequence[float] | np.ndarray, digits: int = 4) -> str:
    """Such as `+0.0120 ± 0.0100`: the same of differences, with their sign."""
    return f"{np.mean(values):+.{digits}f} ± {half_width(values):.{digits}f}"


def half_width(values: Sequence[float] | np.ndarray) -> float:
    """Of the interval around the mean."""
    found = np.asarray(values, float)
    quantile = stats.t.ppf(0.975, len(found) - 1)
    return float(quantile * found.std(ddof=1) / np.sqrt(len(found)))
