"""Quick start: train on digits of which 40 % have a wrong label, and clip each example's gradient.

pip install '.[examples]' && python quick_start.py

Three runs of the same network by Adam: as it is; with the batch's gradient clipped; with every
example's own gradient clipped, so that no wrong label pulls harder than a right one. Then the
training set is ordered by the norms of its examples' gradients. Writes quick_start.png. Half a
minute of CPU time.
"""

import argparse
import time
from collections.abc import Callable
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

TRAINED, WRONG, BATCH, CLIP = 1400, 0.4, 64, 0.3
RATE = 3e-3
METHODS: dict[str, Callable[[], Any]] = {
    "Adam": lambda: optax.adam(RATE),
    "Adam, batch clipped": lambda: optax.chain(optax.clip_by_global_norm(CLIP), optax.adam(RATE)),
    # Noise of deviation 0: what is left of a private gradient is the clipping.
    "Adam, each example clipped": lambda: optax.chain(
        ho.private_gradient(CLIP, noise_multiplier=0.0, seed=0), optax.adam(RATE)
    ),
}


def loss(params: Any, x: Array, y: Array) -> Array:
    """Mean cross-entropy. Nothing here knows of single examples' gradients."""
    return optax.softmax_cross_entropy_with_integer_labels(scores(params, x), y).mean()


def scores(params: Any, x: Array) -> Array:
    """A network of one hidden layer: [B, 64] to [B, 10]."""
    hidden = jax.nn.relu(x @ params["w1"] + params["b1"])
    return hidden @ params["w2"] + params["b2"]


def initial(seed: int) -> Any:
    """The network's parameters before training."""
    first, second = jax.random.split(jax.random.key(seed))
    return {
        "w1": jax.random.normal(first, (64, 256)) / 8,
        "b1": jnp.zeros(256),
        "w2": jax.random.normal(second, (256, 10)) / 16,
        "b2": jnp.zeros(10),
    }


def data(seed: int) -> dict[str, np.ndarray]:
    """Digits for training, some with another label than their true one, and others held out."""
    digits: Any = load_digits()
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(digits.target))
    x, true = (digits.data[order] / 16).astype(np.float32), digits.target[order]
    wrong = rng.random(TRAINED) < WRONG
    other = (true[:TRAINED] + rng.integers(1, 10, TRAINED)) % 10
    return {
        "x": x[:TRAINED],
        "y": np.where(wrong, other, true[:TRAINED]),
        "true": true[:TRAINED],
        "held_out_x": x[TRAINED:],
        "held_out_y": true[TRAINED:],
    }


def train(method: str, steps: int, seed: int) -> tuple[Any, list[float]]:
    """The trained parameters, and the held-out accuracy after each of 20 parts of the run."""
    given, params, rng = data(seed), initial(seed), np.random.default_rng(seed)
    optimizer = METHODS[method]()
    step = hs.train_step(loss, optimizer, batch_argnums=(1, 2))
    state, curve = optimizer.init(params), list[float]()
    for t in range(steps):
        rows = rng.integers(0, TRAINED, BATCH)
        params, state, _ = step(params, state, given["x"][rows], given["y"][rows])
        if (t + 1) % (steps // 20) == 0:
            curve.append(accuracy(params, given["held_out_x"], given["held_out_y"]))
    return params, curve


@jax.jit
def is_right(params: Any, x: Array, y: Array) -> Array:
    """Whether the network gives each digit its label, [B]."""
    return jnp.argmax(scores(params, x), -1) == y


def accuracy(params: Any, x: Any, y: Any) -> float:
    """The share of digits that the network gives their label."""
    return float(jnp.mean(is_right(params, x, y)))


def gradient_norms(params: Any, x: Any, y: Any) -> np.ndarray:
    """The norm of each example's gradient, [B]: one line beside the gradient itself."""
    f = hs.grad(loss, batch_argnums=(1, 2), statistics=hs.norms())
    _, norms = f(params, x, y)
    return np.asarray(norms)


def draw(curves: dict[str, Any], given: dict[str, np.ndarray], norms: Any, file: Path) -> None:
    """Mean and range of the accuracies; norms by label; the digits of the largest norms."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure = plt.figure(figsize=(13, 4), layout="constrained")
    panels: Any = figure.subfigures(1, 3)
    left, middle, right = panels
    _draw_curves(left.subplots(), curves)
    _draw_norms(middle.subplots(), norms, given["y"] != given["true"])
    _draw_digits(right, given, np.argsort(-norms)[:20])
    figure.savefig(file, dpi=90)


def _draw_curves(axes: Any, curves: dict[str, Any]) -> None:
    for color, (method, (steps, runs)) in enumerate(curves.items()):
        lowest, highest = np.min(runs, axis=0), np.max(runs, axis=0)
        axes.fill_between(steps, lowest, highest, color=f"C{color}", alpha=0.2, linewidth=0)
        axes.plot(steps, np.mean(runs, axis=0), color=f"C{color}", label=method)
    axes.set(title="accuracy on held-out digits", xlabel="step", ylim=(0.7, 1))
    axes.legend(fontsize="small", loc="lower left")


def _draw_norms(axes: Any, norms: np.ndarray, wrong: np.ndarray) -> None:
    bins = np.linspace(0, float(np.max(norms)), 40)
    axes.hist(norms[~wrong], bins, alpha=0.7, color="C0", label="right label")
    axes.hist(norms[wrong], bins, alpha=0.7, color="C3", label="wrong label")
    axes.set(title="norms of the examples' gradients", xlabel="norm", ylabel="examples")
    axes.legend(fontsize="small")


def _draw_digits(figure: Any, given: dict[str, np.ndarray], rows: np.ndarray) -> None:
    figure.suptitle("the largest norms: label (true)", fontsize="large")
    for axes, row in zip(figure.subplots(4, 5).ravel(), rows, strict=True):
        axes.imshow(given["x"][row].reshape(8, 8), cmap="gray_r")
        label, true = given["y"][row], given["true"][row]
        color = "C3" if label != true else "C0"
        axes.set_title(f"{label} ({true})", fontsize="small", color=color)
        axes.axis("off")


def main() -> None:
    """Train, print what came out, and draw it."""
    parser = argparse.ArgumentParser(description="Clip each example's gradient.")
    parser.add_argument("--steps", type=int, default=1200, help="a multiple of 20")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("quick_start.png"))
    given = parser.parse_args()
    print(f"{given.seeds} trainings each of {len(METHODS)} ways; half a minute by default")
    every = np.arange(1, 21) * (given.steps // 20)
    curves: dict[str, Any] = {}
    params = initial(0)
    for method in METHODS:
        found = [train(method, given.steps, seed) for seed in range(given.seeds)]
        curves[method] = every, [curve for _, curve in found]
        ends = ", ".join(f"{curve[-1]:.3f}" for _, curve in found)
        print(f"{method:27} held-out accuracy {ends}")
        params = found[0][0]
    digits = data(0)
    norms = gradient_norms(params, digits["x"], digits["y"])
    wrong = digits["y"] != digits["true"]
    first = np.argsort(-norms)[: wrong.sum()]
    print(f"of the {wrong.sum()} largest gradient norms {wrong[first].sum()} have a wrong label")
    draw(curves, digits, norms, given.out)
    print(f"picture: {given.out}, after {time.process_time():.0f} s of CPU time")


if __name__ == "__main__":
    main()
