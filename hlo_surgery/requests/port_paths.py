"""Port paths: names of arguments and outputs, which JAX makes of places in pytrees, as trees again.

The name `params['layers'][0].bias` has the path `params`, `['layers']`, `[0]`, `.bias`; an output's
begins with "".
"""

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hlo_surgery.module import Port

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


def picked_ports(ports: Sequence[Port], key: str | int, kind: str) -> list[int]:
    """A port by name or position, or all of a tree by the name of that."""
    names = [port.name for port in ports]
    tree = below(key, names) if isinstance(key, str) and key not in names else []
    return tree or [port_number(ports, key, kind)]


def port_number(ports: Sequence[Port], key: str | int, kind: str) -> int:
    """The position of the one port that a name, or a position, is of."""
    names = [port.name for port in ports]
    if isinstance(key, str):
        if names.count(key) != 1:
            how = "no" if key not in names else "more than one"
            there = f"{', '.join(names)}{_left_out(names, kind)}"
            way = f"; give its position, such as {names.index(key)}" if key in names else ""
            raise ValueError(f"{how} {kind} is named {key!r}; there are {there}{way}")
        return names.index(key)
    number = as_integer(f"the position of the {kind}", key)
    if not -len(ports) <= number < len(ports):
        raise ValueError(f"there is no {kind} {number}; the module has {len(ports)}")
    return number % len(ports)


def as_integer(what: str, number: Any) -> int:
    """Raises TypeError for what is none."""
    try:
        return operator.index(number)
    except TypeError:
        raise TypeError(f"{what} is {number!r}; it is an integer") from None


def _left_out(names: Sequence[str], kind: str) -> str:
    """What to do where a dump has lost the names that its ports had, or arguments."""
    if all(re.fullmatch(r"arg\d+", name) for name in names):
        return "; dump the module with as_text(debug_info=True), which keeps the names"
    if kind != "argument":
        return ""
    return "; one that nothing uses is left out by jax.jit, unless given keep_unused=True"
