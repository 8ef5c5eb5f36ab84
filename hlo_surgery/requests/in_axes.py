"""Example axes of arguments: `batch_argnums` and `in_axes`, as in `jax.vmap`, leaf by leaf."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax

from hlo_surgery.planning.plan import listing
from hlo_surgery.requests.leaves import is_array, kind_of

# How many different numbers of examples a message names.
SIZES = 3


def leaf_axes(
    args: Sequence[Any],
    kwargs: Any,
    batch_argnums: int | Sequence[int],
    in_axes: Any,
    rows_per_example: int = 1,
) -> dict[int, int]:
    """Example axis by number of the array among the leaves of (args, kwargs). Raises ValueError or
    TypeError.
    """
    axes: list[list[int | None]] = [[None] * len(jax.tree.leaves(arg)) for arg in args]
    chosen = argument_entries("in_axes", in_axes, args, kwargs, batch_argnums)
    for number, in_axis in chosen.items():
        axes[number] = _argument_axes(in_axis, args[number], number)
    flat = [axis for part in axes for axis in part] + [None] * len(jax.tree.leaves(kwargs))
    pairs = zip(flat, jax.tree.leaves((args, kwargs)), strict=True)
    arrays = [axis for axis, leaf in pairs if is_array(leaf)]
    axes_by_number = {i: axis for i, axis in enumerate(arrays) if axis is not None}
    if chosen and not axes_by_number:
        raise ValueError(
            "in_axes names no axis of any array in the batch arguments; pass the axis of the "
            "examples, such as 0, for at least one"
        )
    _check_sizes(args, axes_by_number, rows_per_example)
    return axes_by_number


def argument_entries(
    name: str, entries: Any, args: Sequence[Any], kwargs: Any, batch_argnums: int | Sequence[int]
) -> dict[int, Any]:
    """The entry for each batch argument, by its position; `entries` are called so."""
    chosen = _batch_numbers(batch_argnums, len(args), list(kwargs))
    return dict(zip(chosen, _one_for_each(name, entries, chosen), strict=True))


def _check_sizes(args: Sequence[Any], axes: Mapping[int, int], rows_per_example: int) -> None:
    """Raises ValueError where the arguments hold different numbers of examples."""
    leaves = [(path, x) for path, x in jax.tree.leaves_with_path(tuple(args)) if is_array(x)]
    sizes: dict[str, int] = {}
    for number, axis in axes.items():
        (argument, *within), leaf = leaves[number]
        name = f"argument {argument.idx}{jax.tree_util.keystr(tuple(within))}"
        sizes[name] = kind_of(leaf).shape[axis]
    if sizes:
        help = "leave out of batch_argnums what holds no examples, or give it None in in_axes"
        example_count(sizes, rows_per_example, f"; {help}")


def example_count(sizes: Mapping[str, int], rows_per_example: int, help: str = "") -> int:
    """B, from the sizes of the arguments along their example axes: B times as many rows, or B.

    Raises ValueError where they do not agree, TypeError where rows_per_example is no number.

    >>> example_count({"pairs": 6, "weights": 3}, 2)
    3
    """
    if isinstance(rows_per_example, bool) or not isinstance(rows_per_example, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"rows_per_example is {rows_per_example!r}; it is an integer")
    if rows_per_example < 1:
        raise ValueError(f"rows_per_example is {rows_per_example}; each example has a row at least")
    most = max(sizes.values())
    if most % rows_per_example:
        raise ValueError(
            f"the batch arguments have {most} rows along their axes, which are no examples of "
            f"{rows_per_example}; rows_per_example must divide them"
        )
    count = most // rows_per_example
    if not set(sizes.values()) <= {count, most}:
        raise ValueError(different_sizes(sizes) + help)
    return count


def different_sizes(sizes: Mapping[str, int]) -> str:
    """That these arguments hold different numbers of examples, and for some numbers which do."""
    numbers = list(dict.fromkeys(sizes.values()))
    each = [f"{n} in {listing([a for a in sizes if sizes[a] == n])}" for n in numbers[:SIZES]]
    more = f"; and {len(numbers) - SIZES} more" if len(numbers) > SIZES else ""
    return (
        "the batch arguments have different numbers of examples along their axes: "
        f"{'; '.join(each)}{more}"
    )


def batch_positions(numbers: int | Sequence[int]) -> list[int]:
    """The numbers of the batch arguments as they were given. Raises TypeError for what is none."""
    chosen = list(numbers) if isinstance(numbers, Iterable) else [numbers]
    for number in chosen:
        if isinstance(number, bool) or not isinstance(number, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"batch_argnums holds {number!r}; pass the position of an argument, or several"
            )
    return chosen


def _batch_numbers(numbers: int | Sequence[int], count: int, keywords: Sequence[str]) -> list[int]:
    """The positions of the batch arguments, checked."""
    chosen = batch_positions(numbers)
    for number in chosen:
        if not -count <= number < count:
            how = f"; pass it by position, not as {', '.join(keywords)}=" if keywords else ""
            raise ValueError(
                f"batch_argnums names argument {number}; {count} positional ones were given{how}"
            )
    positions = [number % count for number in chosen]
    if len(set(positions)) < len(positions):
        raise ValueError(f"batch_argnums names an argument twice: {numbers}")
    return positions


def _one_for_each(name: str, in_axes: Any, chosen: Sequence[int]) -> list[Any]:
    """One entry of in_axes for each batch argument."""
    if type(in_axes) in (tuple, list) and len(in_axes) != len(chosen):
        raise ValueError(
            f"{name} has {len(in_axes)} entries for {len(chosen)} batch arguments; pass one for "
            "each"
        )
    return list(in_axes) if type(in_axes) in (tuple, list) else [in_axes] * len(chosen)


def _argument_axes(in_axis: Any, argument: Any, number: int) -> list[int | None]:
    """Each leaf's example axis in a batch argument, from a pytree prefix, from the front."""
    found = axes_by_leaf("in_axes", in_axis, argument, "the batch argument it goes with")
    return [
        from_front("in_axes", axis, leaf, f"argument {number}{jax.tree_util.keystr(path)}")
        for axis, path, leaf in found
    ]


def axes_by_leaf(name: str, axes: Any, tree: Any, what: str) -> list[tuple[Any, Any, Any]]:
    """The entry of a pytree prefix for each leaf that is not None, with the leaf's path, and it.

    Raises ValueError where `axes`, called so, is no prefix of the tree, which is `what`.
    """
    try:
        known = jax.tree.broadcast(axes, tree, is_leaf=_is_none)
    except ValueError as error:
        raise ValueError(f"{name} is no prefix of {what}: {error}") from None
    pairs = zip(
        jax.tree.leaves(known, is_leaf=_is_none),
        jax.tree.leaves_with_path(tree, is_leaf=_is_none),
        strict=True,
    )
    return [(axis, path, leaf) for axis, (path, leaf) in pairs if leaf is not None]


def from_front(keyword: str, axis: Any, leaf: Any, name: str) -> int | None:
    """The axis that `keyword` has for an array, from the front; None where there is none."""
    if axis is None or not is_array(leaf):
        return None
    if not isinstance(axis, int):
        raise TypeError(
            f"{keyword} holds {axis!r}; an example axis is an integer, or None for a leaf without "
            "examples"
        )
    rank = len(kind_of(leaf).shape)
    if not -rank <= axis < rank:
        raise ValueError(f"{name} has shape {kind_of(leaf).shape}: there is no example axis {axis}")
    return axis % rank


def _is_none(x: Any) -> bool:
    return x is None
