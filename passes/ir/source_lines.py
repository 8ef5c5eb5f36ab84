"""Source lines: given an op's location, the user's file and line. Read from typed locations, never
from text.
"""

from functools import cache
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, cast

from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.errors import MIXING_HELP, Reason
from hlo_surgery.passes.ir.mlir import Operation, ir

Frame = tuple[str, int]
INLINED = "inlined"
# How JAX names the functions that are a loop's steps.
STEP = "closed_call"
PACKAGES = ("site-packages", "dist-packages")
# What this library puts around a user's own function, which is no line of anybody's.
WRAPPERS = (("hlo_surgery", "declaring.py"), ("hlo_surgery", "torch"))
# Where Keras calls JAX's ops, which says nothing of the layer that did.
DISPATCH = (("keras", "src", "backend"), ("keras", "src", "ops"))


def source_line(op: Operation) -> str:
    """The user's `model.py:41`, or the op's line in the module where no debug info is left."""
    frames = _frames(cast(Any, op.location))
    if not frames:
        return "module (no debug info)"
    own = [f for f in frames if not _is_installed(f[0])]
    path, line = (own or frames)[0]
    return f"{'module' if path == '-' else path}:{line}"


def reason_at(op: Operation, why: str, help: str = MIXING_HELP) -> Reason:
    """Why not, at the op's line, and at that of the library that was called there."""
    return Reason(why, op.name, source_line(op), help, _library_line(op))


def _library_line(op: Operation) -> str:
    """`flax/linen/normalization.py:112`, where an installed library's line made the op; else ""."""
    frames = _frames(cast(Any, op.location))
    installed = list(takewhile(lambda frame: _is_installed(frame[0]), frames))
    if len(installed) in (0, len(frames)):
        return ""
    path, line = next((f for f in installed if not _is_dispatch(f[0])), installed[0])
    parts = Path(path).parts
    within = max(i for i, part in enumerate(parts) if part in PACKAGES)
    return f"{'/'.join(parts[within + 1 :])}:{line}"


def _is_dispatch(path: str) -> bool:
    """Whether a library's file only calls an array library's op, whichever that is."""
    parts = Path(path).parts
    return any(folder == parts[i : i + 3] for folder in DISPATCH for i in range(len(parts)))


def inlined_location(op: Operation, call: Operation) -> ir.Location:
    """The location of an op that replaces a call, which remembers both. What JAX calls for each
    step of a loop is written at one place, and its ops keep that.
    """
    if str(cast(Any, call.attributes["callee"]).value).startswith(STEP) and _frames(op.location):
        return op.location
    with mlir.context():
        return ir.Location.name(INLINED, ir.Location.callsite(op.location, [call.location]))


def _frames(location: Any) -> list[Frame]:
    """File and line of each frame, innermost first."""
    read: list[Frame] = []
    while isinstance(location, ir.CallSiteLoc):
        read += _frames(location.callee)
        location = location.caller
    match location:
        case ir.FileLineColLoc() if not _is_wrapper(str(location.filename)):
            return [*read, (str(location.filename), int(location.start_line))]
        case ir.NameLoc() if location.name_str == INLINED:
            inlined: Any = location.child_loc
            return [*read, *_of_inlined(_frames(inlined.callee), _frames(inlined.caller))]
        case ir.NameLoc():
            return [*read, *_frames(location.child_loc)]
        case ir.FusedLoc():
            return [*read, *(frame for each in location.locations for frame in _frames(each))]
        case _:
            return read


def _of_inlined(callee: list[Frame], call: list[Frame]) -> list[Frame]:
    """The callee's frames where they lead to this call; else the call's.

    JAX traces a jitted function once, and its ops keep the frames of the first call for all later
    ones.
    """
    meet = [j for j, frame in enumerate(callee) if frame in call[:1]]
    leads_here = any(callee[j:] == call[: len(callee) - j] for j in meet)
    return callee if leads_here or not call else call


# Asked for each op that is inlined, of a few files.
@cache
def _is_wrapper(path: str) -> bool:
    parts = Path(path).parts
    return any(pair in WRAPPERS for pair in pairwise(parts))


def _is_installed(path: str) -> bool:
    """Whether the file is an installed library's, so that the user's own frame says more."""
    return any(part in PACKAGES for part in Path(path).parts)
