"""Small models for `make_dumps.py`, in plain JAX that every version from 0.4.30 on can lower.

A model is a loss of its parameters (a list) and its batch arguments, the mean over the first axis
of a loss of each example; what is special about it is in its docstring.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

EXAMPLES = 4
Arrays = list[Any]


@dataclass(frozen=True)
class DumpModel:
    """`parameters`: their shapes. `inputs`: shapes, with a bound where the input is an index below
    it.
    """

    loss: Callable[..., Any]
    parameters: tuple[tuple[int, ...], ...]
    inputs: tuple[tuple[tuple[int, ...], int | None], ...]


def mlp(p: Arrays, x: Any, y: Any) -> Any:
    """Two layers."""
    hidden = jnp.tanh(x @ p[0] + p[1])
    return jnp.mean((hidden @ p[2] - y) ** 2)


def attention(p: Arrays, tokens: Any, labels: Any) -> Any:
    """One attention block over an embedding, and a head."""
    embedding, query, key, value, head = p
    x = embedding[tokens]
    scores = jnp.einsum("bqd,bkd->bqk", x @ query, x @ key)
    causal = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    x = x + jax.nn.softmax(jnp.where(causal, scores, -1e9)) @ (x @ value)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(x @ head), labels[..., None], -1)
    return -jnp.mean(chosen)


def lstm(p: Arrays, x: Any, y: Any) -> Any:
    """An LSTM scanned over time."""
    weights, bias, head = p
    size = head.shape[0]

    def step(state: Any, now: Any) -> Any:
        hidden, cell = state
        gates = jnp.concatenate([now, hidden], -1) @ weights + bias
        i, f, g, o = jnp.split(gates, 4, -1)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
        return (hidden, cell), None

    start = (jnp.zeros((x.shape[0], size)), jnp.zeros((x.shape[0], size)))
    (last, _), _ = lax.scan(step, start, jnp.swapaxes(x, 0, 1))
    return jnp.mean((last @ head - y) ** 2)


def convolution(p: Arrays, x: Any, y: Any) -> Any:
    """A convolution, GroupNorm with two groups, pooling and a head."""
    kernel, scale, head = p
    x = lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    groups = x.reshape(*x.shape[:-1], 2, -1)
    centred = groups - groups.mean((1, 2, 4), keepdims=True)
    normal = centred * lax.rsqrt((centred**2).mean((1, 2, 4), keepdims=True) + 1e-5)
    return jnp.mean((jnp.tanh(normal.reshape(x.shape) * scale).mean((1, 2)) @ head - y) ** 2)


def by_platform(p: Arrays, x: Any, y: Any) -> Any:
    """Another activation on each platform: branches on its index in an export for several."""

    def other(h: Any) -> Any:
        return jnp.tanh(2 * h)

    hidden = lax.platform_dependent(x @ p[0] + p[1], cpu=jnp.tanh, tpu=other, cuda=other)
    return jnp.mean((hidden @ p[2] - y) ** 2)


def printing(p: Arrays, x: Any, y: Any) -> Any:
    """Prints from the host."""
    hidden = jnp.tanh(x @ p[0] + p[1])
    jax.debug.print("mean {}", hidden.mean())
    return jnp.mean((hidden @ p[2] - y) ** 2)


def printing_in_order(p: Arrays, x: Any, y: Any) -> Any:
    """Prints from the host, in order: the module takes and returns a token."""
    hidden = jnp.tanh(x @ p[0] + p[1])
    jax.debug.print("mean {}", hidden.mean(), ordered=True)
    return jnp.mean((hidden @ p[2] - y) ** 2)


def first_column(x: Any) -> Any:
    """On the host."""
    return np.asarray(x)[:, :1]


def calling_back(p: Arrays, x: Any, y: Any) -> Any:
    """Scales the examples with numbers from the host."""
    scale = jax.pure_callback(first_column, jax.ShapeDtypeStruct((EXAMPLES, 1), x.dtype), x)
    return mlp(p, x * scale, y)


MLP = (((3, 6), (6,), (6, 2)), (((EXAMPLES, 3), None), ((EXAMPLES, 2), None)))
MODELS = {
    "mlp": DumpModel(mlp, *MLP),
    "attention": DumpModel(
        attention,
        ((7, 6), (6, 6), (6, 6), (6, 6), (6, 7)),
        (((EXAMPLES, 5), 7), ((EXAMPLES, 5), 7)),
    ),
    "lstm": DumpModel(
        lstm, ((7, 16), (16,), (4, 2)), (((EXAMPLES, 6, 3), None), ((EXAMPLES, 2), None))
    ),
    "convolution": DumpModel(
        convolution,
        ((3, 3, 2, 4), (4,), (4, 2)),
        (((EXAMPLES, 6, 6, 2), None), ((EXAMPLES, 2), None)),
    ),
    "by_platform": DumpModel(by_platform, *MLP),
    "printing": DumpModel(printing, *MLP),
    "printing_in_order": DumpModel(printing_in_order, *MLP),
    "calling_back": DumpModel(calling_back, *MLP),
}
