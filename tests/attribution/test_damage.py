"""Damaged files are seen, and named, with what to do about them."""

import contextlib
import json

import numpy as np
import pytest

from hlo_surgery.attribution import open_index, write_index, writing
from hlo_surgery.attribution.index import read_header

N = 23
DATA = {"x": np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32), "y": np.arange(N)}


def rows_of(batch):
    return {"a": batch["x"] * 2, "b": batch["y"][:, None] * 1.0}


def test_damage_is_seen(tmp_path):
    write_index(rows_of, DATA, tmp_path, batch_size=4)
    whole = (tmp_path / "rows_0.npy").read_bytes()
    for damaged in (whole[:-1], whole[:10], b"", whole.replace(b": False", b": (alse")):
        (tmp_path / "rows_0.npy").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"rows_0.npy is damaged"):
            open_index(tmp_path)
    np.save(tmp_path / "rows_0.npy", np.zeros((N, 2)))
    with pytest.raises(ValueError, match=r"does not hold \['a'\]"):
        open_index(tmp_path)
    header = json.loads((tmp_path / "index.json").read_text())
    wrong = [{"done": "3"}, {"done": N + 1}, {"rows": {}}, {"rows": {"a": [[2], "float99"]}}]
    changed = [json.dumps(header | each).encode() for each in wrong]
    for text in (b"{", b"[]", b'{"done": 3}', b"\xff\xfe", *changed):
        (tmp_path / "index.json").write_bytes(text)
        with pytest.raises(ValueError, match="is no header of an index"):
            open_index(tmp_path)


def test_a_later_format_is_not_guessed(tmp_path):
    write_index(rows_of, DATA, tmp_path, batch_size=4)
    header = json.loads((tmp_path / "index.json").read_text())
    (tmp_path / "index.json").write_text(json.dumps(header | {"format": 3}))
    with pytest.raises(ValueError, match="has the format 3, not 2"):
        open_index(tmp_path)


WRONG = {
    "done": [60.0, None, True, -1, N + 1, "3", [3]],
    "examples": [60.0, None, {}, -N],
    "digests": [None, [1], {}, {"['x']": 1}, {"['x']": 1, "['y']": None}],
    "row_digests": [None, [1], {}, {"['a']": 1.5, "['b']": 1}],
    "rows": [None, [], {}, {"['a']": None}, {"['a']": [[2.0], "f4"]}, {"['a']": [[2], "f4,("]}],
    "data": [None, [1], {}],
    "settings": [None, [], "seed"],
    "format": ["2", None, 2.5, [2]],
}


@pytest.mark.parametrize(("name", "value"), [(k, v) for k, vs in WRONG.items() for v in vs])
def test_a_damaged_header_is_named(tmp_path, name, value):
    write_index(rows_of, DATA, tmp_path, batch_size=4)
    header = json.loads((tmp_path / "index.json").read_text())
    (tmp_path / "index.json").write_text(json.dumps(header | {name: value}))
    for use in (open_index, lambda path: write_index(rows_of, DATA, path, batch_size=4)):
        with pytest.raises(ValueError, match=r"index\.json is no header .*; remove"):
            use(tmp_path)


@pytest.mark.parametrize("done", [12, N])
@pytest.mark.parametrize("place", [0, 9, 11])
def test_damaged_rows_are_seen(tmp_path, monkeypatch, done, place):
    """In the middle, too; where an index goes on, before anything is added to it."""
    monkeypatch.setattr(writing, "COMMIT_SECONDS", -1)

    def dying(batch):
        if batch["y"][0] == done:
            raise KeyboardInterrupt
        return rows_of(batch)

    with contextlib.suppress(KeyboardInterrupt):
        write_index(dying, DATA, tmp_path, batch_size=4)
    assert read_header(tmp_path).done == done
    with (tmp_path / "rows_0.npy").open("r+b") as file:
        file.seek(128 + 12 * place)
        file.write(bytes(12))
    message = r"rows_0\.npy is damaged .*; remove" if place else "rows_0|other rows of the first"
    calls = []

    def f(batch):
        calls.append(batch)
        return rows_of(batch)

    with pytest.raises(ValueError, match=message):
        write_index(f, DATA, tmp_path, batch_size=4)
    assert len(calls) == 3
    if done == N:
        with pytest.raises(ValueError, match=r"its rows are not those that were written"):
            open_index(tmp_path)
