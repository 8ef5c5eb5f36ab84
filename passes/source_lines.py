"""Source lines: given an op's location, the user's file and line. Read from typed locations, never from text."""

from typing import Any, cast

from hlo_surgery import mlir
from hlo_surgery.mlir import Operation, ir

Frame = tuple[str, int]
INLINED = "inlined"


def source_line(op: Operation) -> str:
    """`model.py:41` of the user's program, or the line of the op in the module where no debug info is left."""
    frames = _frames(cast(Any, op.location))
    if not frames:
        return "module (no debug info)"
    own = [f for f in frames if not _is_installed(f[0])]
    path, line = (own or frames)[0]
    return f"{'module' if path == '-' else path}:{line}"


def inlined_location(op: Operation, call: Operation) -> ir.Location:
    """The location of an op that replaces a call, which remembers both."""
    with mlir.context():
        return ir.Location.name(INLINED, ir.Location.callsite(op.location, [call.location]))


def _frames(location: Any) -> list[Frame]:
    """File and line of each frame, innermost first."""
    match location:
        case ir.FileLineColLoc():
            return [(str(location.filename), int(location.start_line))]
        case ir.NameLoc():
            inner = location.child_loc
            return _frames_inlined(inner) if location.name_str == INLINED else _frames(inner)
        case ir.CallSiteLoc():
            return _frames(location.callee) + _frames(location.caller)
        case ir.FusedLoc():
            return [frame for inner in location.locations for frame in _frames(inner)]
        case _:
            return []


def _frames_inlined(location: Any) -> list[Frame]:
    """The callee's frames where they lead to this call; else the call's.

    JAX traces a jitted function once, and its ops keep the frames of the first call for all later ones.
    """
    callee, call = _frames(location.callee), _frames(location.caller)
    leads_here = any(callee[j:] == call[: len(callee) - j] for j in range(len(callee)))
    return callee if leads_here or not call else call


def _is_installed(path: str) -> bool:
    """Whether the file belongs to an installed library, so that a frame of the user's own says more."""
    return "site-packages" in path or "dist-packages" in path
