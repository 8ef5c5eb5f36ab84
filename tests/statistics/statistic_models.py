"""Small models for tests of statistics: each a minibatch loss, its parameters and a batch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

LENGTH, WIDTH, CLASSES, VOCABULARY = 3, 4, 5, 7


@dataclass(frozen=True)
class Model:
    """`loss(params, *batch)` is a mean over the examples, or a sum where `reduction` says so."""

    loss: Callable[..., Any]
    params: dict[str, Any]
    batch: tuple[Any, ...]
    reduction: str = "mean"

    @property
    def size(self):
        return len(self.batch[0])


def draws(seed):
    """Standard normal arrays by shape."""
    rng = np.random.default_rng(seed)
    return lambda *shape: rng.normal(size=shape).astype(np.float32)


def labels(seed, *shape, below=CLASSES):
    return np.random.default_rng(seed).integers(0, below, shape)


def cross_entropy(z, y, reduce=jnp.mean):
    return reduce(-jnp.take_along_axis(jax.nn.log_softmax(z), y[..., None], -1))


def mlp(p, x, y, reduce=jnp.mean):
    h = jnp.tanh(x @ p["hidden"]["w"] + p["hidden"]["b"])
    return cross_entropy(h @ p["output"]["w"] + p["output"]["b"], y, reduce)


def tied(p, ids, y):
    """The embedding is the head, too."""
    h = jnp.tanh(p["embedding"][ids] @ p["w"])
    return cross_entropy(h @ p["embedding"].T, y)


def convolution(p, x, y):
    h = lax.conv_general_dilated(
        x, p["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    groups = h.reshape(*h.shape[:3], 2, -1)
    moments = [f(groups, (1, 2, 4), keepdims=True) for f in (jnp.mean, jnp.var)]
    h = ((groups - moments[0]) / jnp.sqrt(moments[1] + 1e-2)).reshape(h.shape) * p["scale"] + p[
        "shift"
    ]
    return cross_entropy(jnp.tanh(h).mean((1, 2)) @ p["head"], y)


def scanned(p, x, y):
    """A scan over layers, then one over the positions of [B, L, D]."""
    h, _ = lax.scan(lambda h, layer: (jnp.tanh(h @ layer["w"] + layer["b"]), None), x, p["layers"])

    def cell(state, at):
        return jnp.tanh(at @ p["in"] + state @ p["again"]), None

    state, _ = lax.scan(cell, jnp.zeros((len(x), WIDTH), x.dtype), h.swapaxes(0, 1))
    return cross_entropy(state @ p["head"], y)


def waves(p, x):
    return jnp.mean(jnp.sum(jnp.abs(jnp.sin(x @ p["w"]) @ p["v"]) ** 2, -1))


def tokens(p, x):
    """Each parameter is one contraction, over the examples and the positions of [B, L, D]."""
    return jnp.mean(jnp.sum(jnp.sin(jnp.tanh(x @ p["w"]) @ p["v"]) ** 2, -1))


def dense_parameters(draw, inputs):
    hidden = {"w": draw(inputs, WIDTH), "b": draw(WIDTH)}
    return {"hidden": hidden, "output": {"w": draw(WIDTH, CLASSES), "b": draw(CLASSES)}}


def models():
    draw = draws(0)
    dense, b = dense_parameters(draw, 6), 5
    waves_of = {
        "w": draw(3, WIDTH) + 1j * draw(3, WIDTH),
        "v": draw(WIDTH, 2) - 1j * draw(WIDTH, 2),
    }
    image = {
        "kernel": draw(2, 2, 2, 4),
        "scale": draw(4),
        "shift": draw(4),
        "head": draw(4, CLASSES),
    }
    layers = {"w": draw(3, WIDTH, WIDTH), "b": draw(3, WIDTH)}
    loops = {
        "layers": layers,
        "in": draw(WIDTH, WIDTH),
        "again": draw(WIDTH, WIDTH),
        "head": draw(WIDTH, CLASSES),
    }
    # Ids repeat within an example and over the batch.
    ids = [labels(seed, b, LENGTH, below=VOCABULARY) % 4 for seed in (1, 2)]
    return {
        "mlp": Model(mlp, dense, (draw(b, 6), labels(0, b))),
        "tied": Model(
            tied, {"embedding": draw(VOCABULARY, WIDTH), "w": draw(WIDTH, WIDTH)}, tuple(ids)
        ),
        "convolution": Model(convolution, image, (draw(b, 4, 4, 2), labels(0, b))),
        "scans": Model(scanned, loops, (draw(b, LENGTH, WIDTH), labels(0, b))),
        "sum": Model(partial(mlp, reduce=jnp.sum), dense, (draw(b, 6), labels(3, b)), "sum"),
        "one example": Model(mlp, dense, (draw(1, 6), labels(0, 1))),
        # The inputs are small: a sine grows exponentially along the imaginary axis.
        "complex": Model(waves, waves_of, (0.3 * (draw(b, 3) + 1j * draw(b, 3)),)),
        "tokens": Model(tokens, {"w": draw(3, WIDTH), "v": draw(WIDTH, 2)}, (draw(b, LENGTH, 3),)),
    }


MODELS = models()


def in_float64(tree):
    """The same numbers in the widest kind of their dtype."""

    def widest(x):
        return x.astype(np.result_type(x, np.float64)) if np.issubdtype(x.dtype, np.inexact) else x

    return jax.tree.map(lambda x: widest(np.asarray(x)), tree)


def examples_in_float64(model):
    """Each example's loss and gradient, in a batch of one: [B] and [B, *parameter], on the host."""

    def alone(params, *example):
        return jax.value_and_grad(model.loss)(params, *(x[None] for x in example))

    with jax.enable_x64(True):
        alone_each = jax.vmap(alone, (None, *[0] * len(model.batch)))
        return jax.tree.map(
            np.asarray, jax.jit(alone_each)(in_float64(model.params), *in_float64(model.batch))
        )
