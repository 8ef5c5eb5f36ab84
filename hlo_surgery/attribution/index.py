"""An index: rows of all training examples, in memory maps."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hlo_surgery.attribution.header import FILE, read_header
from hlo_surgery.attribution.named_rows import Rows
from hlo_surgery.attribution.row_files import check_digests, mapped, row_files


@dataclass(frozen=True)
class Index:
    """Rows of N examples, read from disk as they are used.

    `rows`: by the path to each array in what f returned (`"rows"` of one array alone) a read-only
    memory map [N, ...]; `settings`: those that it was written with.

    >>> import numpy as np
    >>> index = Index(Path("here"), {"['w']": np.ones((5, 2, 2))}, {})
    >>> len(index), index
    (5, Index(path=PosixPath('here'), settings={}))
    """

    path: Path
    rows: Rows = field(repr=False)
    settings: dict[str, Any]

    def __len__(self) -> int:
        """The number of examples."""
        return len(next(iter(self.rows.values())))


def open_index(path: str | os.PathLike[str]) -> Index:
    """An index that `write_index` has written, read-only. All rows are read once, for a checksum.

    Raises FileNotFoundError where there is none, and ValueError where rows are missing or files are
    damaged.

    >>> import tempfile
    >>> import numpy as np
    >>> from hlo_surgery.attribution import write_index
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_index(lambda x: x, np.eye(3), folder)
    ...     print(open_index(folder).rows["rows"][1])
    [0. 1. 0.]
    """
    folder = Path(path)
    if not (folder / FILE).exists():
        raise FileNotFoundError(
            f"{folder} is no index; hlo_surgery.attribution.write_index makes one"
        )
    header = read_header(folder)
    if header.done < header.examples:
        raise ValueError(
            f"{folder} has rows of {header.done} of {header.examples} examples; call write_index "
            "again with the same arguments, and it goes on"
        )
    files = row_files(folder, header)
    rows = mapped(files, header.examples)
    check_digests(files, header.examples, header.row_digests)
    return Index(folder, rows, header.settings)


def check_index(function: str, index: Index) -> Index:
    """The index itself. Raises TypeError for what is none, as the path of one."""
    if not isinstance(index, Index):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"{function} takes an index, not {index!r}; open_index(path) opens the one at a path"
        )
    return index
