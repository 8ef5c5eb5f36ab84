"""DP-SGD to an epsilon: Poisson sampling with padding, clipping, noise and the accounting.

    pip install '.[examples]' && python dp_sgd.py

Every training digit is in a batch with the same probability, whatever the others are, as the
accountant assumes. Batches then differ in size, and are padded to one shape: `is_real` leaves the
padding out. The sum of the clipped gradients is divided by the expected batch size, since the
actual one is data.
"""

import argparse
import math
import secrets
from typing import Any

import dp_accounting as dp
import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting.pld import PLDAccountant
from jax import Array
from scipy.stats import binom
from sklearn.datasets import load_digits

import hlo_surgery as hs
import hlo_surgery.optimizers as ho

TRAINED, EXPECTED, DELTA, CUT_OFF = 1400, 140, 1e-5, 1e-9
MAX_NORM, NOISE_MULTIPLIER, RATE = 1.0, 2.0, 2.0
SAMPLING_PROBABILITY = EXPECTED / TRAINED


def loss(params: Any, batch: dict[str, Array]) -> Array:
    """The sum of the real examples' cross-entropies: of padding the loss is zero."""
    hidden = jnp.tanh(batch["x"] @ params["w1"] + params["b1"])
    scores = hidden @ params["w2"] + params["b2"]
    each = optax.softmax_cross_entropy_with_integer_labels(scores, batch["y"])
    return jnp.sum(batch["is_real"] * each)


def initial(seed: int) -> Any:
    """The network's parameters before training."""
    first, second = jax.random.split(jax.random.key(seed))
    return {
        "w1": jax.random.normal(first, (64, 32)) / 8,
        "b1": jnp.zeros(32),
        "w2": jax.random.normal(second, (32, 10)) / 6,
        "b2": jnp.zeros(10),
    }


def capacity(steps: int) -> int:
    """Rows of a padded batch: with a probability of CUT_OFF some batch of the training has more."""
    return int(binom.isf(CUT_OFF / steps, TRAINED, SAMPLING_PROBABILITY))


def poisson_batch(rng: np.random.Generator, x: Any, y: Any, rows: int) -> dict[str, np.ndarray]:
    """Every example with the same probability, padded to so many rows."""
    (chosen,) = np.nonzero(rng.random(len(x)) < SAMPLING_PROBABILITY)
    # What does not fit is left out. That it may happen is part of delta, see `epsilon`.
    chosen = chosen[:rows]
    padded = np.concatenate([chosen, np.zeros(rows - len(chosen), int)])
    is_real = (np.arange(rows) < len(chosen)).astype(np.float32)
    return {"x": x[padded], "y": y[padded], "is_real": is_real}


def epsilon(steps: int) -> float:
    """Of the whole training at DELTA, where adding or removing one example is to be hidden.

    With batches that were never cut off it would be (epsilon, 0.99 DELTA); that one of them is, on
    either of two neighbouring data sets, adds (1 + exp(epsilon)) CUT_OFF to that.
    """
    accountant = PLDAccountant()
    each = dp.PoissonSampledDpEvent(SAMPLING_PROBABILITY, dp.GaussianDpEvent(NOISE_MULTIPLIER))
    accountant.compose(dp.SelfComposedDpEvent(each, steps))
    found = float(accountant.get_epsilon(0.99 * DELTA))
    if (1 + math.exp(found)) * CUT_OFF > 0.01 * DELTA:
        raise ValueError(f"epsilon is {found}; choose a smaller CUT_OFF")
    return found


def main() -> None:
    """Train, and say what accuracy was had for which epsilon."""
    parser = argparse.ArgumentParser(description="DP-SGD to an epsilon.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, help="of data and noise: for tests, not for privacy")
    given = parser.parse_args()
    secret = secrets.randbits(63) if given.seed is None else given.seed
    optimizer = ho.dp_sgd(
        RATE, MAX_NORM, NOISE_MULTIPLIER, seed=secret, expected_batch_size=EXPECTED
    )
    step = hs.train_step(
        loss, optimizer, loss_reduction="sum", is_real=lambda params, batch: batch["is_real"]
    )
    digits: Any = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x, y = (digits.data[order] / 16).astype(np.float32), digits.target[order]
    params, rows = initial(0), capacity(given.steps)
    state, rng = optimizer.init(params), np.random.default_rng(secret)
    for _ in range(given.steps):
        batch = poisson_batch(rng, x[:TRAINED], y[:TRAINED], rows)
        params, state, _ = step(params, state, batch)
    hidden = jnp.tanh(x[TRAINED:] @ params["w1"] + params["b1"])
    right = jnp.argmax(hidden @ params["w2"] + params["b2"], -1) == y[TRAINED:]
    print(f"batches of {EXPECTED} expected, padded to {rows}; {given.steps} steps")
    print(f"held-out accuracy {float(right.mean()):.3f}")
    print(f"({epsilon(given.steps):.2f}, {DELTA:g})-differentially private")


if __name__ == "__main__":
    main()
