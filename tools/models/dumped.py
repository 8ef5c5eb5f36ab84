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

from tools.models.layers import convolution, gated
from tools.models.specs import Input, Weight

EXAMPLES = 4
Arrays = list[Any]


@dataclass(frozen=True)
class DumpModel:
    loss: Callable[..., Any]
    parameters: tuple[Weight, ...]
    inputs: tuple[Input, ...]


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
        return gated(jnp.concatenate([now, hidden], -1) @ weights + bias, cell), None

    start = (jnp.zeros((x.shape[0], size)), jnp.zeros((x.shape[0], size)))
    (last, _), _ = lax.scan(step, start, jnp.swapaxes(x, 0, 1))
    return jnp.mean((last @ head - y) ** 2)


def images(p: Arrays, x: Any, y: Any) -> Any:
    """A convolution, GroupNorm with two groups, pooling and a head."""
    kernel, scale, head = p
    x = convolution(x, kernel)
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


FEATURES, TARGETS = Input((EXAMPLES, 3)), Input((EXAMPLES, 2))
TOKENS = Input((EXAMPLES, 5), below=7)


def of_features(loss: Callable[..., Any]) -> DumpModel:
    """With the weights of `mlp`."""
    return DumpModel(loss, (Weight((3, 6)), Weight((6,)), Weight((6, 2))), (FEATURES, TARGETS))


MODELS = {
    "mlp": of_features(mlp),
    "attention": DumpModel(
        attention, (Weight((7, 6)), *[Weight((6, 6))] * 3, Weight((6, 7))), (TOKENS, TOKENS)
    ),
    "lstm": DumpModel(
        lstm,
        (Weight((7, 16)), Weight((16,)), Weight((4, 2))),
        (Input((EXAMPLES, 6, 3)), TARGETS),
    ),
    "convolution": DumpModel(
        images,
        (Weight((3, 3, 2, 4)), Weight((4,)), Weight((4, 2))),
        (Input((EXAMPLES, 6, 6, 2)), TARGETS),
    ),
    "by_platform": of_features(by_platform),
    "printing": of_features(printing),
    "printing_in_order": of_features(printing_in_order),
    "calling_back": of_features(calling_back),
}
