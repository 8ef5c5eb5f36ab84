"""Segments: batch arguments whose rows belong to the examples that ids name, leaf by leaf."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.requests.in_axes import (
    Key,
    argument_entries,
    arguments_by_key,
    axes_by_leaf,
    from_front,
)
from hlo_surgery.requests.leaves import is_array, kind_of


@dataclass(frozen=True)
class Segments:
    """`axes`: the examples' axis by number of the array among all leaves, where they have one;
    `rows`: of arrays with ids, which of `ids` these are.
    """

    axes: Mapping[int, int]
    rows: Mapping[int, int]
    ids: tuple[Any, ...]


def check_segments(segments: Any, in_axes: Any) -> None:
    """Raises TypeError or ValueError where `segments` is no function, or not alone."""
    if segments is not None and not callable(segments):
        raise TypeError(
            f"segments is {segments!r}; it is a function of the arguments that returns ids, such "
            "as lambda params, batch: {'tokens': batch['example'], 'target': 0}"
        )
    if segments is not None and in_axes != 0:
        raise ValueError("segments says the axes too; leave in_axes out")


def segments_among(
    segments: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    batch: Sequence[Key],
    fun: Callable[..., Any] | None = None,
) -> Segments:
    """What `segments` says of the leaves of (args, kwargs). `batch` and `fun` as in `leaf_axes`.

    Raises ValueError or TypeError.
    """
    entries = argument_entries("segments", segments(*args, **kwargs), args, kwargs, batch, fun)
    said = _said_of_leaves(entries, args, kwargs)
    leaves = jax.tree.leaves((args, kwargs))
    arrays = [i for i, leaf in enumerate(leaves) if is_array(leaf)]
    axes: dict[int, int] = {}
    rows: dict[int, int] = {}
    ids: list[Any] = []
    for number, (name, entry) in ((arrays.index(i), pair) for i, pair in said.items()):
        leaf = leaves[arrays[number]]
        if isinstance(entry, int) or entry is None:
            axis = from_front("segments", entry, leaf, name)
            axes |= {} if axis is None else {number: axis}
            continue
        own = _checked(entry, leaf, name)
        known = next((k for k, other in enumerate(ids) if other is own), len(ids))
        ids += [] if known < len(ids) else [own]
        rows[number] = known
    if not rows:
        raise ValueError("segments names no ids; leave it out, and say the axes with in_axes")
    return Segments(axes, rows, tuple(ids))


def _said_of_leaves(
    entries: Mapping[Key, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[int, tuple[str, Any]]:
    """The name of each array of the batch arguments, and what is said of it, by number of leaf."""
    found: dict[int, tuple[str, Any]] = {}
    first = 0
    for key, argument in arguments_by_key(args, kwargs).items():
        if key in entries:
            said = axes_by_leaf(
                "segments", entries[key], argument, "the batch argument it goes with"
            )
            for k, (entry, path, leaf) in enumerate(said):
                name = f"argument {key}{jax.tree_util.keystr(path)}"
                found |= {first + k: (name, entry)} if is_array(leaf) else {}
        first += len(jax.tree.leaves(argument))
    return found


def _checked(ids: Any, leaf: Any, name: str) -> Any:
    """Ids of a leaf's rows, as an array."""
    if not is_array(ids) or not jnp.issubdtype(kind_of(ids).dtype, jnp.integer):
        raise TypeError(
            f"segments has {ids!r} for {name}; it is an integer array of ids, one for each row, an "
            "axis, or None for what is given"
        )
    shape, own = kind_of(leaf).shape, kind_of(ids).shape
    if not own or shape[: len(own)] != own:
        raise ValueError(
            f"segments has ids {list(own)} for {name}, which has shape {list(shape)}; there is one "
            "for each row"
        )
    return ids
