"""Whole files: written whole or not at all, under the name asked for, with the mode as it was."""

import contextlib
import os
import stat
import tempfile
from pathlib import Path


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
