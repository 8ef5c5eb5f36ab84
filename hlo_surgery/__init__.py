"""Exact statistics of per-example gradients, by rewriting a minibatch gradient's StableHLO.

Most programs need six names: `grad`, `norms`, `second_moment`, `clipped_mean`, `noise_scale` and
`explain`. What is for dumped modules is in `modules`, for devices and costs in `targets`.
"""

import ast
import re
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from inspect import isfunction
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

# In a checkout the compiler lies beside the product: Python finds it there, too, when it is run at
# the top of one and so takes this folder for what is installed.
if not (Path(__file__).parent / "passes").exists():
    __path__.append(str(Path(__file__).parents[1]))

from hlo_surgery.public_function import public

OLDEST = (0, 10, 1)


def require_jax(versions: dict[str, str] | None = None) -> None:
    """Raise ImportError, in one line, where `jax` or `jaxlib` is too old: else it would first fail
    far inside. `versions`: by default those installed.

    >>> require_jax({"jax": "0.10.1", "jaxlib": "0.12.0.dev20261101"})
    >>> require_jax({"jax": "0.10.0", "jaxlib": "0.10.1"})
    Traceback (most recent call last):
    ImportError: hlo-surgery needs jax 0.10.1 or later, and found 0.10.0: pip install -U jax jaxlib
    """
    for name, found in (versions or {name: version(name) for name in ("jax", "jaxlib")}).items():
        if tuple(map(int, re.findall(r"\d+", found)[:3])) < OLDEST:
            raise ImportError(
                f"hlo-surgery needs {name} {'.'.join(map(str, OLDEST))} or later, and found "
                f"{found}: pip install -U jax jaxlib"
            )


# Before anything imports a JAX that is too old.
require_jax()

# What this package gives, by the module that has it, as the stub beside tells type checkers. Each
# is imported when it is first asked for: a command's help needs no JAX.
_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text())
_HOMES = {
    alias.name: str(node.module)
    for node in _STUB.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
_NEEDED = {"optimizers": "optax", "torch": "torch"}
_ROOMS = {name for name, home in _HOMES.items() if home == __name__}
__all__ = sorted(_HOMES.keys() - _ROOMS)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """A name of this package, or a room of it, imported when it is first asked for."""
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    if name in _HOMES:
        found = getattr(import_module(_HOMES[name]), name)
        globals()[name] = found
        return public(found) if isfunction(found) else found
    close = get_close_matches(name, _HOMES, n=1, cutoff=0.75)
    meant = f"; did you mean {close[0]}?" if close else ""
    raise AttributeError(f"module 'hlo_surgery' has no attribute {name!r}{meant}")


def __dir__() -> list[str]:
    """What can be had: help() asks for all of it."""
    missing = [name for name, needed in _NEEDED.items() if not find_spec(needed)]
    return sorted({*_HOMES, "__doc__", "__file__", "__version__"}.difference(missing))
