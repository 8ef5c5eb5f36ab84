"""The gradient noise scale along training: how large a batch is worth its examples.

    pip install '.[examples]' && python noise_scale.py

tr(Sigma) is the variance of one example's gradient and |G|**2 the square of the true gradient's
norm. Their ratio is the batch size at which noise and signal are as large (McCandlish et al., "An
Empirical Model of Large-Batch Training"). Of one batch it says little, so that both parts are
averaged over the steps, and only then divided. Writes noise_scale.png.
"""

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from sklearn.datasets import load_digits

import hlo_surgery as hs
import hlo_surgery.optimizers as ho

BATCH, DECAY = 64, 0.98


def loss(params: Any, x: Array, y: Array) -> Array:
    """Mean cross-entropy of a network of one hidden layer."""
    hidden = jax.nn.relu(x @ params["w1"] + params["b1"])
    scores = hidden @ params["w2"] + params["b2"]
    return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()


def initial() -> Any:
    """The network's parameters before training."""
    first, second = jax.random.split(jax.random.key(0))
    return {
        "w1": jax.random.normal(first, (64, 64)) / 8,
        "b1": jnp.zeros(64),
        "w2": jax.random.normal(second, (64, 10)) / 8,
        "b2": jnp.zeros(10),
    }


optimizer = optax.chain(ho.track_noise_scale(DECAY), optax.adam(1e-3))


def train(steps: int) -> tuple[list[float], list[float], list[float]]:
    """tr(Sigma), |G|**2 and the loss, at every step."""
    digits: Any = load_digits()
    x, y = (digits.data / 16).astype(np.float32), digits.target
    rng, params = np.random.default_rng(0), initial()
    state, step = optimizer.init(params), hs.train_step(loss, optimizer, batch_argnums=(1, 2))
    variances, signals, losses = list[float](), list[float](), list[float]()
    for _ in range(steps):
        rows = rng.integers(0, len(x), BATCH)
        params, state, metrics = step(params, state, x[rows], y[rows])
        variance, signal = map(float, ho.tracked_noise_scale(state))
        variances.append(variance)
        signals.append(signal)
        losses.append(float(metrics["loss"]))
    return variances, signals, losses


def draw(variances: Any, signals: Any, file: Path) -> None:
    """Both parts, and the noise scale."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    left.plot(variances, label="tr(Σ): variance of one example's gradient")
    left.plot(np.maximum(signals, 1e-6), label="|G|²: the true gradient")
    left.set(title="the two parts, averaged", xlabel="step", yscale="log")
    left.legend(fontsize="small")
    scale = np.where(np.asarray(signals) > 0, np.divide(variances, signals), np.nan)
    right.plot(scale, label="noise scale")
    right.axhline(BATCH, color="gray", linestyle="--", label="the batch that trains here")
    right.set(title="tr(Σ) / |G|²", xlabel="step", ylabel="examples", ylim=(0, None))
    right.legend(fontsize="small")
    figure.savefig(file, dpi=90)


def main() -> None:
    """Train, print the noise scale at five places, and draw it."""
    parser = argparse.ArgumentParser(description="The gradient noise scale along training.")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--out", type=Path, default=Path("noise_scale.png"))
    given = parser.parse_args()
    variances, signals, losses = train(given.steps)
    for t in np.linspace(given.steps // 5, given.steps, 5).astype(int):
        scale = variances[t - 1] / signals[t - 1]
        print(f"step {t}: loss {losses[t - 1]:.3f}, noise scale {scale:.0f} examples")
    draw(variances, signals, given.out)
    print(f"picture: {given.out}")


if __name__ == "__main__":
    main()
