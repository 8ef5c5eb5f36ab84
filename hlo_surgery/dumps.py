"""Whole files: written whole or not at all, under the name asked for, with the mode as it was.

Unreadable sources: what is there instead of a StableHLO module, and how to dump one.

The module in a `jax.export` artifact of any age. JAX itself reads those of its last half year
only.

An artifact is a flatbuffer, to whose table JAX adds fields at the end alone; the module in it is a
StableHLO portable artifact, which stays readable for years.
"""

import contextlib
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Any, cast

from flatbuffers import encode, number_types, table

from hlo_surgery.passes.ir import mlir


def write_atomically(path: Path, data: bytes) -> None:
    """Write a regular file whole or not at all; through a link, the file that it leads to. Its mode
    stays. Raises OSError, which names this file and not the temporary one.
    """
    try:
        _write(Path(os.path.realpath(path)), data)
    except OSError as problem:
        why = problem.strerror or problem
        raise OSError(problem.errno, f"cannot write {path}: {why}") from problem


def _write(target: Path, data: bytes) -> None:
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            # Before anybody could read in it what may not be read.
            with contextlib.suppress(FileNotFoundError):
                shutil.copymode(target, temporary)
            file.write(data)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
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


def unreadable(data: bytes, problem: str) -> str:
    """Of what MLIR does not read, with its own words where nothing else can be told."""
    if mlir.bytecode_producer(data):
        return _unreadable_bytecode(data)
    try:
        why = _unreadable_text(data.decode(), problem)
    except UnicodeDecodeError:
        why = "neither text nor bytecode, nor a whole jax.export artifact; perhaps it is cut short"
    return f"this is no StableHLO module: {why}; {DUMPING}"


def _unreadable_text(text: str, problem: str) -> str:
    for begin, what in OTHERS.items():
        if re.match(rf"\s*{begin}", text):
            return what
    # MLIR goes on to list all the dialects there are.
    said = problem.split(" note: ")[0] or "not MLIR"
    lines = len(text.splitlines())
    ends = lines > 1 and f'"-":{lines}:' in said
    return f"{said}, so that it may be cut short" if ends else said


def _unreadable_bytecode(data: bytes) -> str:
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


# The place of the module in JAX's table `Exported`.
MODULE_FIELD = 13


def module_in_artifact(data: bytes) -> bytes | None:
    """The bytes of the module, or None where `data` is no such artifact, or a damaged one."""
    try:
        start = encode.Get(number_types.UOffsetTFlags.packer_type, data, 0)
        exported = cast(Any, table.Table(data, start))
        field = exported.Offset(4 + 2 * MODULE_FIELD)
        first, length = exported.Vector(field), exported.VectorLen(field)
    except Exception:  # the reader of flatbuffers fails in its own ways on other files
        return None
    return data[first : first + length] if field else None
