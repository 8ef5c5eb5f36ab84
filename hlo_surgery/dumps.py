"""Counted: how many there are of something, as an integer and in words.

Whole files: written whole or not at all, under the name asked for, with the mode as it was.

Unreadable sources: what is there instead of a StableHLO module, and how to dump one.

The module in a `jax.export` artifact of any age. JAX itself reads those of its last half year
only.

An artifact is a flatbuffer, to whose table JAX adds fields at the end alone; the module in it is a
StableHLO portable artifact, which stays readable for years.
"""

import contextlib
import operator
import os
import re
import stat
import tempfile
from pathlib import Path
from typing import Any, cast

import jax
from flatbuffers import encode, number_types, table
from jax import export

from hlo_surgery.passes.ir import mlir


def integer_of(value: Any) -> int | None:
    """Python's integer for one of any library, such as NumPy's; None for what is none.

    A truth value is none, and neither is a traced number, of which nothing is known yet.

    >>> import numpy as np
    >>> integer_of(np.int64(3)), integer_of(3.0), integer_of(True)
    (3, None, None)
    """
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def counted(number: int, noun: str) -> str:
    """The number with the noun, in the plural where it is not one.

    >>> counted(1, "statistic"), counted(4, "output")
    ('1 statistic', '4 outputs')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def write_atomically(path: Path, data: bytes) -> None:
    """Write a regular file whole or not at all; through a link, the file that it leads to. Its mode
    stays.

    Where the system has files without a name, none is left behind even if the process is killed.
    Raises OSError, which names this file and not the temporary one.
    """
    try:
        _write(path, data)
    except OSError as problem:
        why = problem.strerror or problem
        raise OSError(problem.errno, f"cannot write {path}: {why}") from problem


def _write(path: Path, data: bytes) -> None:
    target = Path(os.path.realpath(path))
    mode = _mode(target)
    nameless = _nameless(target.parent)
    if nameless is None:
        _under_temporary_name(target, data, mode)
        return
    with os.fdopen(nameless, "wb") as file:
        file.write(data)
        file.flush()
        os.fchmod(nameless, mode)
        _give_name(nameless, target)


def _mode(target: Path) -> int:
    """The mode of the file that is there, or that of a new one."""
    with contextlib.suppress(FileNotFoundError):
        return stat.S_IMODE(target.stat().st_mode)
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def _nameless(folder: Path) -> int | None:
    """A file without a name in a folder, or None where there is no such thing."""
    flag = getattr(os, "O_TMPFILE", None)
    if flag is None or not Path("/proc/self/fd").is_dir():
        return None
    try:
        return os.open(folder, flag | os.O_WRONLY, 0o600)
    except OSError:
        return None


def _give_name(nameless: int, target: Path) -> None:
    """A link replaces no file; a rename does, of a file that has another name for that moment."""
    try:
        _link(nameless, target)
    except FileExistsError:
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        _link(nameless, temporary)
        os.replace(temporary, target)


def _link(nameless: int, name: Path) -> None:
    # With a folder given, Python follows the link in /proc to the file itself; for an absolute path
    # it is not used.
    os.link(f"/proc/self/fd/{nameless}", name, src_dir_fd=nameless, follow_symlinks=True)


def _under_temporary_name(target: Path, data: bytes, mode: int) -> None:
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


DUMPING = (
    "dump one with jax.jit(f).lower(...).as_text(debug_info=True) or "
    "jax.export.export(...)(...).serialize()"
)
# Other texts, by what they begin with.
OTHERS = {
    r"HloModule\b": "it is HLO text, as compile().as_text() prints it",
    r"\{\s*lambda\b": "it is a jaxpr",
}


def no_file(text: str) -> str:
    """Of a line that is no module and names no file."""
    start = text if len(text) <= 80 else f"{text[:80]}..."
    return (
        f"there is no file {start!r}, and it is no MLIR text either; pass pathlib.Path(...) for a "
        "file"
    )


def unreadable_text(text: str, problem: str) -> str:
    """Of text that MLIR does not read, with its own words where nothing else can be told."""
    named = (what for begin, what in OTHERS.items() if re.match(rf"\s*{begin}", text))
    # MLIR goes on to list all the dialects there are.
    said = problem.split(" note: ")[0] or "not MLIR"
    cut = ", so that it may be cut short" if _ends_at(text, said) else ""
    return f"this is no StableHLO module: {next(named, said + cut)}; {DUMPING}"


def _ends_at(text: str, problem: str) -> bool:
    """Whether the problem is in the last of several lines."""
    lines = len(text.splitlines())
    return lines > 1 and f'"-":{lines}:' in problem


def unreadable_bytes() -> str:
    """Of what is neither text nor bytecode."""
    return (
        "this is no StableHLO module: neither text nor bytecode, nor a whole jax.export artifact; "
        f"perhaps it is cut short: {DUMPING}"
    )


def unreadable_bytecode(data: bytes) -> str:
    """MLIR promises nothing of bytecode across versions, and names internals in its errors."""
    producer = mlir.bytecode_producer(data)
    if mlir.is_portable_artifact(data):
        why = f"the portable artifact by {producer} is damaged or newer than this jaxlib"
    else:
        why = (
            f"this jaxlib cannot read the bytecode by {producer}, which differs between "
            "versions of MLIR, or the file is damaged or cut short"
        )
    return (
        f"this is no StableHLO module: {why}; dump text, a portable artifact or a jax.export "
        "artifact"
    )


# Places in JAX's table `Exported`.
VERSION_FIELD, MODULE_FIELD = 0, 13


def module_in_artifact(data: bytes) -> bytes | None:
    """The bytes of the module, or None where `data` is no such artifact, or a damaged one."""
    try:
        return export.deserialize(bytearray(data)).mlir_module_serialized
    except Exception:  # the reader of flatbuffers fails in its own ways on other files
        return _module_in_older(data)


def _module_in_older(data: bytes) -> bytes | None:
    present = export.export(jax.jit(lambda: 0), platforms=["cpu"])().serialize()
    try:
        if _version(data) >= _version(bytes(present)):
            return None
        exported = _table(data)
        offset = _offset(exported, MODULE_FIELD)
        first, length = exported.Vector(offset), exported.VectorLen(offset)
    except Exception:
        return None
    return data[first : first + length] if offset else None


def _version(data: bytes) -> int:
    exported = _table(data)
    offset = _offset(exported, VERSION_FIELD)
    return int(exported.Get(number_types.Uint16Flags, exported.Pos + offset)) if offset else 0


def _table(data: bytes) -> Any:
    return cast(Any, table.Table(data, encode.Get(number_types.UOffsetTFlags.packer_type, data, 0)))


def _offset(exported: Any, field: int) -> int:
    return int(exported.Offset(4 + 2 * field))
