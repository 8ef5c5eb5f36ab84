"""A row that rests on its batch is refused, wherever in the data the batch moves it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.attribution import write_index
from hlo_surgery.attribution.index import read_header
from hlo_surgery.attribution.rows import spread_places

N, SIZE = 96, 8
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3)).astype(np.float32)
W = jnp.ones((3, 2))


def each(w, x):
    return jnp.sum(jnp.tanh(x @ w) ** 2, -1)


def over_masks(w, x, mask):
    return jnp.sum(mask * each(w, x)) / jnp.sum(mask)


def rows(loss, **how):
    f = jax.jit(hs.grad(loss, batch_argnums=(1, 2), statistics=hs.projected(2), **how))
    return lambda batch: f(W, *batch)[1]


def mask_of(*zeros):
    mask = np.ones(N, np.float32)
    for zero in zeros:
        mask[zero] = 0
    return mask


MASKS = {
    "the first batch": mask_of(slice(3, 5)),
    "everything behind it": mask_of(slice(SIZE + 1, None, 2)),
    "here and there behind it": mask_of(slice(SIZE + 3, None, 7)),
    "the last batch": mask_of(slice(N - 3, None)),
    "the second half": mask_of(slice(N // 2, None, 4)),
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


@pytest.mark.parametrize("drawn", spread_places(N, SIZE // 2)[:-1].tolist())
def test_a_batch_that_moves_alone_is_seen_by_the_example_that_was_drawn(tmp_path, drawn):
    """As it is written: the mixed batches have none of its masked examples."""
    start = drawn // SIZE * SIZE
    mask = mask_of(slice(start, start + SIZE))
    mask[drawn] = 1
    with pytest.raises(ValueError, match=f"rows of examples {drawn} are others in rows"):
        write_index(rows(over_masks), (X, mask), tmp_path, batch_size=SIZE)
    assert read_header(tmp_path).done == 0


def test_rows_by_their_place_in_a_batch_are_seen(tmp_path):
    with pytest.raises(ValueError, match="in other batches"):
        write_index(lambda x: x * np.arange(1, SIZE + 1)[:, None], X, tmp_path, batch_size=SIZE)
