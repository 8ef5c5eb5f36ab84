"""Differentially private gradients and optimizers: each example's gradient clipped, with noise.

Noise for parameters: drawn from a secret seed, for every array on its own.
"""

import hashlib
import math
import operator
from functools import cache
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.core import Tracer

from hlo_surgery.optimizers.adam import OF_THE_MEAN, averaging
from hlo_surgery.optimizers.learning_rates import LearningRate, widely
from hlo_surgery.optimizers.required import (
    Given,
    StatisticsTransformation,
    batch_size,
    chained,
    holds_masked,
    with_statistics,
)
from hlo_surgery.passes.ir.constants import widened_tree
from hlo_surgery.requests.groups import group_labels
from hlo_surgery.requests.leaves import is_key
from hlo_surgery.statistics.derived import Per, Statistic, positive
from hlo_surgery.statistics.weighted import clipped_mean

# Of the key that JAX's default generator takes, and so of a seed.
BYTES = 8
Seed = int | bytes | Array


def key_of(seed: Seed) -> tuple[Any, Any]:
    """The words of the key that a seed stands for, all its bits, and its generator, x64 or not.

    A number from 0 to 2**64 - 1, the 8 bytes of one, or a key of `jax.random`. Raises TypeError and
    ValueError for another seed.
    """
    if is_key(seed):
        return _one_key(seed)
    if isinstance(seed, Array | np.ndarray) and seed.ndim == 1 and seed.dtype == jnp.uint32:
        return _one_key(jax.random.wrap_key_data(seed))
    return _words(_number(seed)), "threefry2x32"


def normal_like(key: Array, tree: Any) -> Any:
    """Normal noise for each array of a pytree, of deviation 1 in each real number.

    It depends on where in the pytree an array is, and not on what others there are: parts of a
    pytree that are treated apart, as by `optax.multi_transform`, have noise of their own, though of
    one key.
    """

    def noise(path: Any, x: Array) -> Array:
        own = key
        for word in np.frombuffer(hashlib.sha256(repr(path).encode()).digest()[:BYTES], ">u4"):
            own = jax.random.fold_in(own, np.uint32(word))
        # `jax.random.normal` has deviation 1 / sqrt(2) in both parts of a complex number.
        return jax.random.normal(own, x.shape, x.dtype) * (
            math.sqrt(2) if jnp.iscomplexobj(x) else 1
        )

    return jax.tree_util.tree_map_with_path(noise, tree)


def _one_key(key: Array) -> tuple[Any, Any]:
    if key.shape:
        raise ValueError(f"seed is an array of keys of shape {key.shape}; pass one of them")
    return jax.random.key_data(key), jax.random.key_impl(key)


def _number(seed: Any) -> int:
    if isinstance(seed, bytes | bytearray):
        if len(seed) != BYTES:
            raise ValueError(
                f"seed is of {len(seed)} bytes; pass {BYTES}, such as secrets.token_bytes({BYTES})"
            )
        return int.from_bytes(seed, "big")
    if isinstance(seed, Tracer):
        raise TypeError(
            "seed is traced; with optax.inject_hyperparams name it among static_args, or pass a key"
        )
    try:
        return operator.index(seed)
    except TypeError:
        raise TypeError(
            f"seed is {seed!r}; pass an integer, {BYTES} bytes or a key of jax.random"
        ) from None


def _words(number: int) -> np.ndarray[Any, Any]:
    """As `jax.random.key` makes them with x64 enabled; without, it drops the upper half."""
    if not 0 <= number < 2 ** (8 * BYTES):
        raise ValueError(
            f"seed is {number}, which does not fit a key: pass one from 0 to 2**{8 * BYTES} - 1"
        )
    return np.array([number >> 32, number & 0xFFFFFFFF], np.uint32)


# What errors speak of: who asked may have called dp_sgd, or dp_adam.
SUBJECT = "a private gradient"
DIVIDES_BY_DATA = (
    "with is_real, the number of examples is data, and a noisy sum divided by it is not private: "
    "pass expected_batch_size=..., how many a batch has on average, to the optimizer"
)


class PrivateState(NamedTuple):
    """The key of the noise to come."""

    key: Array


def private_gradient(
    max_norm: float,
    noise_multiplier: float,
    seed: Seed,
    *,
    per: Per = "global",
    nan_safe: bool = True,
    expected_batch_size: float | None = None,
) -> StatisticsTransformation:
    """The mean of the examples' gradients, each clipped to `max_norm`, with normal noise: chain an
    optimizer behind it.

    The noise of each element, and of both parts of a complex one, has the standard deviation
    noise_multiplier * s / B, where s is how far the sum of the clipped gradients moves at most when
    an example is added or removed: `max_norm`, or with k groups of `per` (as in `clipped_mean`, and
    `nan_safe` too) sqrt(k) * max_norm. Of no example at all it is that of one. What privacy that
    buys over a whole training is for an accountant to say, such as Google's dp-accounting.

    `expected_batch_size` stands for B in both where batches are drawn by Poisson sampling: how many
    examples a batch happens to have is data, and dividing by it is not private. Leave it out where
    all batches have the same number of examples. A train step with `is_real` and
    noise raises ValueError without it; in a step of your own that counts the real, pass it too.

    `seed` is an integer from 0 to 2**64 - 1, 8 bytes or a key of `jax.random`. It must stay secret
    and be another one for each training; within an optimizer every parameter has noise of its own.
    `jax.random` is not made to withstand an attacker. Raises ValueError and TypeError for what is
    no such number.

    >>> import optax
    >>> optimizer = optax.chain(private_gradient(1.0, 1.1, seed=0), optax.adam(1e-3))
    >>> list(private_gradient(1.0, 1.1, seed=0).required_statistics)
    ['clipped_mean']
    """
    (limit, multiplier), (words, generator) = _checked(max_norm, noise_multiplier), key_of(seed)
    if expected_batch_size is not None:
        positive(SUBJECT, "expected_batch_size", expected_batch_size)
    # Without noise nothing is private.
    has_noise = isinstance(multiplier, Tracer) or float(multiplier) > 0
    divides_by_its_size = has_noise and expected_batch_size is None
    groups = (
        per
        if isinstance(per, str)
        else (jax.tree.structure(per), tuple(group_labels(SUBJECT, per)))
    )
    statistics = {"clipped_mean": _clipped_mean(limit, groups, nan_safe)}

    def init(params: Any) -> PrivateState:
        # A copy: states are donated.
        return PrivateState(jnp.array(words))

    def update(
        updates: Any, state: PrivateState, params: Any, given: Given
    ) -> tuple[Any, PrivateState]:
        if divides_by_its_size and given.get("batch_size_is_data", False):
            raise ValueError(DIVIDES_BY_DATA)
        means = widened_tree(given["clipped_mean"])
        deviation = multiplier * (limit * math.sqrt(_groups(per, means)))
        size = jnp.maximum(batch_size(given), 1)
        share = 1.0 if expected_batch_size is None else size / expected_batch_size
        following, now = jax.random.split(jax.random.wrap_key_data(state.key, impl=generator))
        noisy = jax.tree.map(
            lambda x, noise: (x + deviation * noise / size) * share, means, normal_like(now, means)
        )
        return noisy, PrivateState(jax.random.key_data(following))

    return with_statistics(statistics, init, update)


def dp_sgd(
    learning_rate: LearningRate,
    max_norm: float,
    noise_multiplier: float,
    seed: Seed,
    momentum: float | None = None,
    *,
    per: Per = "global",
    nan_safe: bool = True,
    expected_batch_size: float | None = None,
) -> StatisticsTransformation:
    """SGD by `private_gradient`. `momentum` sums the noisy gradients up as `optax.trace` does.

    >>> list(dp_sgd(0.1, max_norm=1.0, noise_multiplier=1.1, seed=0).required_statistics)
    ['clipped_mean']
    """
    private = private_gradient(
        max_norm,
        noise_multiplier,
        seed,
        per=per,
        nan_safe=nan_safe,
        expected_batch_size=expected_batch_size,
    )
    sums = [] if momentum is None else [widely(optax.trace(momentum))]
    return chained([private, *sums], learning_rate)


def dp_adam(
    learning_rate: LearningRate,
    max_norm: float,
    noise_multiplier: float,
    seed: Seed,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    *,
    per: Per = "global",
    nan_safe: bool = True,
    expected_batch_size: float | None = None,
    weight_decay: LearningRate = 0.0,
) -> StatisticsTransformation:
    """Adam by `private_gradient`: both averages are of the noisy gradients.

    >>> list(dp_adam(1e-3, max_norm=1.0, noise_multiplier=1.1, seed=0).required_statistics)
    ['clipped_mean']
    """
    private = private_gradient(
        max_norm,
        noise_multiplier,
        seed,
        per=per,
        nan_safe=nan_safe,
        expected_batch_size=expected_batch_size,
    )
    adam = averaging(OF_THE_MEAN, b1, b2, eps, eps_root)
    return chained([private, adam], learning_rate, weight_decay)


def _checked(max_norm: Any, noise_multiplier: Any) -> tuple[float, Any]:
    """Both, if a statistic is made of one and the other is not negative, as far as known."""
    if isinstance(max_norm, Tracer):
        raise TypeError(
            "max_norm is traced; with optax.inject_hyperparams name it among static_args"
        )
    if not isinstance(noise_multiplier, Tracer) and not 0 <= float(noise_multiplier) < math.inf:
        raise ValueError(
            f"noise_multiplier is {noise_multiplier!r}; it is a finite number, at least 0"
        )
    return float(cast(Any, positive(SUBJECT, "max_norm", max_norm))), noise_multiplier


def _groups(per: Per, means: Any) -> int:
    """How many groups of parameters are clipped, each to its own norm."""
    if per == "global":
        return 1
    if per != "parameter":
        return len(set(group_labels(SUBJECT, per)))
    if holds_masked(means):
        raise ValueError(
            'per="parameter" does not tell how many groups others clip: pass the pytree of all '
            "parameters"
        )
    return len(jax.tree.leaves(means))


@cache
def _clipped_mean(limit: float, groups: Any, nan_safe: bool) -> Statistic:
    """Two of the same bound are one statistic. `groups` is "global", "parameter" or the structure
    of a prefix with the label of each leaf.
    """
    per = groups if isinstance(groups, str) else groups[0].unflatten(groups[1])
    return clipped_mean(limit, per, nan_safe)
