"""An index that is damaged, has two writers, or whose rows rest on their batch: seen, and named.

This folder alone tests the index on disk and its scores.
"""

import contextlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
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


DATA_OF_WRITER = 1 + np.random.default_rng(0).random((40, 3), np.float32)


def test_another_writer_is_refused(tmp_path):
    """Of other rows or the same, from the first batch on; what is there stays as it is."""
    seen = []

    def f(x):
        if (tmp_path / "index.json").exists():
            seen.append(x)
            with pytest.raises(BlockingIOError, match="is being written by another process"):
                write_index(lambda x: 5 * x, DATA_OF_WRITER, tmp_path, batch_size=4)
        return x

    index = write_index(f, DATA_OF_WRITER, tmp_path, batch_size=4)
    assert len(seen) == 10
    np.testing.assert_array_equal(index.rows["rows"], DATA_OF_WRITER)


N_OF_APART, SIZE = 96, 8
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N_OF_APART, 3)).astype(np.float32)
W = jnp.ones((3, 2))


def each(w, x):
    return jnp.sum(jnp.tanh(x @ w) ** 2, -1)


def over_masks(w, x, mask):
    return jnp.sum(mask * each(w, x)) / jnp.sum(mask)


def rows(loss, **how):
    f = jax.jit(hs.grad(loss, batch_argnums=(1, 2), statistics=hs.projected(2), **how))
    return lambda batch: f(W, *batch)[1]


def mask_of(*zeros):
    mask = np.ones(N_OF_APART, np.float32)
    for zero in zeros:
        mask[zero] = 0
    return mask


MASKS = {
    "the first batch": mask_of(slice(3, 5)),
    "everything behind it": mask_of(slice(SIZE + 1, None, 2)),
    "here and there behind it": mask_of(slice(SIZE + 3, None, 7)),
    "the last batch": mask_of(slice(N_OF_APART - 3, None)),
    "the second half": mask_of(slice(N_OF_APART // 2, None, 4)),
}


@pytest.mark.first(1)
@pytest.mark.parametrize("name", MASKS)
def test_the_ways_out(tmp_path, name):
    real = rows(over_masks, is_real=lambda w, x, mask: mask)
    index = write_index(real, (X, MASKS[name]), tmp_path / "real", batch_size=SIZE)
    mean = rows(lambda w, x, mask: jnp.mean(mask * each(w, x)))
    other = write_index(mean, (X, MASKS[name]), tmp_path / "mean", batch_size=SIZE)
    whole = mean((X, MASKS[name]))
    np.testing.assert_allclose(index.rows["rows"], whole, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(other.rows["rows"], whole, rtol=1e-5, atol=1e-6)
