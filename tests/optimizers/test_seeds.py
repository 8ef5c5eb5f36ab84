"""Seeds of noise: every bit counts, non-seeds are refused, an optimizer's parts draw their own."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hlo_surgery.optimizers as ho

ZEROS = {name: jnp.zeros(10_000) for name in ("a", "b", "c")}
# Correlations of independent normal samples have the standard error 1 / sqrt(size).
FAR = 5 / np.sqrt(10_000)


def noise_of(optimizer, params=ZEROS):
    noise, _ = optimizer.update(
        params, optimizer.init(params), params, clipped_mean=params, batch_size=1
    )
    return noise


def private(seed):
    return ho.private_gradient(1.0, 1.0, seed)


@pytest.mark.parametrize("x64", [False, True])
def test_every_bit_of_a_seed_counts(x64):
    with jax.enable_x64(x64):
        seeds = [
            1,
            *(1 + 2**bit for bit in range(1, 64)),
            *((1 + 2**bit).to_bytes(8, "big") for bit in (0, 40)),
        ]
        words = [tuple(np.asarray(private(seed).init(ZEROS).key).tolist()) for seed in seeds]
    assert words[:64] == [divmod(seed, 2**32) for seed in seeds[:64]]
    assert words[64:] == [(0, 2), (256, 1)]


@pytest.mark.parametrize("generator", ["threefry2x32", "rbg"])
def test_keys_are_seeds(generator):
    """As often as one likes: a state is donated, its key is not."""
    key = jax.random.key(7, impl=generator)
    optimizer = private(key)
    first = noise_of(optimizer)["a"]
    optimizer.init(ZEROS).key.delete()
    np.testing.assert_array_equal(noise_of(optimizer)["a"], first)
    if generator == "threefry2x32":
        for same in (7, jax.random.PRNGKey(7), np.uint32(7), (7).to_bytes(8, "big")):
            np.testing.assert_array_equal(noise_of(private(same))["a"], first)


@pytest.mark.parametrize("seed", [-1, 2**64, b"short", b"nine bytes", 1.0, "0", None])
def test_what_is_no_seed(seed):
    with pytest.raises((TypeError, ValueError), match="seed is"):
        private(seed)


def test_parts_with_one_seed_have_noise_of_their_own():
    kinds = {name: ho.dp_sgd(1.0, 1.0, 1.0, seed=5) for name in ZEROS}
    noise = noise_of(optax.multi_transform(kinds, {name: name for name in ZEROS}))
    correlations = np.corrcoef([noise[name] for name in ZEROS])[np.triu_indices(3, 1)]
    assert np.abs(correlations).max() < FAR
    # And that of one optimizer for all.
    jax.tree.map(np.testing.assert_array_equal, noise, noise_of(ho.dp_sgd(1.0, 1.0, 1.0, seed=5)))
