"""Exact statistics of per-example gradients, by rewriting a minibatch gradient's StableHLO.

Most programs need six names: `grad`, `norms`, `second_moment`, `clipped_mean`, `noise_scale` and
`explain`. What is for dumped modules is in `modules`, for devices and costs in `targets`.
"""

import ast
from importlib import import_module
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
    raise AttributeError(f"module 'hlo_surgery' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What can be had: help() asks for all of it."""
    missing = [name for name, needed in _NEEDED.items() if not find_spec(needed)]
    return sorted({*_HOMES, "__doc__", "__file__", "__version__"}.difference(missing))
