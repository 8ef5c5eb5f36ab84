"""Writing an index: f's rows of every example, a batch at a time, to go on with after a kill.

One writer: a folder that one process writes to at a time.
"""

import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from hlo_surgery.attribution.index import (
    FILE,
    Header,
    Index,
    append,
    check_digests,
    check_same,
    create,
    digests_of,
    first_other,
    mapped,
    open_index,
    plain_settings,
    read_header,
    row_path,
    sync,
    write_header,
)
from hlo_surgery.attribution.rows import (
    Rows,
    batch_at,
    computed_rows,
    count_of,
    described,
    first_unlike,
    mixed_rows,
    named,
    number_of_examples,
    places_from,
)
from hlo_surgery.wording import integer_of

try:
    import fcntl
except ImportError:  # Windows, where nothing tells two writers apart.
    fcntl = None

LOCK = ".lock"


@contextlib.contextmanager
def sole_writer(folder: Path) -> Generator[None, None, None]:
    """Holds a lock of the folder, which ends with the process, however that ends.

    The lock's file stays: a writer that removed it might remove the next one's.

    Raises BlockingIOError where somebody else holds it, OSError where the disk has no locks.
    """
    if fcntl is None:
        yield
        return
    with (folder / LOCK).open("ab") as file:
        _lock(fcntl, folder, file.fileno())
        try:
            yield
        finally:
            # By name: a child that was forked meanwhile has the file open for as long as it lives.
            fcntl.flock(file, fcntl.LOCK_UN)


def _lock(fcntl: Any, folder: Path, file: int) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as problem:
        raise BlockingIOError(
            problem.errno,
            f"{folder} is being written by another process, or by a child that one left behind; "
            "wait for it, or choose another path",
        ) from None
    except OSError as problem:
        raise OSError(
            problem.errno,
            f"{folder} is on a disk without locks ({problem.strerror}), where two processes could "
            "mix their rows; choose another path",
        ) from None


# A kill loses what was written since the last commit, which is what may take time.
COMMIT_SECONDS = 1.0


def write_index(
    f: Callable[[Any], Any],
    data: Any,
    path: str | os.PathLike[str],
    *,
    batch_size: int = 64,
    settings: dict[str, Any] | None = None,
) -> Index:
    """Write f's rows of every example to a folder, and open it; what is there already is kept.

    - `f(batch)` returns a pytree of arrays [batch_size, ...] of floats, a row for each example,
      such as `hs.projected`. It is called as it is: pass `jax.jit(f)` of what is slow without.
    - `data`: a pytree of arrays [N, ...] of N examples: NumPy's, JAX's, memory maps, or whatever
      has a shape and slices. A batch has their rows, and the same structure; a last batch that is
      short is filled up with the last example, and what f returns for these is dropped.
    - `path`: a folder, new or empty, or an index to go on with. Each array is an `.npy` file there
      (bfloat16 as float32), and `index.json` says what they are of, and how many rows are done.
      Kill the process at any time, and call again.
      One process writes at a time, where the system has `flock` (Windows has none).
    - `settings`: what tells this index from others, such as `{"seed": 0, "step": 300}`; kept with
      it as JSON.

    An index goes on only with the same data as far as it is done, by a checksum, for which that is
    read again; the same settings; and an f that returns for the first batch what is there, up to
    rounding. And an example's row must not rest on the rest of its batch: f is tried on two more
    batches, mixed of the first, the last and some examples from all over the data, and rows of
    these must be the same, up to rounding, where they are written. That finds no sum over a batch
    that moves in none of the batches that are compared.

    A progress bar is shown on stderr where that is a terminal. Raises ValueError for what is named
    above, for rows that are not finite, and for an index that is another one; TypeError for
    settings that are no JSON; FileExistsError where the path is something else; BlockingIOError
    where another process writes there; OSError where the disk is full, or has no locks.

    >>> import tempfile
    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> loss = lambda w, x: jnp.mean((x @ w) ** 2)
    >>> gradients = hs.grad(loss, statistics=hs.projected(2))
    >>> rows = lambda x: gradients(jnp.ones((3, 4)), x)[1]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     index = write_index(rows, jnp.ones((100, 3)), f"{folder}/index", settings={"seed": 0})
    ...     print(len(index), index.rows["rows"].shape, index.settings)
    100 (100, 2, 2) {'seed': 0}
    """
    examples, folder = number_of_examples(data), Path(path)
    size = min(_positive(batch_size), examples)
    places = places_from(0, size, examples)
    first = computed_rows(f, batch_at(data, places), places)
    check = mixed_rows(f, data, examples, first)
    shapes = described(named(data))
    wanted = Header(examples, described(first), shapes, plain_settings(settings or {}))
    if _is_whole(folder):
        _begun(folder, wanted, first, data)
        return open_index(folder)
    _make_folder(folder)
    with sole_writer(folder):
        header = _begun(folder, wanted, first, data)

        def rows_of(batch: Any, places: np.ndarray) -> Rows:
            rows = computed_rows(f, batch, places, first)
            check(rows, places)
            return rows

        _write(rows_of, data, folder, header, size)
    return open_index(folder)


def _is_whole(folder: Path) -> bool:
    """Nothing more is written to it, so that many may read it, of a read-only disk, too."""
    return (folder / FILE).exists() and (there := read_header(folder)).done == there.examples


def _positive(batch_size: int) -> int:
    size = integer_of(batch_size)
    if size is None or size < 1:
        raise ValueError(f"batch_size is a positive integer, such as 64, not {batch_size!r}")
    return size


def _begun(folder: Path, wanted: Header, first: Rows, data: Any) -> Header:
    """The header of the index that is there, or of one that holds no row yet."""
    if (folder / FILE).exists() and (there := read_header(folder)).done:
        check_same(folder, there, wanted)
        _check_first(folder, there, first)
        _check_data(folder, there, data, count_of(first))
        return there
    write_header(folder, wanted)
    return wanted


def _check_first(folder: Path, there: Header, first: Rows) -> None:
    """Raises ValueError where the rows that are there are not those of the first batch."""
    count = min(there.done, count_of(first))
    stored: Rows = {key: rows[:count] for key, rows in mapped(folder, there).items()}
    name = first_unlike({key: rows[:count] for key, rows in first.items()}, stored, stored)
    if name is not None:
        raise ValueError(
            f"{folder} holds other rows of the first examples than f returns in {name}: it was "
            "written with another f, seed, model or data; choose another path, or remove it"
        )


def _check_data(folder: Path, there: Header, data: Any, size: int) -> None:
    """Raises ValueError where the rows that are there are of other data."""
    name = first_other(data, there.done, size, there.digests)
    if name is not None:
        raise ValueError(
            f"{folder} holds rows of other data, or of the same in another order, in {name} of the "
            f"first {there.done} examples; choose another path, or remove it"
        )


def _make_folder(folder: Path) -> None:
    """New, or an index, or with nothing in it but a lock."""
    if folder.exists() and not (
        folder.is_dir()
        and ((folder / FILE).exists() or {x.name for x in folder.iterdir()} <= {LOCK})
    ):
        raise FileExistsError(f"{folder} is there and is no index; choose another path")
    folder.mkdir(parents=True, exist_ok=True)


def _write(
    rows_of: Callable[[Any, np.ndarray], Rows], data: Any, folder: Path, header: Header, size: int
) -> None:
    """The rows that are not there yet; their number, and of what they are, once they are on the
    disk.
    """
    if not header.done:
        create(folder, header)
    there = mapped(folder, header)
    check_digests(there, header)
    examples, committed = header.examples, time.monotonic()
    with ExitStack() as stack:
        paths = [row_path(folder, i) for i in range(len(there))]
        files = [stack.enter_context(path.open("r+b")) for path in paths]
        for start in _shown(range(header.done, examples, size)):
            places, stop = places_from(start, size, examples), min(start + size, examples)
            batch = batch_at(data, places)
            # Before f, which may take the arrays for its own.
            digests = digests_of(named(batch), stop - start, header.digests)
            rows = rows_of(batch, places)
            row_digests = digests_of(rows, stop - start, header.row_digests)
            for (name, own), file in zip(there.items(), files, strict=True):
                append(file, own.offset + start * own[0].nbytes, rows[name][: stop - start])
            header = replace(header, done=stop, digests=digests, row_digests=row_digests)
            if stop == examples or time.monotonic() > committed + COMMIT_SECONDS:
                sync(files)
                write_header(folder, header)
                committed = time.monotonic()


def _shown(starts: range) -> Iterable[int]:
    """With a progress bar on a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        return starts
    return track(starts, "rows of examples", console=console, transient=True)
