"""Random differentiable JAX programs, each with its per-example gradients computed the long way.

A `Program` is a description that prints and shrinks; `loss(program)` is the function (params,
*batch) -> scalar it describes, `reference(program)` the gradient of every example's own loss, one
example at a time.
"""

from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.programs import (  # noqa: F401
    layers_data,
    layers_dense,
    layers_loops,
    layers_moves,
)
from tests.programs.layer_table import LAYERS, per_feature, times
from tests.programs.random_mixing import MIXING_GRADIENTS, MIXING_LAYERS, MIXING_LOSSES
from tests.programs.random_weights import WEIGHTS

VOCABULARY = 5
LABELLED = [
    "squared",
    "huber",
    "cross_entropy_along",
    "cross_entropy_rows",
    "cross_entropy_one_hot",
]


@dataclass(frozen=True)
class Step:
    """A layer by name; `knob`: its width or stride, `weight`: how parameters make its matrix."""

    name: str
    knob: int = 1
    weight: str = "plain"


@dataclass(frozen=True)
class Program:
    """A loss: inputs of dimensions `axes`, `steps`, head, loss, reduction, maybe `mixing`."""

    axes: str = "NC"
    lookup: str = ""  # how token ids become features; "" for inputs that are features already
    batch: int = 2
    length: int = 1
    width: int = 1
    dtype: str = "float32"
    standardised: bool = False
    steps: tuple[Step, ...] = ()
    head: Step = Step("dense")
    loss: str = "square"
    label_axis: int = 0
    weighting: str = "none"
    weight_axis: int = 0
    reduction: str = "mean"
    decay: bool = False
    mixing: str = ""


@dataclass
class Scope:
    """What a layer asks for while the program runs, on the whole batch or on one `example`."""

    program: Program
    example: jax.Array | None = None
    params: dict[str, list[jax.Array]] | None = None
    step: Step = Step("")
    place: str = ""
    shapes: dict[str, list[jax.Array]] = field(default_factory=dict)
    table: jax.Array | None = None
    whole: jax.Array | None = None  # the inputs of all examples

    @property
    def batch(self):
        return self.program.batch

    @property
    def knob(self):
        return self.step.knob

    @property
    def stored(self):
        """The dtype of parameters: low precision is for computing only."""
        return jnp.dtype(self.program.dtype if self.program.dtype == "float64" else "float32")

    @property
    def compute(self):
        return jnp.dtype(self.program.dtype)

    def enter(self, place, step):
        self.place, self.step = f"{place}_{step.name}", step

    def param(self, *shape):
        """The next parameter of this step; a first run without parameters records the shapes."""
        made = self.shapes.setdefault(self.place, [])
        made.append(jnp.zeros(shape, self.stored))
        value = made[-1] if self.params is None else self.params[self.place][len(made) - 1]
        return value.astype(self.compute)

    def weight(self, rows, columns):
        return WEIGHTS[self.step.weight](self, rows, columns)

    def rows(self, whole, axis):
        """A whole-batch constant, or the row of it that belongs to the one example."""
        return (
            whole
            if self.example is None
            else lax.dynamic_slice_in_dim(whole, self.example, 1, axis)
        )


# --- the network


def embed(s, ids, axes, lookup):
    s.enter("in", Step(f"embed_{lookup}"))
    s.table = s.param(VOCABULARY, s.program.width)
    if lookup == "take":
        return s.table[ids], axes + "C"
    if lookup == "one_hot":
        return jax.nn.one_hot(ids, VOCABULARY, dtype=s.compute) @ s.table, axes + "C"
    rows = jnp.take_along_axis(s.table, ids.reshape(-1, 1), axis=0)
    return rows.reshape(*ids.shape, -1), axes + "C"


def run_head(s, x, axes):
    s.enter("out", s.program.head)
    features = x.shape[axes.index("C")]
    if s.step.name == "tied":
        hidden = times(x, s.weight(features, s.program.width), axes)
        return jnp.einsum(f"{axes},VC->{axes.replace('C', 'V')}", hidden, s.table)
    return times(x, s.weight(features, s.knob), axes) + per_feature(s.param(s.knob), axes)


def network(s, x):
    """The logits, examples first and features last."""
    program, axes = s.program, s.program.axes
    if program.lookup:
        x, axes = embed(s, x, axes, program.lookup)
    for i, step in enumerate(program.steps):
        s.enter(i, step)
        apply = MIXING_LAYERS[step.name] if step.name in MIXING_LAYERS else LAYERS[step.name].apply
        x, axes = apply(s, x, axes)
    logits = run_head(s, x, axes)
    order = "N" + "".join(a for a in axes if a not in "NC") + "C"
    return logits.transpose([axes.index(a) for a in order]).astype(s.stored)


# --- the loss


def cross_entropy(loss, z, y):
    logp = jax.nn.log_softmax(z)
    if loss == "cross_entropy_one_hot":
        return -jnp.sum(logp * jax.nn.one_hot(y, z.shape[-1], dtype=z.dtype), axis=-1)
    if loss == "cross_entropy_along":
        return -jnp.take_along_axis(logp, y[..., None], axis=-1)[..., 0]
    places = jnp.meshgrid(*map(jnp.arange, y.shape), indexing="ij")
    return -logp[(*places, y)]


def position_losses(loss, z, y):
    """[N, positions...] from logits [N, positions..., C]."""
    if loss.startswith("cross_entropy"):
        return cross_entropy(loss, z, y)
    error = z if y is None else z - y
    if loss == "huber":
        error = jnp.abs(error)
        return jnp.where(error < 1, 0.5 * error**2, error - 0.5).sum(-1)
    return jnp.sum(jnp.log(jnp.cosh(error)) if loss == "log_cosh" else error**2, axis=-1)


def row_losses(s, x, y, w):
    """[N], of the whole batch or of the one example."""
    program = s.program
    labels = None if y is None else jnp.moveaxis(y, program.label_axis, 0)
    losses = position_losses(program.loss, network(s, x), labels)
    positions = tuple(range(1, losses.ndim))
    if program.weighting == "none":
        return losses.mean(positions)
    w = jnp.moveaxis(w, program.weight_axis, 0)
    if program.weighting == "tokens":
        return (losses * w).sum(positions) / jnp.maximum(w.sum(positions), 1)
    return losses.mean(positions) * w


def weight_decay(program, params):
    return 0.05 * sum(jnp.sum(p * p) for p in jax.tree.leaves(params)) if program.decay else 0.0


def split_batch(program, batch):
    rest = list(batch[1:])
    y = rest.pop(0) if program.loss in LABELLED else None
    return batch[0], y, rest.pop(0) if rest else None


def standardise(program, x):
    """Scaled by the whole batch's own statistics: examples meet, but in the data alone."""
    axis = program.axes.index("N")
    return (
        (x - x.mean(axis, keepdims=True)) / (1 + x.std(axis, keepdims=True))
        if program.standardised
        else x
    )


def loss(program):
    """The function (params, *batch) -> scalar."""

    def batch_loss(params, *batch):
        x, y, w = split_batch(program, batch)
        inputs = standardise(program, x)
        rows = row_losses(Scope(program, params=params, whole=inputs), inputs, y, w)
        if program.mixing in MIXING_LOSSES:
            total = MIXING_LOSSES[program.mixing](rows)
        elif program.weighting == "normalised":
            total = rows.sum() / w.sum()
        else:
            total = rows.mean() if program.reduction == "mean" else rows.sum()
        return total + weight_decay(program, params)

    return batch_loss


def gradient(program):
    """The function (params, *batch) -> gradients."""
    grad = jax.grad(loss(program))
    if program.mixing not in MIXING_GRADIENTS:
        return grad
    return lambda *args: MIXING_GRADIENTS[program.mixing](grad(*args))


# --- the reference


def example_loss(program, params, example, x, y, w):
    """The loss whose gradient is g_b: of one example, with its share of what belongs to all."""
    axes = in_axes(program)
    one = [
        lax.dynamic_slice_in_dim(a, example, 1, axis)
        for a, axis in zip([v for v in (x, y, w) if v is not None], axes, strict=True)
    ]
    scope = Scope(program, example=example, params=params, whole=x)
    total = row_losses(scope, *split_batch(program, one)).sum()
    if program.weighting == "normalised":
        total = total / w.sum() * (program.batch if program.reduction == "mean" else 1)
    decay = weight_decay(program, params)
    return total + (decay if program.reduction == "mean" else decay / program.batch)


def reference(program):
    """The function (params, *batch) -> g, a tree of [B, *param.shape]."""

    def gradients(params, *batch):
        x, y, w = split_batch(program, batch)
        x = standardise(program, x)
        one = jax.grad(partial(example_loss, program))
        return jax.vmap(lambda b: one(params, b, x, y, w))(jnp.arange(program.batch))

    return gradients


# --- parameters and data


def in_axes(program):
    """The example axis of each batch argument."""
    labels = [program.label_axis] if program.loss in LABELLED else []
    weights = [program.weight_axis] if program.weighting != "none" else []
    return (program.axes.index("N"), *labels, *weights)


def input_shape(program):
    sizes = {
        "N": program.batch,
        "L": program.length,
        "H": program.length + 2,
        "W": program.length + 1,
    }
    return tuple(sizes.get(a, program.width) for a in program.axes)


def draw_input(program, rng):
    if program.lookup:
        return rng.integers(0, VOCABULARY, input_shape(program), dtype=np.int32)
    return rng.normal(size=input_shape(program)).astype(jnp.dtype(program.dtype))


def shapes(program):
    """The shapes of the parameters and of the logits."""

    def run(x):
        scope = Scope(program, whole=x)
        logits = network(scope, x)
        return scope.shapes, logits

    return jax.eval_shape(run, draw_input(program, np.random.default_rng(0)))


def parameters(program, seed=0):
    """A tree of parameters of about unit gain."""
    rng = np.random.default_rng(seed)
    params, _ = shapes(program)
    scale = {ndim: 1 / max(ndim, 1) for ndim in range(6)}
    return jax.tree.map(
        lambda p: np.asarray(scale[p.ndim] * rng.normal(size=p.shape), p.dtype), params
    )


def data(program, seed=0):
    """The batch arguments: inputs, then labels and weights where the loss takes them."""
    rng = np.random.default_rng(seed)
    batch = [draw_input(program, rng)]
    _, logits = shapes(program)
    if program.loss in LABELLED:
        classes = program.loss.startswith("cross_entropy")
        y = (
            rng.integers(0, logits.shape[-1], logits.shape[:-1])
            if classes
            else rng.normal(size=logits.shape)
        )
        batch.append(
            np.moveaxis(np.asarray(y, np.int32 if classes else logits.dtype), 0, program.label_axis)
        )
    if program.weighting != "none":
        tokens = program.weighting == "tokens"
        w = rng.random(logits.shape[:-1]) < 0.6 if tokens else rng.uniform(0.5, 1.5, program.batch)
        batch.append(np.moveaxis(np.asarray(w, logits.dtype), 0, program.weight_axis))
    return tuple(batch)
