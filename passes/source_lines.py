"""Source lines: given an op's location, the user's file and line. Read from typed locations, never from text."""

from collections.abc import Iterator
from typing import Any, cast

from hlo_surgery.mlir import Operation, ir


def source_line(op: Operation) -> str:
    """`model.py:41` of the user's program, or the line of the op in the module where no debug info is left."""
    frames = list(_frames(cast(Any, op.location)))
    own = [f for f in frames if not _is_installed(f[0])]
    if not frames:
        return "module (no debug info)"
    path, line = (own or frames)[0]
    return f"{path}:{line}"


def _frames(location: Any) -> Iterator[tuple[str, int]]:
    """File and line of each frame, innermost first."""
    match location:
        case ir.FileLineColLoc():
            yield str(location.filename), int(location.start_line)
        case ir.NameLoc():
            yield from _frames(location.child_loc)
        case ir.CallSiteLoc():
            yield from _frames(location.callee)
            yield from _frames(location.caller)
        case ir.FusedLoc():
            for inner in location.locations:
                yield from _frames(inner)
        case _:
            return


def _is_installed(path: str) -> bool:
    """Whether the file belongs to an installed library, so that a frame of the user's own says more."""
    return "site-packages" in path or "dist-packages" in path
