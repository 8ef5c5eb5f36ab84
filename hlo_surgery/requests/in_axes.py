"""Example axes: which arguments hold the batch, and `in_axes`, as in `jax.vmap`, leaf by leaf."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
from jax.tree_util import keystr

from hlo_surgery.public_function import Function
from hlo_surgery.requests.leaves import is_array, kind_of
from hlo_surgery.requests.options import positive_integer
from hlo_surgery.wording import listing

# How many different numbers of examples a message names.
SIZES = 3


# A batch argument, by its position or its name.
Key = int | str


# An array: what its user calls it, what a keyword says of it, and it.
Said = tuple[str, Any, Any]


def leaf_axes(
    given: Mapping[Key, Any],
    batch: Sequence[Key],
    in_axes: Any,
    rows_per_example: int,
    fun: Function,
) -> dict[int, int]:
    """Example axis by number of the array among the leaves of the arguments.

    `batch`: the arguments with examples (see `batch_keys`); by `fun` one is found that was given by
    name in place of its position, or the other way round. Raises ValueError or TypeError.
    """
    said = said_of_arrays("in_axes", in_axes, given, batch, fun)
    axes = [from_front("in_axes", axis, leaf, name) for name, axis, leaf in said]
    axes_by_number = {i: axis for i, axis in enumerate(axes) if axis is not None}
    if batch and not axes_by_number:
        raise ValueError(
            "in_axes names no axis of any array in the batch arguments; pass the axis of the "
            "examples, such as 0, for at least one"
        )
    check_sizes(said, axes_by_number, rows_per_example)
    return axes_by_number


def said_of_arrays(
    keyword: str,
    said: Any,
    given: Mapping[Key, Any],
    batch: Sequence[Key],
    fun: Function,
) -> list[Said]:
    """What `keyword` says of each array, a pytree prefix for each batch argument; None of arrays of
    other arguments.
    """
    names = _names_of(fun)
    chosen = [_given_key(key, given, names) for key in batch]
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"the batch arguments name one twice: {list(batch)}")
    entries = dict(zip(chosen, _one_for_each(keyword, said, chosen), strict=True))
    told: dict[Key, list[Any]] = {}
    for key, entry in entries.items():
        found = axes_by_leaf(keyword, entry, given[key], "the batch argument it goes with")
        told[key] = [own for own, _, leaf in found if is_array(leaf)]
    arrays = {key: named_arrays({key: argument}) for key, argument in given.items()}
    return [
        (name, own, leaf)
        for key, named in arrays.items()
        for (name, leaf), own in zip(named, told.get(key, [None] * len(named)), strict=True)
    ]


def arguments_by_key(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[Key, Any]:
    """Each argument by its position or name, in the order of the leaves of (args, kwargs)."""
    return {**dict(enumerate(args)), **dict(sorted(kwargs.items()))}


def named_arrays(given: Mapping[Key, Any]) -> list[tuple[str, Any]]:
    """The arrays in arguments, each with what its user calls it.

    >>> named_arrays({1: {"labels": 2.0, "name": "digits"}})
    [("argument 1['labels']", 2.0)]
    """
    return [
        (f"argument {key}{keystr(path)}", leaf)
        for key, value in given.items()
        for path, leaf in jax.tree.leaves_with_path(value)
        if is_array(leaf)
    ]


def check_sizes(said: Sequence[Said], axes: Mapping[int, int], rows_per_example: int = 1) -> None:
    """Raises ValueError where the arguments hold different numbers of examples."""
    sizes = {said[i][0]: kind_of(said[i][2]).shape[axis] for i, axis in axes.items()}
    if sizes:
        help = (
            "leave out of batch_argnums what holds no examples, or give it None in in_axes; of "
            "graphs and other rows that ids tell apart, pass segments=... (docs/guides/segments.md)"
        )
        example_count(sizes, rows_per_example, f"; {help}")


def example_count(sizes: Mapping[str, int], rows_per_example: int, help: str = "") -> int:
    """B, from the sizes of the arguments along their example axes: B times as many rows, or B.

    Raises ValueError where they do not agree, TypeError where rows_per_example is no number.

    >>> example_count({"pairs": 6, "weights": 3}, 2)
    3
    """
    rows = positive_integer("rows_per_example", rows_per_example, "how many rows an example has")
    most = max(sizes.values())
    if most % rows:
        raise ValueError(
            f"the batch arguments have {most} rows along their axes, which are no whole examples "
            f"of {rows} rows each; rows_per_example must divide them"
        )
    count = most // rows
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


def batch_keys(
    argnums: int | Sequence[int] | None, argnames: str | Sequence[str] | None = None
) -> list[Key]:
    """The batch arguments by position, and then by name; where none is given, that at position 1.

    Raises TypeError for what is no position, or no name.
    """
    if argnums is None:
        argnums = 1 if argnames is None else ()
    names = [argnames] if isinstance(argnames, str) else list(argnames or ())
    for name in names:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"batch_argnames holds {name!r}; pass the name of an argument")
    chosen = list(argnums) if isinstance(argnums, Iterable) else [argnums]
    for number in chosen:
        if type(number) is not int:
            raise TypeError(
                f"batch_argnums holds {number!r}; pass the position of an argument, or several"
            )
    return [*chosen, *names]


def _given_key(key: Key, given: Mapping[Key, Any], names: Sequence[str]) -> Key:
    """The argument as it was given, by position or by name. Raises ValueError where it was not."""
    keywords = [way for way in given if isinstance(way, str)]
    count, other = len(given) - len(keywords), key
    if isinstance(key, str):
        other = names.index(key) if key in names else key
    elif 0 <= key < len(names):
        other = names[key]
    for way in (key, other):
        if isinstance(way, int) and -count <= way < 0:
            return way % count
        if way in given:
            return way
    keyword = "batch_argnames" if isinstance(key, str) else "batch_argnums"
    raise ValueError(
        f"{keyword} names argument {key!r}; {count} positional ones were given, and by name "
        f"(batch_argnames) {', '.join(keywords) or 'none'}"
    )


def _names_of(fun: Function) -> list[str]:
    """A function's positional arguments, as far as Python can tell."""
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


def _one_for_each(name: str, in_axes: Any, chosen: Sequence[Key]) -> list[Any]:
    """One entry of what is called so for each batch argument."""
    if type(in_axes) not in (tuple, list):
        return [in_axes] * len(chosen)
    if len(in_axes) != len(chosen):
        raise ValueError(
            f"{name} has {len(in_axes)} entries for {len(chosen)} batch arguments "
            f"({', '.join(map(str, chosen))}); pass one for each, or say by batch_argnums or "
            "batch_argnames which they are"
        )
    return list(in_axes)


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
    if type(axis) is not int:
        raise TypeError(
            f"{keyword} holds {axis!r}; an example axis is an integer, or None for a leaf without "
            "examples"
        )
    shape = kind_of(leaf).shape
    if not -len(shape) <= axis < len(shape):
        raise ValueError(
            f"{name} has shape {shape}: there is no example axis {axis}; give a leaf without "
            f"examples None in {keyword}, which is a pytree prefix"
        )
    return axis % len(shape)


def _is_none(x: Any) -> bool:
    return x is None
