"""Verification catches wrong statistics whose faults are far below an array's largest entry."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.requests.request import make_request
from hlo_surgery.verification.verify import verify_rewritten

SIZE, GRADIENTS = 6, 3
STATISTICS = {
    "squares": hs.second_moment(),
    "sizes": hs.mean_abs(),
    "cubes": hs.mean_power(3),
    "each": hs.per_example(),
    "variance": hs.variance(),
}


class Claimed:
    """What stands in for a rewritten module that returns these arrays."""

    plan = None

    def __init__(self, outputs):
        self.outputs = outputs

    def call(self, *arrays):
        return self.outputs


def loss(p, tokens, x):
    """Columns of x from 1 to 1e-5, rows of a table that few examples touch, and a term without
    examples.
    """
    hidden = jnp.tanh(p["table"][tokens].sum(1) + x @ p["w"])
    return (
        jnp.mean(jnp.sum(hidden**2, -1))
        + 1e-3 * jnp.sum(p["b"] ** 2)
        + jnp.mean(x @ p["w"] @ p["b"]) * 1e-2
    )


def arrays(dtype=np.float32):
    generator = np.random.default_rng(0)
    columns = np.array([1, 1e-1, 1e-2, 1e-3, 1e-5])
    p = {
        "b": generator.normal(size=4),
        "table": generator.normal(size=(7, 4)),
        "w": generator.normal(size=(5, 4)),
    }
    x = generator.normal(size=(SIZE, 5)) * columns
    tokens = generator.integers(0, 7, (SIZE, 3)).astype(np.int32)
    return [*(np.asarray(p[k], dtype) for k in ("b", "table", "w")), tokens, np.asarray(x, dtype)]


def lowered(inputs):
    b, table, w, tokens, x = inputs
    dumped = jax.jit(jax.grad(loss)).lower({"b": b, "table": table, "w": w}, tokens, x)
    return hs.load(dumped.as_text(debug_info=True))


INPUTS = arrays()
MODULE = lowered(INPUTS)
RIGHT = [
    np.array(a)
    for a in hs.rewrite_module(MODULE, batch=[3, 4], statistics=STATISTICS).call(*INPUTS)
]


def verdict(outputs):
    request = make_request(MODULE, [3, 4], STATISTICS, None, "mean", "refuse", {})
    return verify_rewritten(MODULE, Claimed(outputs), request, INPUTS)


def test_what_is_right_is_equivalent():
    assert verdict(RIGHT).verdict == "equivalent"


def small(array):
    """Where an array's entries are small, but not so small that they are nothing."""
    sizes = np.abs(array)
    return np.argwhere((sizes > 0) & (sizes <= np.median(sizes[sizes > 0])))


def plant(generator):
    """A fault in one of the statistics returned: its kind, and what is returned then. None where it
    changes little.
    """
    outputs = [a.copy() for a in RIGHT]
    number = int(generator.integers(GRADIENTS, len(outputs)))
    kind = FAULTS[int(generator.integers(len(FAULTS)))]
    places = small(outputs[number])
    one, other = (tuple(places[i]) for i in generator.integers(0, len(places), 2))
    changed = kind(outputs[number], one, other, generator)
    sizes = np.maximum(np.abs(changed), np.abs(RIGHT[number]))
    by = np.max(np.abs(changed - RIGHT[number])[sizes > 0] / sizes[sizes > 0], initial=0)
    outputs[number] = changed.astype(np.float32)
    return (kind.__name__, outputs) if by > 3e-3 else None


def by_a_small_factor(array, one, other, generator):
    array[one] *= generator.choice([0.99, 0.995, 1.005, 1.02, 1.5, 10])
    return array


def two_entries_swapped(array, one, other, generator):
    array[one], array[other] = array[other], array[one]
    return array


def one_example_missing(array, one, other, generator):
    array[one] *= (SIZE - 1) / SIZE
    return array


def one_row_off(array, one, other, generator):
    array[one[:-1]] *= generator.choice([0, 0.5, 1.01])
    return array


def one_entry_zero(array, one, other, generator):
    array[one] = 0
    return array


def another_sign(array, one, other, generator):
    array[one] *= -1
    return array


FAULTS = (
    by_a_small_factor,
    two_entries_swapped,
    one_example_missing,
    one_row_off,
    one_entry_zero,
    another_sign,
)


def test_faults_in_small_entries_are_caught():
    generator = np.random.default_rng(0)
    planted = [p for p in (plant(generator) for _ in range(90)) if p][:50]
    missed = [kind for kind, outputs in planted if verdict(outputs).verdict != "not equivalent"]
    assert len(planted) == 50
    assert missed == []


@pytest.mark.parametrize("share", [0, 1 / SIZE, SIZE])
def test_a_term_without_examples_belongs_to_each_gradient_once(share):
    """`share`: what a wrong rewriting takes of it."""
    outputs = [a.copy() for a in RIGHT]
    each = RIGHT[12] + (share - 1) * 2e-3 * INPUTS[0]
    outputs[3] = np.mean(each**2, 0, dtype=np.float32)
    assert verdict(outputs).verdict == "not equivalent"
