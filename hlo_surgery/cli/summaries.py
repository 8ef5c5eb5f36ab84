"""What a run returned, in a few numbers an output."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hlo_surgery.cli.output import print_table
from hlo_surgery.module import Port


def summarise(
    ports: Sequence[Port], arrays: Sequence[np.ndarray[Any, Any]]
) -> list[dict[str, Any]]:
    """Each output's name, shape, dtype, least, mean and largest finite entry (or magnitude)."""
    return [
        {"name": port.name, "shape": port.shape, "dtype": str(port.dtype)} | _extremes(array)
        for port, array in zip(ports, arrays, strict=True)
    ]


def _extremes(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    wide = np.abs(array) if array.dtype.kind == "c" else array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    least, mean, most = (
        float(f(finite)) if finite.size else None for f in (np.min, np.mean, np.max)
    )
    return {
        "least": least,
        "mean": mean,
        "largest": most,
        "not_finite": int(wide.size - finite.size),
    }


def print_summaries(summaries: Sequence[dict[str, Any]]) -> None:
    """The summaries as a table."""
    columns = ("name", "shape", "dtype", "least", "mean", "largest", "not finite")
    print_table(
        "outputs",
        columns,
        ([_cell(row[c.replace(" ", "_")]) for c in columns] for row in summaries),
    )


def _cell(value: Any) -> str:
    if isinstance(value, tuple):
        return " x ".join(map(str, value)) or "scalar"
    return f"{value:.5g}" if isinstance(value, float) else "" if value is None else str(value)
