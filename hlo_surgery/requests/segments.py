"""Segments: batch arguments whose rows are of the examples that ids name, leaf by leaf."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from hlo_surgery.module import Port
from hlo_surgery.public_function import Function
from hlo_surgery.requests.in_axes import (
    Key,
    check_sizes,
    from_front,
    said_of_arrays,
)
from hlo_surgery.requests.leaves import is_array, kind_of
from hlo_surgery.requests.updated_arguments import picked_ports, port_number

NOT_ALONE = "segments says the axes too; leave {} out"
RETURNS = (
    "it is a function of the arguments that returns, for each batch argument, a pytree prefix of "
    "ids, axes or None, such as lambda params, batch: {'tokens': batch['example'], 'target': 0}"
)
ONE_ROW = (
    "{} has one row, which ids cannot tell apart: give it another one, of an example of padding, "
    "which is_real leaves out"
)
INTEGERS = "an integer array with the number of its example for each row, an axis, or None"


@dataclass(frozen=True)
class Segments:
    """`axes`: the examples' axis by number of the array among all leaves, where they have one;
    `rows`: of arrays with ids along their first axis, which of `ids` these are.
    """

    axes: Mapping[int, int]
    rows: Mapping[int, int]
    ids: Sequence[Any]

    @property
    def kind(self) -> tuple[Any, ...]:
        """What a module rests on, beside the shapes of all arrays."""
        return tuple(self.axes.items()), tuple(self.rows.items())


def check_segments(segments: Any, in_axes: Any = 0, rows_per_example: int = 1) -> None:
    """Raises TypeError or ValueError where `segments` is no function, or not alone."""
    if segments is None:
        return
    if not callable(segments):
        raise TypeError(f"segments is {segments!r}; {RETURNS}")
    if in_axes != 0 or rows_per_example != 1:
        raise ValueError(NOT_ALONE.format("in_axes" if in_axes != 0 else "rows_per_example"))


def segments_among(
    returned: Any, given: Mapping[Key, Any], batch: Sequence[Key], fun: Function
) -> Segments:
    """What `segments` has returned, of the leaves of the arguments; `batch` and `fun` as in
    `leaf_axes`.

    Raises ValueError or TypeError.
    """
    axes: dict[int, int] = {}
    rows: dict[int, int] = {}
    ids: list[Any] = []
    said = said_of_arrays("segments", returned, given, batch, fun)
    for number, (name, entry, leaf) in enumerate(said):
        if entry is None or isinstance(entry, int):
            axis = from_front("segments", entry, leaf, name)
            axes |= {} if axis is None else {number: axis}
        else:
            own = _checked(entry, leaf, name)
            known = next((k for k, other in enumerate(ids) if other is own), len(ids))
            ids += [] if known < len(ids) else [own]
            rows[number] = known
    if not rows and not axes:
        raise ValueError(f"segments names no ids, and no axis; {RETURNS}")
    check_sizes(said, axes)
    return Segments(axes, rows, list(map(_as_int32, ids)))


def _as_int32(ids: Any) -> Any:
    """Ids in 32 bits, and out of range if they are that."""
    kind = jnp.iinfo(kind_of(ids).dtype)
    wanted = jnp.iinfo(jnp.int32)
    low, high = max(kind.min, -1), min(kind.max, wanted.max)
    return ids if kind.dtype == wanted.dtype else jnp.clip(ids, low, high).astype(jnp.int32)


def _checked(ids: Any, leaf: Any, name: str) -> Any:
    """Ids of a leaf's rows, as an array."""
    if not is_array(ids) or not jnp.issubdtype(kind_of(ids).dtype, jnp.integer):
        raise TypeError(f"segments has {ids!r} for {name}; it is {INTEGERS}")
    shape, own = kind_of(leaf).shape, kind_of(ids).shape
    if len(own) != 1 or shape[:1] != own:
        raise ValueError(
            f"segments has ids {list(own)} for {name}, which has shape {list(shape)}; there is one "
            "for each row of the first axis: reshape rows that lie along several axes to one"
        )
    if own[0] < 2:
        raise ValueError(ONE_ROW.format(name))
    return ids


def check_ids(ids: Sequence[Any], size: int) -> None:
    """Raises ValueError where ids that can be read are no example's."""
    for each in ids:
        if isinstance(each, Tracer) or not getattr(each, "is_fully_addressable", True):
            continue
        own = np.asarray(each)
        wrong = own[(own < 0) | (own >= size)]
        if wrong.size:
            raise ValueError(
                f"segments holds the id {wrong[0]}, and there are {size} examples: ids are 0 to "
                f"{size - 1}; give padding an example of its own, which is_real leaves out"
            )


def ragged_ports(arguments: Sequence[Port], segments: Any) -> dict[int, tuple[int, int]] | None:
    """The first axis and the number of the ids of each argument with rows, from names or positions.

    Raises TypeError or ValueError.
    """
    if segments is not None and not isinstance(segments, Mapping):
        raise TypeError(
            f"segments is {segments!r}; of a module it is a dict from arguments to the argument "
            "with the ids of their rows, such as {'nodes': 'node_ids'}"
        )
    found: dict[int, tuple[int, int]] = {}
    for key, named in (segments or {}).items():
        ids = port_number(arguments, named, "argument")
        for number in picked_ports(arguments, key, "argument"):
            _check_rows(arguments[number], arguments[ids])
            found[number] = 0, ids
    return None if segments is None else found


def _check_rows(rows: Port, ids: Port) -> None:
    if ids.dtype.name not in ("int32", "int64") or [*rows.shape[:1]] != [*ids.shape]:
        raise ValueError(
            f"the ids of {rows.name} {list(rows.shape)} are {ids.name}, {ids.dtype}"
            f"{list(ids.shape)}; there is one integer, int32 or int64, for each of its rows"
        )
    if ids.shape[0] < 2:
        raise ValueError(ONE_ROW.format(f"argument {rows.name}"))
