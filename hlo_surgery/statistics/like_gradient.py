"""Trees that a user hands over and that are to be like the gradient: leaf by leaf, by their paths.

By the order of their leaves alone, a list would be taken for a dict of other keys.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.tree_util import keystr

IsLeaf = Callable[[Any], bool]
Path = tuple[Any, ...]


def leaves_like(gradient: Any, given: Any, what: str, is_leaf: IsLeaf | None = None) -> list[Any]:
    """The leaves of a tree in the order of the gradient's, each that at the same path.

    `gradient`: any pytree; of a dumped module a dict by the outputs' names, in their order.
    `what`: whose argument it is, for the ValueError where one has leaves that the other has not.

    >>> from collections import OrderedDict
    >>> leaves_like(OrderedDict(w=0, b=0), {"b": 1, "w": 2}, "f")
    [2, 1]
    """
    wanted = list(_by_path(gradient))
    found = _by_path(given, is_leaf)
    if set(wanted) != set(found):
        raise ValueError(
            f"what {what} takes must be like the gradient, of a dumped module a dict by the names "
            f"of its outputs: it has {_told(list(found))}, the gradient has {_told(wanted)}"
        )
    return [found[path] for path in wanted]


def _by_path(tree: Any, is_leaf: IsLeaf | None = None) -> dict[Path, Any]:
    pairs, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)
    return dict(pairs)


def _told(paths: list[Path]) -> str:
    shown = [keystr(path) or "one array" for path in paths[:4]]
    more = ["..."] if len(paths) > len(shown) else []
    return ", ".join([*shown, *more]) or "nothing"
