"""Port paths: names of arguments and outputs, which JAX makes of places in pytrees, as trees again.

The name `params['layers'][0].bias` has the path `params`, `['layers']`, `[0]`, `.bias`; an output's
begins with "".
"""

import re
from collections.abc import Iterable, Mapping

Path = tuple[str, ...]
KEY = re.compile(r"""\['(?:[^'\\]|\\.)*'\]|\["(?:[^"\\]|\\.)*"\]|\[[^][]*\]|\.[^][.]+""")


def path_of(name: str) -> Path:
    """The root of a name, and the keys behind it; a name of no such form is a root of its own.

    >>> path_of("params['a.b'][0].w")
    ('params', "['a.b']", '[0]', '.w')
    """
    root = re.match(r"[^][.]*", name)
    keys = KEY.findall(name, root.end() if root else 0)
    return (name[: root.end()], *keys) if root and "".join(keys) == name[root.end() :] else (name,)


def output_path(name: str) -> Path:
    """The path of an output; JAX calls the only one of a function `result`."""
    return ("",) if name == "result" else path_of(name)


def subtrees(paths: Mapping[int, Path]) -> dict[Path, dict[Path, int]]:
    """By the path of each node, the numbers of the leaves below it by their paths from there."""
    found: dict[Path, dict[Path, int]] = {}
    for number, path in paths.items():
        for depth in range(1, len(path) + 1):
            found.setdefault(path[:depth], {})[path[depth:]] = number
    return found


def below(name: str, names: Iterable[str]) -> list[int]:
    """The positions of those names that are in the tree called `name`.

    >>> below("[1]", ["[0]", "[1]['b']", "[1]['w']", "[10]"])
    [1, 2]
    """
    node = output_path(name)
    return [i for i, other in enumerate(names) if output_path(other)[: len(node)] == node]
