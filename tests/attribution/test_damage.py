"""An index that is damaged, has two writers, or whose rows rest on their batch: seen, and named."""

import contextlib
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.attribution import open_index, write_index, writing
from hlo_surgery.attribution.index import read_header
from hlo_surgery.attribution.rows import spread_places

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


DATA_OF_WRITER = 1 + np.random.default_rng(0).random((40, 3), np.float32)
ROOT = Path(__file__).resolve().parent.parent.parent


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


def test_a_killed_writer_holds_nothing(tmp_path):
    program = """
        import time
        import numpy as np
        from hlo_surgery.attribution import write_index, writing

        def slow(*args):
            print("holds", flush=True)
            time.sleep(600)

        writing.append = slow
        write_index(lambda x: x, np.load("x.npy"), "index", batch_size=4)
    """
    np.save(tmp_path / "x.npy", DATA_OF_WRITER)
    writer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    )
    assert writer.stdout.readline() == b"holds\n"
    with pytest.raises(BlockingIOError, match="wait for it, or choose another path"):
        write_index(lambda x: x, DATA_OF_WRITER, tmp_path / "index", batch_size=4)
    writer.kill()
    writer.wait()
    index = write_index(lambda x: x, DATA_OF_WRITER, tmp_path / "index", batch_size=4)
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


@pytest.mark.parametrize("name", MASKS)
def test_a_sum_of_masks_is_seen(tmp_path, name):
    """Also where the first batch has none, so that what it is divided by is the usual number."""
    with pytest.raises(ValueError, match="are others in rows in other batches") as refused:
        write_index(rows(over_masks), (X, MASKS[name]), tmp_path / "index", batch_size=SIZE)
    assert "is_real=" in str(refused.value)


@pytest.mark.parametrize("name", MASKS)
def test_the_ways_out(tmp_path, name):
    real = rows(over_masks, is_real=lambda w, x, mask: mask)
    index = write_index(real, (X, MASKS[name]), tmp_path / "real", batch_size=SIZE)
    mean = rows(lambda w, x, mask: jnp.mean(mask * each(w, x)))
    other = write_index(mean, (X, MASKS[name]), tmp_path / "mean", batch_size=SIZE)
    whole = mean((X, MASKS[name]))
    np.testing.assert_allclose(index.rows["rows"], whole, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(other.rows["rows"], whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("drawn", spread_places(N_OF_APART, SIZE // 2)[:-1].tolist())
def test_a_batch_that_moves_alone_is_seen_by_the_example_that_was_drawn(tmp_path, drawn):
    """As it is written: the mixed batches have none of its masked examples."""
    start = drawn // SIZE * SIZE
    mask = mask_of(slice(start, start + SIZE))
    mask[drawn] = 1
    with pytest.raises(ValueError, match=f"rows of examples {drawn} are others in rows"):
        write_index(rows(over_masks), (X, mask), tmp_path, batch_size=SIZE)
    assert read_header(tmp_path).done == 0
