"""GraNd and EL2N on digits: the lowest scores are left out of training, against random ones.

GraNd is the norm of an example's gradient at initialisation or early in training, EL2N that of the
error of its prediction early in training, each a mean over several models (Paul et al., "Deep
Learning on a Data Diet"). With

    python -m tools.experiments.pruning
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import hlo_surgery as hs
from tools.experiments.attribution.digits import Examples
from tools.experiments.intervals import difference
from tools.experiments.m_sweep import digits, initial, loss

BATCH_SIZE, STEPS, EARLY, MODELS, RATE = 64, 400, 50, 5, 0.01
KEPT = (0.75, 0.5, 0.25)
SCORES = "| kept | at random | GraNd less that | GraNd, early, less that | EL2N less that |"


@jax.jit
def _step(params: Any, state: Any, x: Any, y: Any) -> tuple[Any, Any]:
    updates, state = optax.adam(RATE).update(jax.grad(loss)(params, x, y), state)
    return optax.apply_updates(params, updates), state


def trained(data: Examples, seed: int, steps: int) -> Any:
    """The parameters after so many steps, as many for each number of examples."""
    rng, params = np.random.default_rng(seed), initial(seed)
    state = optax.adam(RATE).init(params)
    for _ in range(steps):
        taken = rng.choice(len(data[1]), BATCH_SIZE, replace=False)
        params, state = _step(params, state, data[0][taken], data[1][taken])
    return params


NORMS = jax.jit(hs.grad(loss, batch_argnums=(1, 2), statistics=hs.norms()))


def grand(data: Examples, seed: int) -> np.ndarray:
    """The norm of each example's gradient at initialisation."""
    return np.asarray(NORMS(initial(seed), *data)[1])


def grand_early(data: Examples, seed: int) -> np.ndarray:
    """The same early in training."""
    return np.asarray(NORMS(trained(data, seed, EARLY), *data)[1])


def el2n(data: Examples, seed: int) -> np.ndarray:
    """The norm of each example's error; no gradients are needed."""
    p = trained(data, seed, EARLY)
    logits = jnp.tanh(data[0] @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
    error = jax.nn.softmax(logits) - jax.nn.one_hot(data[1], 10)
    return np.asarray(jnp.linalg.norm(error, axis=-1))


def at_random(data: Examples, seed: int) -> np.ndarray:
    """Scores that say nothing."""
    return np.random.default_rng(seed).random(len(data[1]))


def mean_score(of: Callable[[Examples, int], np.ndarray], data: Examples, seed: int) -> np.ndarray:
    """The mean over models, none of which is the one that is trained."""
    return np.mean([of(data, 1000 + MODELS * seed + i) for i in range(MODELS)], 0)


def held_out(data: Examples, held: Examples, scores: np.ndarray, kept: float, seed: int) -> float:
    """The accuracy, in per cent, after training on the highest scores."""
    taken = np.argsort(-scores)[: int(kept * len(scores))]
    p = trained((data[0][taken], data[1][taken]), seed, STEPS)
    logits = jnp.tanh(held[0] @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
    return float(100 * jnp.mean(jnp.argmax(logits, -1) == held[1]))


OF_GRADIENTS = (grand, grand_early, el2n)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints accuracies, and differences to random choices with their 95 % intervals."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    seeds = range(parser.parse_args(arguments).seeds)
    data, held = digits()
    print(SCORES)
    print("|---|---|---|---|---|")
    scores = {
        of: [mean_score(of, data, seed) for seed in seeds] for of in (at_random, *OF_GRADIENTS)
    }
    for kept in KEPT:
        found = {
            of: np.array([held_out(data, held, each[seed], kept, seed) for seed in seeds])
            for of, each in scores.items()
        }
        less = [difference(found[of] - found[at_random]) for of in OF_GRADIENTS]
        print(f"| {kept:.0%} | {found[at_random].mean():.2f} | {' | '.join(less)} |", flush=True)


if __name__ == "__main__":
    main()
