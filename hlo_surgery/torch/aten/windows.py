"""Windows: pooling along the last dimensions."""

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hlo_surgery.torch.aten.operators import Made, array, operator


@operator("avg_pool2d.default", "avg_pool3d.default")
def _avg_pool(made: Made, x: Any, *how: Any) -> Any:
    return _averages(x, made.shape, *how)


@operator("avg_pool2d_backward.default", "avg_pool3d_backward.default")
def _avg_pool_backward(_: Made, cotangent: Any, x: Any, *how: Any) -> Any:
    transpose = jax.linear_transpose(lambda x: _averages(x, cotangent.shape, *how), x)
    return transpose(cotangent)[0]


def _max_pool(
    count: int,
    made: Made,
    x: Any,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    """The largest numbers and where they lie, counted row by row over the places of one channel."""
    kernel, dilation = _each(kernel, count), _each(dilation, count)
    stride, padding = _each(stride, count) or kernel, _each(padding, count)
    places = np.arange(math.prod(x.shape[-count:])).reshape(x.shape[-count:])
    lowest = -np.inf if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.iinfo(x.dtype).min
    how = (made.shape[-count:], kernel, stride, padding, dilation)
    values = _stacked(x, array(lowest, x.dtype), *how)
    numbers = _stacked(jnp.asarray(places), jnp.asarray(0), *how)
    # The first of what is as large; a NaN is larger than all numbers.
    chosen = jnp.argmax(values, axis=0)
    found = jnp.take_along_axis(values, chosen[None], axis=0)[0]
    numbers = numbers.reshape(len(numbers), *[1] * (x.ndim - count), *made.shape[-count:])
    numbers = jnp.broadcast_to(numbers, values.shape)
    return found, jnp.take_along_axis(numbers, chosen[None], axis=0)[0]


def _max_pool_backward(count: int, _: Made, cotangent: Any, x: Any, *how_and_indices: Any) -> Any:
    """Each number is added at the place of x that its index says."""
    indices = how_and_indices[-1]
    rows, places = x.shape[:-count], math.prod(x.shape[-count:])

    def one(numbers: Any, at: Any) -> Any:
        return jnp.zeros(places, x.dtype).at[at].add(numbers)

    put = one
    for _ in rows:
        put = jax.vmap(put)
    flat = (*rows, -1)
    return put(cotangent.reshape(flat), indices.reshape(flat)).reshape(x.shape)


for _count in (2, 3):
    operator(f"max_pool{_count}d_with_indices.default")(partial(_max_pool, _count))
    operator(f"max_pool{_count}d_with_indices_backward.default")(
        partial(_max_pool_backward, _count)
    )


def _averages(
    x: Any,
    shape: Sequence[int],
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    count = len(kernel)
    stride, padding = _each(stride, count) or kernel, _each(padding, count)
    sizes = x.shape[-count:]
    whole = _windows_reach(sizes, shape[-count:], kernel, stride, padding)
    pads = [*[(0, 0)] * (x.ndim - count), *whole]
    ones = [1] * (x.ndim - count)
    sums = jax.lax.reduce_window(
        x, np.zeros((), x.dtype), jax.lax.add, (*ones, *kernel), (*ones, *stride), pads
    )
    if divisor_override:
        return sums / array(divisor_override, x.dtype)
    pairs = zip(sizes, shape[-count:], kernel, stride, padding, strict=True)
    counts = [_counts(*each, count_include_pad) for each in pairs]
    return sums / jnp.asarray(math.prod(np.ix_(*counts)), x.dtype)


def _counts(size: int, made: int, kernel: int, stride: int, padding: int, padded: bool) -> Any:
    """How many numbers each window averages: those that padding puts there count as well, but
    not what lies beyond, where the last window is only partly there.
    """
    starts = np.arange(made) * stride - padding
    first, last = (-padding, size + padding) if padded else (0, size)
    return np.minimum(starts + kernel, last) - np.maximum(starts, first)


def _windows_reach(
    sizes: Sequence[int],
    made: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
) -> list[tuple[int, int]]:
    """What is put before and behind, so that there are as many windows as are made."""
    each = zip(sizes, made, kernel, stride, padding, strict=True)
    return [(p, (m - 1) * s + k - n - p) for n, m, k, s, p in each]


def _stacked(
    x: Any,
    outside: Any,
    made: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Any:
    """All windows' first numbers, their second ones, and so on: [prod(kernel), ..., *made]."""
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    pads = _windows_reach(x.shape[-len(made) :], made, reach, stride, padding)
    config = [*[(0, 0, 0)] * (x.ndim - len(made)), *((*pad, 0) for pad in pads)]
    padded = jax.lax.pad(x, outside, config)
    found: list[Any] = []
    for offset in itertools.product(*map(range, kernel)):
        starts = [o * d for o, d in zip(offset, dilation, strict=True)]
        each = zip(starts, made, stride, strict=True)
        found.append(padded[(..., *(slice(a, a + (m - 1) * s + 1, s) for a, m, s in each))])
    return jnp.stack(found)


def _each(sizes: Any, count: int) -> list[int]:
    """A size for each dimension, where PyTorch may have one for all, or none."""
    given = [sizes] if isinstance(sizes, int) else list(sizes)
    return given * count if len(given) == 1 else given
