"""Finding mislabelled examples: by loss, by gradient norm and by influence on held-out data.

    pip install '.[examples]' && python mislabelled.py

A tenth of the training digits get a wrong label. After training, three scores order the training
set, and the output says how many of the wrong labels are among as many of the first:

- the example's own loss, which needs no gradient: the baseline;
- the norm of its gradient (GraNd of Paul et al., "Deep Learning on a Data Diet", at one model);
- its influence: minus the inner product with the gradient of a held-out set that is known to be
  right (TracIn of Pruthi et al., "Estimating Training Data Influence by Tracing Gradient Descent",
  at one checkpoint), as it is and with the gradient divided by the mean square of the examples'
  gradients, a diagonal stand-in for the curvature of influence functions.
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from sklearn.datasets import load_digits

import hlo_surgery as hs

TRAINED, WRONG, BATCH = 1400, 0.1, 128


def loss(params: Any, x: Array, y: Array) -> Array:
    """Mean cross-entropy of a network of one hidden layer."""
    hidden = jax.nn.relu(x @ params["w1"] + params["b1"])
    scores = hidden @ params["w2"] + params["b2"]
    return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()


def initial(seed: int) -> Any:
    """The network's parameters before training."""
    first, second = jax.random.split(jax.random.key(seed))
    return {
        "w1": jax.random.normal(first, (64, 64)) / 8,
        "b1": jnp.zeros(64),
        "w2": jax.random.normal(second, (64, 10)) / 8,
        "b2": jnp.zeros(10),
    }


def trained(x: Any, y: Any, steps: int, seed: int) -> Any:
    """The parameters after so many steps of Adam."""
    rng, optimizer = np.random.default_rng(seed), optax.adam(3e-3)
    step = hs.train_step(loss, optimizer, batch_argnums=(1, 2))
    params = initial(seed)
    state = optimizer.init(params)
    for _ in range(steps):
        rows = rng.integers(0, len(x), BATCH)
        params, state, _ = step(params, state, x[rows], y[rows])
    return params


def scores(params: Any, x: Any, y: Any, held_out: tuple[Any, Any]) -> dict[str, np.ndarray]:
    """How suspect each example is, [B], by score: the largest first."""
    direction = jax.grad(loss)(params, *held_out)
    squares = hs.grad(loss, batch_argnums=(1, 2), statistics=hs.second_moment())(params, x, y)[1]
    damping = jax.tree.map(jnp.mean, squares)
    scaled = jax.tree.map(lambda g, s, d: g / (s + d), direction, squares, damping)
    statistics = {
        "loss": hs.per_example_losses(),
        "gradient norm": hs.norms(),
        "influence": hs.inner_products(direction),
        "influence, scaled": hs.inner_products(scaled),
    }
    f = hs.value_and_grad(loss, batch_argnums=(1, 2), statistics=statistics)
    _, found = f(params, x, y)
    # What pulls against the held-out gradient is suspect.
    signs = {name: -1 if name.startswith("influence") else 1 for name in found}
    return {name: signs[name] * np.asarray(values) for name, values in found.items()}


def main() -> None:
    """Train on wrong labels, and look for them."""
    parser = argparse.ArgumentParser(description="Finding mislabelled examples.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    digits: Any = load_digits()
    rng = np.random.default_rng(given.seed)
    order = rng.permutation(len(digits.target))
    x, true = (digits.data[order] / 16).astype(np.float32), digits.target[order]
    wrong = rng.random(TRAINED) < WRONG
    labels = np.where(wrong, (true[:TRAINED] + rng.integers(1, 10, TRAINED)) % 10, true[:TRAINED])
    params = trained(x[:TRAINED], labels, given.steps, given.seed)
    found = scores(params, x[:TRAINED], labels, (x[TRAINED:], true[TRAINED:]))
    print(f"{wrong.sum()} of {TRAINED} labels are wrong; of as many of the first by")
    for name, values in found.items():
        first = np.argsort(-values)[: wrong.sum()]
        print(f"  {name:18} {wrong[first].sum()} are")


if __name__ == "__main__":
    main()
