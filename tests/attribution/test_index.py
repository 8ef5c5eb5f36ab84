"""An index on disk: f's rows of every example, whatever ends the process, and nobody else's."""

import numpy as np
import pytest

from hlo_surgery.attribution import open_index, write_index, writing
from hlo_surgery.attribution.index import mapped, read_header

RNG = np.random.default_rng(0)
N = 23
DATA = {"x": RNG.normal(size=(N, 3)).astype(np.float32), "y": np.arange(N)}


def rows_of(batch):
    """Two arrays of each example alone."""
    return {"a": batch["x"] * 2, "b": [np.sin(batch["x"][:, :1]) + batch["y"][:, None]]}


EXPECTED = {"['a']": rows_of(DATA)["a"], "['b'][0]": rows_of(DATA)["b"][0]}


def held(index):
    assert list(index.rows) == list(EXPECTED)
    for name, rows in EXPECTED.items():
        assert index.rows[name].dtype == rows.dtype
        np.testing.assert_array_equal(index.rows[name], rows)


@pytest.mark.parametrize("batch_size", [1, np.int64(4), 23, 1000])
def test_rows_are_those_of_f(tmp_path, batch_size):
    index = write_index(rows_of, DATA, tmp_path / "index", batch_size=batch_size)
    held(index)
    held(open_index(str(tmp_path / "index")))
    assert len(index) == N
    with pytest.raises(ValueError, match="read-only"):
        index.rows["['a']"][0] = 1


# By what is interrupted, in which call, how many rows are done: batches of 4, two arrays each.
INTERRUPTED = {
    "create": {1: 0},
    "append": {1: 0, 2: 0, 5: 8},
    "sync": {1: 0, 2: 4, 5: 16},
    "write_header": {1: None, 2: 0, 5: 12},
}


@pytest.mark.parametrize(
    ("name", "call", "done"),
    [(name, *each) for name, calls in INTERRUPTED.items() for each in calls.items()],
)
def test_what_was_interrupted_goes_on(tmp_path, monkeypatch, name, call, done):
    """Wherever: rows that are counted are on the disk, and the rest is written."""
    own, calls = getattr(writing, name), []
    monkeypatch.setattr(writing, "COMMIT_SECONDS", -1)

    def interrupted(*args):
        calls.append(args)
        if len(calls) == call:
            raise KeyboardInterrupt
        return own(*args)

    monkeypatch.setattr(writing, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_index(rows_of, DATA, tmp_path, batch_size=4)
    monkeypatch.setattr(writing, name, own)
    assert (tmp_path / "index.json").exists() == (done is not None)
    if done is not None:
        assert read_header(tmp_path).done == done
        with pytest.raises(ValueError, match=f"rows of {done} of 23 examples"):
            open_index(tmp_path)
    if done:
        for key, rows in mapped(tmp_path, read_header(tmp_path)).items():
            np.testing.assert_array_equal(rows[:done], EXPECTED[key][:done])
    held(write_index(rows_of, DATA, tmp_path, batch_size=3))


OTHERS = {
    "settings": (rows_of, DATA, {"seed": 1}, "its settings are {'seed': 0}, not {'seed': 1}"),
    "seed": (
        lambda batch: {"a": -rows_of(batch)["a"], "b": rows_of(batch)["b"]},
        DATA,
        {"seed": 0},
        r"other rows of the first examples than f returns in \['a'\]",
    ),
    "one row": (
        rows_of,
        DATA | {"x": np.where(np.arange(N)[:, None] == 2, 0, DATA["x"])},
        {"seed": 0},
        "other rows of the first examples",
    ),
    "fewer": (
        rows_of,
        {k: v[:20] for k, v in DATA.items()},
        {"seed": 0},
        "examples are 23, not 20",
    ),
    "dtype": (rows_of, DATA | {"y": DATA["y"] * 1.0}, {"seed": 0}, "its data are"),
    "names": (lambda batch: batch["x"], DATA, {"seed": 0}, "its rows are"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_index_is_not_mixed_in(tmp_path, name):
    f, data, settings, message = OTHERS[name]
    write_index(rows_of, DATA, tmp_path, batch_size=4, settings={"seed": 0})
    with pytest.raises(ValueError, match=message):
        write_index(f, data, tmp_path, batch_size=4, settings=settings)
    held(open_index(tmp_path))


BAD_DATA = {
    "nothing": ({}, "arrays of no examples"),
    "a number": ({"x": DATA["x"], "rate": 0.1}, r"float \['rate'\] without examples"),
    "lengths": ({"x": DATA["x"], "y": DATA["y"][:5]}, r"\['x'\]\": 23, \"\['y'\]\": 5"),
    "empty": (DATA["x"][:0], "one or more"),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_wrong_data_is_named(tmp_path, name):
    data, message = BAD_DATA[name]
    with pytest.raises(ValueError, match=message):
        write_index(rows_of, data, tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_wrong_arguments(tmp_path):
    for size in (0, -1, 2.5, "4"):
        with pytest.raises(ValueError, match="batch_size is a positive integer"):
            write_index(rows_of, DATA, tmp_path / "index", batch_size=size)
    for settings in ([1], {"f": rows_of}):
        with pytest.raises(TypeError, match="settings"):
            write_index(rows_of, DATA, tmp_path / "index", settings=settings)
    assert not (tmp_path / "index").exists()
