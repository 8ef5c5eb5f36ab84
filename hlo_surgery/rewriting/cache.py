"""Cache: rewritten modules on disk, so that a job that starts again rewrites nothing.

    <jax_compilation_cache_dir>/hlo_surgery/<digest>      bytecode of a module, and its plan

It is on where JAX's cache of compiled programs is. The digest is of the module with its locations,
the request, JAX's options, and the versions of JAX and of this package, with its source. A request
that holds a function or class of somebody else has none, as nothing tells whether these changed.

As JAX's own, such a directory is trusted: what lies in it is run.
"""

import hashlib
import io
import pickle
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import jax

from hlo_surgery.dumps import write_atomically
from hlo_surgery.passes.ir import mlir
from hlo_surgery.plan import Plan
from hlo_surgery.requests.leaves import jax_options

# What a version tells of: code that does not change while that stays the same.
OWN = __name__.partition(".")[0]
VERSIONED = {OWN, "jax", "jaxlib", "numpy", "ml_dtypes", *sys.stdlib_module_names}
Made = tuple[mlir.Module, Plan]
Held = TypeVar("Held")


def cached(code: mlir.Module, asked: Sequence[Any], make: Callable[[mlir.Module], Plan]) -> Made:
    """A copy of a module as `make` rewrites it, with what it returns; from the cache if it is on
    and has what was made of this module where this was asked.
    """
    path = _path(code, asked)
    held = path and _read(path, lambda found: (mlir.parse(found[0]), found[1]))
    if held:
        return held
    made = mlir.clone(code)
    plan = make(made)
    if path:
        _write(path, (mlir.to_bytecode(made), plan))
    return made, plan


def remembered(
    code: mlir.Module, asked: Sequence[Any], measure: Callable[[], dict[str, float]]
) -> dict[str, float]:
    """What was measured of a module where this was asked; measured now, and kept, if the cache has
    nothing of it.
    """
    path = _path(code, [*asked, "measured"])
    held = path and _read(path, dict[str, float])
    if held:
        return held
    found = measure()
    if path:
        _write(path, found)
    return found


def _write(path: Path, held: Any) -> None:
    """Keep what was made, with a warning where that fails, as JAX's cache has it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, pickle.dumps(held))
    except OSError as problem:
        warnings.warn(f"what was rewritten is not kept: {problem}", stacklevel=2)


def _read(path: Path, made_of: Callable[[Any], Held]) -> Held | None:
    """What is made of a file's content; None where there is none, or it is damaged."""
    try:
        return made_of(pickle.loads(path.read_bytes()))
    except Exception:
        return None


def _path(code: mlir.Module, asked: Sequence[Any]) -> Path | None:
    """Where the cache has what is made of a module; None where it is off, or not on this disk."""
    config: Any = jax.config
    folder = config.jax_enable_compilation_cache and config.jax_compilation_cache_dir
    if not folder or "://" in folder:
        return None
    told = _told([*asked, _options()])
    if told is None:
        return None
    whole = hashlib.sha256(mlir.to_bytecode(code) + b"\0" + told + b"\0" + _versions())
    return Path(folder, OWN, whole.hexdigest())


def _options() -> list[str]:
    """What JAX's options are, but where it keeps things."""
    return [f"{name}={own!r}" for name, own in sorted(jax_options().items()) if "cache" not in name]


@cache
def _versions() -> bytes:
    """Of JAX and this package, with its source, as it may be installed to be edited."""
    source = hashlib.sha256()
    for room in (Path(__file__).parents[1], Path(mlir.__file__).resolve().parents[1]):
        for path in sorted(room.rglob("*.py")):
            source.update(path.read_bytes())
    return f"{sys.version} {jax.__version__} {version('jaxlib')} {source.hexdigest()}".encode()


def _told(asked: Any) -> bytes | None:
    """All that decides what a request makes, as bytes; None where some of it cannot be told."""
    buffer = io.BytesIO()
    writer = _Writer(buffer)
    # Without a memo, so that what is equal is told alike, whether it is one object or two.
    writer.fast = True
    try:
        writer.dump(asked)
    except (pickle.PicklingError, TypeError, ValueError, AttributeError, RecursionError):
        return None
    return buffer.getvalue()


class _Writer(pickle.Pickler):
    """Functions and classes by their names and what they close over."""

    def reducer_override(self, obj: Any) -> Any:
        """How an object is written. PicklingError where its code may change unseen."""
        if not (isinstance(obj, type | FunctionType) or hasattr(obj, "__wrapped__")):
            return NotImplemented
        if not {of.partition(".")[0] for of in _modules(obj)} <= VERSIONED:
            raise pickle.PicklingError(f"nothing tells whether {obj} has changed")
        # It is never read again: any built-in function would do.
        return repr, (_name(obj) if isinstance(obj, type) else _parts(obj),)


def _modules(obj: Any) -> list[str]:
    """What it says that it is of, and where its code is, which `functools.wraps` hides."""
    own = [obj.__globals__.get("__name__", "")] if isinstance(obj, FunctionType) else []
    return [obj.__module__, *own]


def _name(obj: Any) -> str:
    return f"{obj.__module__}.{obj.__qualname__}"


def _parts(function: Any) -> list[Any]:
    """What tells a function of a known version from any other."""
    if not isinstance(function, FunctionType):
        return [_name(function), function.__wrapped__]
    code, cells = function.__code__, function.__closure__ or ()
    held = [cell.cell_contents for cell in cells]
    return [
        _name(function),
        list(code.co_positions()),
        held,
        function.__defaults__,
        function.__kwdefaults__,
    ]
