"""Tokens to train on: bytes of a pinned part of Python's library, or of a directory's files."""

import json
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

HELD_OUT = 20
"""Every 20th document is held out."""
EVALUATED = 512
"""Windows of the held-out documents that a model is evaluated on, at most."""

KINDS = (".txt", ".jsonl", ".npy")
PINNED = Path(__file__).parent / "text" / "python_3.11.7.tar.xz"
"""Every fourth source of the standard library of Python 3.11.7 by path, without its tests, and the
licence they have (PSF-2.0): the same text on every machine.
"""
Tokens = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Text:
    """Windows of L + 1 tokens, [W, L + 1], of which the last is the first of the next window."""

    train: Tokens
    held_out: Tokens

    @property
    def digest(self) -> str:
        """Tells one text from another."""
        return f"{zlib.crc32(self.train[:, 0].tobytes() + self.held_out.tobytes()):08x}"

    def batch(self, step: int, batch_size: int, seed: int) -> Tokens:
        """[B, L + 1] for a step: samples in the seed's order, the same for all batch sizes."""
        return self.train[self.places(range(step, step + 1), batch_size, seed)[0]].astype(np.int32)

    def places(self, steps: range, batch_size: int, seed: int) -> Tokens:
        """[steps, B]: where in `train` the samples of these steps are."""
        samples = np.arange(steps.start * batch_size, steps.stop * batch_size)
        return np.array([self._place(s, seed) for s in samples.tolist()]).reshape(-1, batch_size)

    def _place(self, sample: int, seed: int) -> int:
        epoch, place = divmod(sample, len(self.train))
        return _order(len(self.train), seed, epoch)[place]


def load(directory: Path | None, length: int, vocabulary: int) -> Text:
    """A directory's .txt (a document each) and .jsonl files (one a line, under "text"), in bytes.

    A .npy file holds the ids of a document's tokens, of any tokenizer. By default, the pinned text.
    Raises ValueError for a directory without such files, with too little text, or with ids beyond
    the vocabulary.
    """
    documents = list(_pinned() if directory is None else _documents(directory))
    held_out = [d for i, d in enumerate(documents) if i % HELD_OUT == 0]
    train = [d for i, d in enumerate(documents) if i % HELD_OUT]
    where = directory or PINNED
    text = Text(
        _windows(train, length, where), _spread(_windows(held_out, length, where), EVALUATED)
    )
    if (highest := max(int(d.max(initial=0)) for d in documents)) >= vocabulary:
        raise ValueError(f"{where} has token {highest}, and the vocabulary {vocabulary}")
    return text


def _pinned() -> Iterator[Tokens]:
    with tarfile.open(PINNED) as archive:
        for member in archive:
            stored = archive.extractfile(member) if member.name.endswith(".py") else None
            if stored is not None:
                yield _bytes(stored.read())


def _documents(directory: Path) -> Iterator[Tokens]:
    files = sorted((f for f in directory.rglob("*") if f.suffix in KINDS), key=Path.as_posix)
    if not files:
        raise ValueError(f"{directory} holds no {', '.join(KINDS)} files to train on")
    for file in files:
        if file.suffix == ".npy":
            yield np.load(file)
        elif file.suffix == ".txt":
            yield _bytes(file.read_bytes())
        else:
            lines = file.read_text(encoding="utf-8").splitlines()
            yield from (_bytes(json.loads(line)["text"].encode()) for line in lines if line.strip())


def _bytes(text: bytes) -> Tokens:
    return np.frombuffer(text, np.uint8)


def _windows(documents: list[Tokens], length: int, where: object) -> Tokens:
    """The documents one after another, with a zero after each."""
    tokens = np.concatenate(
        [np.append(d, d.dtype.type(0)) for d in documents] or [np.zeros(0, np.uint8)]
    )
    if len(tokens) <= length:
        raise ValueError(
            f"{where} has too little text for sequences of {length} tokens, in two documents at "
            "least"
        )
    return np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::length]


def _spread(windows: Tokens, count: int) -> Tokens:
    return windows[:: max(1, len(windows) // count)][:count]


@lru_cache(maxsize=4)
def _order(count: int, seed: int, epoch: int) -> Tokens:
    return np.random.default_rng([seed, epoch]).permutation(count)
