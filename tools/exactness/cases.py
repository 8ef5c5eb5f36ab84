"""A dumped gradient with its arguments, and each example's own gradient from that module alone.

The module runs as it is, on a batch in which every example is a copy of one: of a mean loss it
returns that example's gradient, of a summed one B times it. Nothing of the analysis and of the
strategies has a part in that.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import hlo_surgery as hs

Array = np.ndarray[Any, Any]
Arrays = list[Array]
SEPARABLE, NOT_SEPARABLE = "separable", "not separable"


@dataclass(frozen=True)
class Case:
    """`batch`: the axis of the examples by argument; `gradients`: the names of outputs."""

    text: str
    arrays: Arrays
    batch: dict[int, int]
    size: int
    gradients: Sequence[str]
    loss_reduction: Any
    verdict: str
    tolerance: float

    @property
    def is_mean(self) -> bool:
        return self.loss_reduction == "mean"


def read(folder: Path) -> Case:
    """From grad.mlir, inputs.npz (arg0, arg1, ...) and meta.json."""
    meta, inputs = json.loads((folder / "meta.json").read_text()), np.load(folder / "inputs.npz")
    axes = [argument["examples_along"] for argument in meta["arguments"]]
    return Case(
        text=(folder / "grad.mlir").read_text(),
        arrays=[inputs[f"arg{i}"] for i in range(len(axes))],
        batch={i: axis for i, axis in enumerate(axes) if axis is not None},
        size=meta["batch_size"],
        gradients=meta["gradients"],
        loss_reduction=meta["loss_reduction"],
        verdict=meta["verdict"],
        tolerance=meta["tolerance"],
    )


def own_gradients(case: Case) -> Arrays:
    """[B, *shape] of each gradient, in float64.

    Raises ValueError where they do not add up to the batch's gradient, since an example's depends
    on its place, as where masks are drawn, or on the others.
    """
    module = hs.modules.load(case.text)
    count = len(case.gradients)
    rows = [module.call(*copies(case, b))[:count] for b in range(case.size)]
    scale = 1 if case.is_mean else case.size
    own = [
        np.stack([np.asarray(x, np.float64) for x in xs]) / scale for xs in zip(*rows, strict=True)
    ]
    whole = [np.asarray(x, np.float64) for x in module.call(*case.arrays)[:count]]
    found = [g.mean(0) if case.is_mean else g.sum(0) for g in own]
    if deviation(found, whole) > 2 * case.tolerance:
        raise ValueError("gradients of copies do not add up to that of the batch")
    return own


def copies(case: Case, number: int) -> Arrays:
    """The arguments with one example in place of all."""
    return [
        np.repeat(np.take(x, [number], case.batch[i]), x.shape[case.batch[i]], case.batch[i])
        if i in case.batch
        else x
        for i, x in enumerate(case.arrays)
    ]


def deviation(found: Sequence[Any], wanted: Sequence[Any], floor: float = 1e-3) -> float:
    """The largest of all arrays, each beside its own largest entry; `floor`: of the largest of all,
    below which an array's own does not count.
    """
    sizes = [float(np.abs(w).max(initial=0)) for w in wanted]
    least = floor * max(sizes, default=0) or 1.0
    errors = [
        _error(f, w) / max(size, least) for f, w, size in zip(found, wanted, sizes, strict=True)
    ]
    return max(errors, default=0.0)


def _error(found: Any, wanted: Any) -> float:
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    if found.shape != wanted.shape or not np.isfinite(found).all():
        return float("inf")
    return float(np.abs(found - wanted).max(initial=0))
