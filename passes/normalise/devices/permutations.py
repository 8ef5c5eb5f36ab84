"""Permutations: given which device sends to which, from where each place along mesh axes receives.

[[0, 1], [1, 0], [2, 3], [3, 2]]  on  {"data": 2, "model": 2}     =>     ("model",), [1, 0]
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from hlo_surgery.passes.normalise.devices.device_mesh import Mesh, Names, device_ids


def sources_along(pairs: npt.NDArray[Any], mesh: Mesh) -> tuple[Names, list[int]]:
    """The fewest axes along which all pairs are alike; -1 for what no device sends to."""
    ids = device_ids(mesh)
    places = np.moveaxis(np.indices(ids.shape).reshape(ids.ndim, ids.size)[:, pairs], 0, -1)
    moving = (places[:, 0] != places[:, 1]).any(0)
    some = tuple(name for name, moves in zip(mesh, moving, strict=True) if moves)
    return next(
        (axes, found) for axes in (some, tuple(mesh)) if (found := _sources(places, axes, mesh))
    )


def _sources(places: npt.NDArray[Any], axes: Names, mesh: Mesh) -> list[int] | None:
    """From where along these axes each receives, -1 for none; None unless alike on all others.

    `places`: of each pair the source's and the target's place along each axis of the mesh.
    """
    chosen = [list(mesh).index(name) for name in axes]
    ids = device_ids({name: mesh[name] for name in axes})
    of_pairs = np.broadcast_to(
        ids[tuple(np.moveaxis(places[..., chosen], -1, 0))], places.shape[:2]
    )
    distinct = {(int(source), int(target)) for source, target in of_pairs}
    if len(of_pairs) * ids.size != len(distinct) * device_ids(mesh).size:
        return None
    sources = {target: source for source, target in distinct}
    return [sources.get(target, -1) for target in range(ids.size)]
