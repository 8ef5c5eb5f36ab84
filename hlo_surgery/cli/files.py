"""What the commands read and write: modules and npz archives, `-` for the standard streams."""

import io
import os
import sys
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from hlo_surgery.cli.supervision import reading
from hlo_surgery.dumps import write_atomically
from hlo_surgery.module import Module, Port, load
from hlo_surgery.requests.gradient_outputs import is_inexact
from hlo_surgery.verification.inputs import Arrays, draw_inputs
from hlo_surgery.verification.tolerances import Array


def read_module(file: str) -> Module:
    """The module in a file, or on stdin for `-`. Raises ValueError or OSError."""
    name = "stdin" if file == "-" else file
    data = _read(file, name)
    try:
        with reading(name, len(data)):
            return load(data)
    except ValueError as problem:
        raise ValueError(f"{name}: {problem}") from None


def _read(file: str, name: str) -> bytes:
    """All bytes; OSError names the file, which that of a read does not."""
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror, name) from None


def output_file(
    out: str, *read: str | None, alone: str = "", json: bool = False, force: bool = False
) -> str:
    """The file to be written, or `-`, also for a link to what stdout is, such as /dev/stdout.

    Raises ValueError, before the work and not after it, where it cannot be written, would replace a
    file that is `read`, through links too, or as stdin, unless by `force`, or goes to stdout beside
    JSON. `alone`: what it is, where that does not go to stdout at all.
    """
    if _is_same_file(out, 1):
        out = "-"
    if out == "-":
        if alone:
            raise ValueError(f"{alone} does not go to stdout; name a file")
        if json:
            raise ValueError("--json and -o - both write to stdout; name an output file")
        return out
    for file in read:
        if file is not None and not force and _is_same_file(out, 0 if file == "-" else file):
            name = "the file on stdin" if file == "-" else file
            raise ValueError(f"the output would replace {name}, which is read; name another output")
    _check_writable(out)
    return out


def _check_writable(out: str) -> None:
    path = Path(out)
    if path.exists() and not path.is_file():
        raise ValueError(f"{out} is no regular file; name another output")
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise ValueError(f"cannot write {out}: there is no folder {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ValueError(f"cannot write {out}: it may not be written; name another output")


def _is_same_file(out: str, file: str | int) -> bool:
    """The other may be a stream of the process, by its number."""
    try:
        return os.path.samestat(os.stat(out), os.stat(file))
    except OSError:
        return False


def write_module(module: Module, out: str) -> None:
    """Write a module as its suffix says, or as text to stdout for `-`."""
    if out == "-":
        sys.stdout.write(module.text())
    else:
        module.save(out)


def read_inputs(file: str | None, arguments: Sequence[Port]) -> Arrays:
    """One array for each argument, from an npz archive or else random. Raises ValueError or
    OSError.
    """
    if file is None:
        return draw_inputs(arguments)
    stored, numbers = _read_npz(file), _numbers([port.name for port in arguments])
    unknown = sorted(stored.keys() - numbers.keys())
    if unknown:
        raise ValueError(
            f"{file} holds {', '.join(unknown)}; the module has no such arguments, but "
            f"{', '.join(port.name for port in arguments)}"
        )
    found: Arrays = []
    for number, port in enumerate(arguments):
        keys = [key for key, own in numbers.items() if own == number]
        held = [stored[key] for key in keys if key in stored]
        if len(held) != 1:
            how = "several arrays" if held else "no array"
            raise ValueError(f"{file} holds {how} {' or '.join(keys)} for argument {number}")
        found.append(_fitting(held[0], port))
    return found


def _numbers(names: Sequence[str]) -> dict[str, int]:
    """The argument that is meant by its name, if no other has that, or by its place."""
    places = [f"arg{number}" for number in range(len(names))]
    named = {name: i for i, name in enumerate(names) if names.count(name) == 1}
    return named | {
        place: i for i, place in enumerate(places) if place not in names or names[i] == place
    }


def _read_npz(file: str) -> dict[str, Array]:
    if Path(file).is_file() and not zipfile.is_zipfile(file):
        raise ValueError(f"{file} is no npz archive; write one with numpy.savez")
    try:
        with np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except OSError as problem:
        raise ValueError(f"cannot read {file}: {problem.strerror or problem}") from None
    except (ValueError, EOFError, zipfile.BadZipFile, NotImplementedError, zlib.error) as problem:
        raise ValueError(f"{file} is no npz archive of plain arrays: {problem}") from None


def _fitting(array: Array, port: Port) -> Array:
    """Floats that npz does not know are stored as float32, or as raw bytes."""
    raw = array.dtype.kind == "V" and array.dtype.names is None
    if raw and port.dtype.kind == "V" and array.dtype.itemsize == port.dtype.itemsize:
        array = array.view(port.dtype)
    is_stored = array.dtype == np.float32 and is_inexact(port) and port.dtype.kind == "V"
    return array.astype(port.dtype) if is_stored else array


def write_arrays(out: str, arrays: Mapping[str, Any]) -> None:
    """Write an npz archive whole or not at all; floats that npz does not know become float32."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, _storable(array), allow_pickle=False)
    write_atomically(Path(out), buffer.getvalue())


def _storable(array: Any) -> Array:
    plain = np.asarray(array)
    is_float = plain.dtype.kind == "V" and jnp.issubdtype(plain.dtype, jnp.floating)
    return plain.astype(np.float32) if is_float else plain


def output_names(outputs: Sequence[Port]) -> list[str]:
    """The outputs' names where no two are alike, else result0, result1..."""
    names = [port.name for port in outputs]
    return names if len(set(names)) == len(names) else [f"result{i}" for i in range(len(names))]
