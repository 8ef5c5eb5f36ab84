"""Drawn gradients of examples, an optimizer fed with their statistics, a reference with them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

import hlo_surgery.optimizers as ho
from tests.rounded import Rounded, rounded, unit_of

STEPS, SIZE, MAX_NORM = 50, 4, 9.0
RNG = np.random.default_rng(0)


def exact(*shape):
    """Standard normal, and exact in float32."""
    return RNG.normal(size=shape).astype(np.float32).astype(np.float64)


PARAMS = {"bias": exact(5), "layer": {"scale": exact(), "weight": exact(3, 4)}}
LEAVES, TREE = jax.tree.flatten(PARAMS)


def drawn(steps=STEPS, size=SIZE):
    """For every step the gradients of all examples: a list over the parameters of [steps, size,
    *parameter].

    Elements differ in scale, 1e-4 to 10, and in how much of them is noise; every sixth has a
    gradient of zero.
    """
    rng = np.random.default_rng(1)
    found = []
    for leaf in LEAVES:
        scale = 10 ** rng.uniform(-4, 1, leaf.shape) * (
            np.arange(leaf.size).reshape(leaf.shape) % 6 != 3
        )
        mean = rng.choice([0.0, 0.5, 4.0], leaf.shape)
        noise = rng.normal(size=(steps, size, *leaf.shape))
        found.append((scale * (mean + noise)).astype(np.float32).astype(np.float64))
    return found


def tree_of(leaves, dtype):
    return jax.tree.unflatten(TREE, [jnp.asarray(x, dtype) for x in leaves])


def norms_of(examples):
    """The norm of each example's gradient, [..., B]."""
    axis = examples[-1].ndim - LEAVES[-1].ndim - 1
    squares = [np.sum(x.reshape(*x.shape[: axis + 1], -1) ** 2, -1) for x in examples]
    return np.sqrt(sum(squares))


def statistics_of(examples, dtype):
    """What an optimizer may be given, of [..., B, *parameter], in float64 and rounded once."""
    axis = examples[-1].ndim - LEAVES[-1].ndim - 1
    scales = MAX_NORM / np.maximum(norms_of(examples), MAX_NORM)
    weighted = [scales.reshape(*scales.shape, *[1] * (x.ndim - axis - 1)) * x for x in examples]
    found = {
        "gradient": examples,
        "second_moment": [x**2 for x in examples],
        "mean_sign": [np.sign(x) for x in examples],
        "clipped_mean": weighted,
    }
    return {name: tree_of([x.mean(axis) for x in each], dtype) for name, each in found.items()}


def needed(optimizer, found):
    """Of the statistics those that it asks for."""
    return {name: found[name] for name in ho.required_statistics(optimizer, found["gradient"])}


def trained(optimizer, examples, dtype, size=SIZE):
    """The parameters after every step, stacked."""

    def step(carry, seen):
        params, state = carry
        asked = needed(optimizer, seen)
        updates, state = optimizer.update(seen["gradient"], state, params, batch_size=size, **asked)
        params = optax.apply_updates(params, updates)
        return (params, state), params

    start = tree_of(LEAVES, dtype)
    stacked = statistics_of(examples, dtype)
    return jax.jit(lambda carry, stacked: lax.scan(step, carry, stacked)[1])(
        (start, optimizer.init(start)), stacked
    )


def followed(reference, examples, dtype, roundings=1):
    """The reference's parameters after every step; another order of the same operations may double
    their rounding.

    `roundings`: those behind the gradients.
    """
    unit = 2 * unit_of(dtype)
    params = [Rounded(leaf, 0 * leaf, unit) for leaf in LEAVES]
    for batch in zip(*examples, strict=True):
        params = reference(
            params,
            [
                [rounded(g, unit, roundings) for g in example]
                for example in zip(*batch, strict=True)
            ],
        )
        yield params


def assert_within(found, expected, dtype):
    """In float64 at most 1e-11 of a parameter's largest entry, where estimates cancel."""
    for step, wanted in enumerate(expected):
        for leaf, want in zip(jax.tree.leaves(found), wanted, strict=True):
            assert (abs(np.float64(leaf[step]) - want.value) <= want.error).all()
            assert dtype == jnp.float32 or want.error.max() < 1e-11 * max(1, abs(want.value).max())
