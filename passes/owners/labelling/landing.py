"""Landing: who may own the elements of an array behind an update, for updates and scatters.

    update [2, D] of owners (4, 5), at rows (7, 1) of 8  =>  rows 7: 4, 1: 5, others: NONE

Where a place depends on the step, an element gets the owners of all steps together, so that it
holds at each of them, or those of each step by itself, `by_step`; the axis of a step on which no
place depends is kept.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import cast

import numpy as np

from hlo_surgery.passes.owners.labelling.bounds import Bounds
from hlo_surgery.passes.owners.labelling.digits import all_whole, regrouped
from hlo_surgery.passes.owners.labelling.frames import without
from hlo_surgery.passes.owners.labelling.labels import (
    ABOVE_ALL,
    MOST_LABELS,
    NONE,
    Labels,
    Numbers,
    Places,
    TooManyLabels,
    between,
    check_count,
    everywhere,
)

WRITTEN = np.zeros((), np.int32)
# Along a dimension of the array: known places [*steps, *update]; or the places that elements have
# along this dimension of the update; or, as None, any place. Bounds of places that are not known
# stand for one of those between.
Spot = Places | int | None


def known_spot(spot: Spot | Bounds) -> Spot:
    """The places that are known."""
    return spot.numbers if isinstance(spot, Bounds) else spot


def first_open(spots: Mapping[int, Spot | Bounds]) -> int | None:
    """The first dimension along which places are not known, but few enough to look at each."""
    for dim, spot in spots.items():
        if isinstance(spot, Bounds) and not spot.are_all_known:
            return dim if spot.low.size * spot.count <= MOST_LABELS else None
    return None


def landed(
    steps: int,
    update: Labels,
    spots: Sequence[Spot | Bounds],
    shape: Sequence[int],
    drops: bool = False,
    by_step: bool = False,
) -> Labels:
    """The owners of all that may land on each element of a shape; `drops`: what lands outside of it
    is dropped; `by_step`: at each step of known places by itself.

    The digits of dimensions whose elements stay at their own place are kept.
    """
    known = [known_spot(spot) for spot in spots]
    dim = first_open(dict(enumerate(spots)))
    if dim is not None:
        with suppress(TooManyLabels):
            return _landed_in(steps, update, cast(Bounds, spots[dim]), dim, known, shape, drops)
    return _landed(steps, update.inside(steps), known, shape, drops, by_step)


def _landed_in(
    steps: int,
    update: Labels,
    places: Bounds,
    dim: int,
    known: Sequence[Spot],
    shape: Sequence[int],
    drops: bool,
) -> Labels:
    """Of an update whose elements land on one of several places along a dimension: as if each
    landed on all of these, along one more dimension of the update.
    """
    every = places.every()
    count = every.shape[-1]
    wide = Labels((*update.digits, (count,)), update.owners[..., None])
    spots = [spot[..., None] if isinstance(spot, np.ndarray) else spot for spot in known]
    spots[dim] = every
    return _landed(steps, wide.inside(steps), spots, shape, drops)


def _landed(
    steps: int,
    update: Labels,
    spots: Sequence[Spot],
    shape: Sequence[int],
    drops: bool,
    by_step: bool = False,
) -> Labels:
    fine = [_own_digits(steps, update, spots, k) for k in range(len(update.shape))]
    first = np.cumsum([0, *map(len, fine)])
    groups = [fine[spot] if isinstance(spot, int) else [shape[d]] for d, spot in enumerate(spots)]
    new_spots: list[Spot] = []
    for spot in spots:
        if isinstance(spot, int):
            new_spots += [int(first[spot]) + k for k in range(len(fine[spot]))]
        else:
            new_spots.append(None if spot is None else _over_digits(steps, spot, fine))
    split = regrouped(update, [size for digits in fine for size in digits])
    sizes = [size for digits in groups for size in digits]
    found = _landed_whole(steps, split, new_spots, sizes, drops, by_step)
    return Labels(tuple(map(tuple, groups)), found.owners)


def _own_digits(steps: int, update: Labels, spots: Sequence[Spot], dim: int) -> list[int]:
    """The digits of a dimension of an update, if its elements stay at their own place; else one."""
    arrays = [spot for spot in spots if isinstance(spot, np.ndarray)]
    stays = dim in [spot for spot in spots if isinstance(spot, int)]
    moves = any(places.shape[steps + dim] > 1 for places in arrays)
    digits = list(update.digits[dim]) if stays and not moves else []
    return digits or [update.shape[dim]]


def _over_digits(steps: int, places: Places, fine: Sequence[Sequence[int]]) -> Places:
    """Known places [*steps, *update] with an axis for each digit of the update."""
    sizes = list(places.shape[:steps])
    for size, digits in zip(places.shape[steps:], fine, strict=True):
        sizes += [size, *[1] * (len(digits) - 1)]
    return places.reshape(sizes)


def _landed_whole(
    steps: int,
    update: Labels,
    spots: Sequence[Spot],
    shape: Sequence[int],
    drops: bool,
    by_step: bool,
) -> Labels:
    owners = all_whole(update).owners
    known, kept = _known_and_kept(steps, spots, shape, owners.ndim)
    outer = [s for s in range(steps) if all(spot.shape[s] == 1 for spot in known.values())]
    # By axis of the result.
    placed = {steps + dim: spot for dim, spot in known.items()}
    ends = {steps + dim: shape[dim] for dim in known}
    if by_step:
        own = _own_steps(steps, known, owners.ndim)
        placed |= own
        ends |= {axis: places.size for axis, places in own.items()}
    stay = [*outer, *kept.values()]
    where, values = _lined_up(owners, placed, stay)
    if drops and where:
        inside = [(w >= 0) & (w < end) for w, end in zip(where, ends.values(), strict=True)]
        within = np.logical_and.reduce(inside)
        where, values = [w[within] for w in where], values[within]
    found = _combined(where, values, [*ends.values()])
    axes = [*placed, *outer, *(steps + dim for dim in kept)]
    sizes = [1] * (steps + len(shape))
    for axis, size in zip(axes, found.shape, strict=True):
        sizes[axis] = size
    turned = found.transpose([int(k) for k in np.argsort(axes)])
    return Labels(tuple((size,) for size in shape), turned.reshape(sizes))


def _own_steps(steps: int, known: Mapping[int, Places], rank: int) -> dict[int, Places]:
    """The number of each step on which places depend, as a place along its own axis."""
    sizes = {s: max(spot.shape[s] for spot in known.values()) for s in range(steps) if known}
    return {
        s: np.arange(n).reshape([n if axis == s else 1 for axis in range(rank)])
        for s, n in sizes.items()
        if n > 1
    }


def _known_and_kept(
    steps: int, spots: Sequence[Spot], shape: Sequence[int], rank: int
) -> tuple[dict[int, Places], dict[int, int]]:
    """Known places by dimension, and the axes of the update that stay as they are, by dimension.

    An axis on which known places depend cannot stay: its own places are known then.
    """
    known = {dim: spot for dim, spot in enumerate(spots) if isinstance(spot, np.ndarray)}
    kept: dict[int, int] = {}
    for dim, spot in enumerate(spots):
        if not isinstance(spot, int):
            continue
        axis = steps + spot
        if any(places.shape[axis] > 1 for places in known.values()):
            sizes = [-1 if a == axis else 1 for a in range(rank)]
            known[dim] = np.arange(shape[dim]).reshape(sizes)
        else:
            kept[dim] = axis
    return known, kept


def _lined_up(
    owners: Numbers, known: Mapping[int, Places], stay: Sequence[int]
) -> tuple[list[Places], Numbers]:
    """Known places, [n] each, and what lands there, [n, *stay]."""
    moved = [axis for axis in range(owners.ndim) if axis not in stay]
    shapes = [x.shape for x in (owners, *known.values())]
    sizes = [max(s[a] for s in shapes) if a in moved else 1 for a in range(owners.ndim)]
    full = [max(n, own) for n, own in zip(sizes, owners.shape, strict=True)]
    check_count(*full)
    turned = np.broadcast_to(owners, full).transpose([*moved, *stay])
    values = turned.reshape((-1, *(owners.shape[axis] for axis in stay)))
    flat = [
        np.broadcast_to(x, sizes).transpose([*moved, *stay]).reshape(-1) for x in known.values()
    ]
    return flat, values


def _combined(where: Sequence[Places], values: Numbers, sizes: Sequence[int]) -> Numbers:
    """The joint owner of all that lands on each place: [*sizes, *stay]."""
    check_count(*sizes, *values.shape[1:])
    lowest = np.where(values == NONE, ABOVE_ALL, values)
    if not where:
        return between(lowest.min(0, initial=ABOVE_ALL), values.max(0, initial=NONE))
    low = np.full((*sizes, *values.shape[1:]), ABOVE_ALL, np.int32)
    high = np.full(low.shape, NONE, np.int32)
    np.minimum.at(low, tuple(where), lowest)
    np.maximum.at(high, tuple(where), values)
    return between(low, high)


def cleared(
    steps: int,
    old: Labels,
    update: Sequence[int],
    spots: Sequence[Spot],
    shape: Sequence[int],
    by_step: bool = False,
) -> Labels:
    """The owners of what was there before, but for elements that are overwritten at every step, or
    `by_step` at each; `update`: its shape.
    """
    certain = all(spot is not None for spot in spots)
    known = {dim: spot for dim, spot in enumerate(spots) if isinstance(spot, np.ndarray)}
    # A window that lies partly outside may be dropped whole.
    certain = certain and all(_is_inside(spot, shape[dim]) for dim, spot in known.items())
    fixed = all(spot.shape[:steps] == (1,) * steps for spot in known.values())
    if old.is_nobodys or not certain or not (fixed or by_step):
        return old
    return without(old, landed(steps, everywhere(WRITTEN, update), spots, shape, by_step=by_step))


def _is_inside(places: Places, size: int) -> bool:
    return bool(((places >= 0) & (places < size)).all())
