"""Small models for meshes of eight devices, and their statistics, one example at a time."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import hlo_surgery as hs
from tests.by_definition import length, noise_scale, top_directions, weighted, weighted_squares

MAX_NORM = 0.1
STATISTICS = {
    "second_moment": hs.second_moment(),
    "norms": hs.norms(),
    "clipped_mean": hs.clipped_mean(MAX_NORM),
    "mean_of_tanh": hs.mean_of(jnp.tanh),
    "variance": hs.variance(),
}
# Of whole gradients, of all pairs of examples, and with weights in what is squared. Those of
# `BY_PARAMETER` are like the gradient.
WHOLE = {
    "sum_of": hs.sum_of(lambda g: g * jnp.sum(g**2)),
    "sum_of_all": hs.sum_of(
        lambda tree: optax.tree.norm(tree, squared=True) * tree["v"], per="global"
    ),
    "clipped_squares": hs.clipped_second_moment(MAX_NORM),
    "weighted_squares": hs.weighted_second_moment(lambda norms: 1 / (MAX_NORM + norms)),
    "noise_scale": hs.noise_scale(),
    "top_directions": hs.top_directions(2),
}
BY_PARAMETER = {*STATISTICS, "sum_of", "clipped_squares", "weighted_squares"} - {"norms"}


@dataclass(frozen=True)
class Model:
    """`loss(params, *batch)` is a mean; `tensor`: each parameter's sharding along "model"."""

    loss: Callable[..., Any]
    params: dict[str, Any]
    batch: tuple[Any, ...]
    tensor: dict[str, P]

    @property
    def fully_sharded(self):
        """Each parameter's sharding along "data", in its last dimension."""
        return {name: P(*([None] * (x.ndim - 1)), "data") for name, x in self.params.items()}

    def of_size(self, size):
        return replace(self, batch=tuple(x[:size] for x in self.batch))


def mlp(p, x, y):
    return squared_error(jnp.tanh(x @ p["w"] + p["b"]) @ p["v"], y)


def constrained(p, x, y):
    """The MLP, whose hidden values are to lie with their examples."""
    h = lie_with_examples(jnp.tanh(x @ p["w"] + p["b"]))
    return squared_error(lie_with_examples(h @ p["v"]), y)


def lie_with_examples(h):
    """Examples along "data", wherever a mesh is in use."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return h
    explicit = AxisType.Explicit in mesh.axis_types
    place = jax.sharding.reshard if explicit else lax.with_sharding_constraint
    return place(h, P("data"))


def embedded(p, ids, y):
    return squared_error(jnp.tanh(p["embedding"][ids] @ p["w"]).mean(1) @ p["v"], y)


def scanned(p, x, y):
    """A scan over two layers, for every position of [B, L, D]."""
    h, _ = lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, p["layers"])
    return squared_error(h.mean(1) @ p["v"], y)


def squared_error(outputs, y):
    return jnp.mean((outputs - y) ** 2)


def draw(seed, *shape):
    return np.random.default_rng(seed).uniform(-0.5, 0.5, shape).astype(np.float32)


def made(loss, inputs, params):
    """A model from the shapes of its parameters, and how each of these lies along "model"."""
    drawn = {name: draw(seed, *shape) for seed, (name, (shape, _)) in enumerate(params.items())}
    return Model(
        loss,
        drawn,
        (inputs, draw(99, len(inputs), 8)),
        {name: spec for name, (_, spec) in params.items()},
    )


# So many examples that XLA gathers fully sharded parameters: of fewer it splits the layers.
MANY, SOME, FEW = 64, 16, 8
ROWS, COLUMNS = P("model"), P(None, "model")
MODELS = {
    "mlp": made(
        mlp,
        draw(10, MANY, 16),
        {"w": ((16, 24), COLUMNS), "b": ((24,), ROWS), "v": ((24, 8), ROWS)},
    ),
    "constrained": made(
        constrained,
        draw(14, FEW, 16),
        {"w": ((16, 24), COLUMNS), "b": ((24,), ROWS), "v": ((24, 8), ROWS)},
    ),
    "embedded": made(
        embedded,
        np.int32((draw(11, MANY, 5) + 0.5) * 24),
        {"embedding": ((24, 8), COLUMNS), "w": ((8, 16), ROWS), "v": ((16, 8), COLUMNS)},
    ),
    "scanned": made(
        scanned,
        draw(12, SOME, 3, 8),
        {"layers": ((2, 8, 8), P(None, None, "model")), "v": ((8, 8), ROWS)},
    ),
}


def expected(model):
    """The gradient and every statistic, by NumPy in float64 from each example's own gradient."""
    gradients = _examples(model)
    norms = length(gradients)
    weights = np.minimum(1, MAX_NORM / norms)
    over = {
        "second_moment": lambda g: (g**2).mean(0),
        "mean_of_tanh": lambda g: np.tanh(g).mean(0),
        "variance": lambda g: g.var(0, ddof=1),
        "sum_of": lambda g: np.tensordot((g.reshape(len(g), -1) ** 2).sum(1), g, 1),
    }
    found = {name: {k: of(g) for k, g in gradients.items()} for name, of in over.items()}
    of_all = {
        "norms": norms,
        "clipped_mean": weighted(weights, gradients),
        "clipped_squares": weighted_squares(weights, gradients),
        "weighted_squares": weighted_squares(1 / (MAX_NORM + norms), gradients),
        "sum_of_all": np.tensordot(norms**2, gradients["v"], 1),
        "noise_scale": noise_scale(gradients),
        "top_directions": top_directions(gradients, 2),
    }
    return {k: g.mean(0) for k, g in gradients.items()}, found | of_all


def _examples(model):
    """Each example's own gradient, [B, *parameter]: that of a batch of one, on one device."""
    gradient = jax.jit(jax.grad(model.loss))
    each = [
        gradient(model.params, *(x[i : i + 1] for x in model.batch))
        for i in range(len(model.batch[0]))
    ]
    return {name: np.stack([np.float64(g[name]) for g in each]) for name in model.params}
