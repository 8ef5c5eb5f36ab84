"""Layers that sum data of the whole batch, or that go over examples or over parts of a stack."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.programs.layer_table import layer, layers, per_feature, times, width

# --- sums of the batch's own data, which are constants of the batch

SUMS_OF_DATA = ("divided_by_data", "shifted_by_data", "scaled_by_a_count")


def data_mean(s, x):
    """One number of the whole batch's data, the same for each example."""
    return jnp.mean(s.whole.astype(jnp.float32)).astype(x.dtype)


@layer()
def divided_by_data(s, x, axes):
    return x / (1 + data_mean(s, x) ** 2), axes


@layer()
def shifted_by_data(s, x, axes):
    return jnp.sin(x + data_mean(s, x) * per_feature(s.param(width(x, axes)), axes)), axes


@layer()
def scaled_by_a_count(s, x, axes):
    count = jnp.sum(s.whole > 0, dtype=jnp.int32).astype(x.dtype)
    return jnp.tanh(x * (1 + count / s.whole.size)), axes


# --- stacks of weights of which a scan takes a part


def scan_over(chosen):
    """A scan over what is chosen of a stack of one more than there are examples."""

    def layer(s, x, axes):
        stack = s.param(s.batch + 1, width(x, axes), width(x, axes))
        step = lambda h, w: (jnp.tanh(times(h, w, axes)), None)  # noqa: E731
        return lax.scan(step, x, chosen(s, stack))[0]

    return layer


def padded(s, stack):
    return jnp.pad(stack[:1], ((0, 1), (0, 0), (0, 0)), constant_values=0.1)


layers(
    {
        "scan_over_the_first_layers": scan_over(lambda s, stack: stack[: s.batch]),
        "scan_over_the_last_layers": scan_over(lambda s, stack: stack[1:]),
        "scan_over_every_other_layer": scan_over(lambda s, stack: stack[::2]),
        "scan_over_chosen_layers": scan_over(lambda s, stack: stack[np.arange(s.batch)[::-1]]),
        "scan_over_padded_layers": scan_over(padded),
    }
)


# --- padding that goes between, or cuts


def pad(of, turns=(0, 0, 1)):
    """Of the dimensions named: low, high and in between."""
    return lambda s, x, axes: lax.pad(
        x, jnp.zeros((), x.dtype), [turns if a in of else (0, 0, 0) for a in axes]
    )


def turned_features(s, x, axes):
    """As many features as before, each one place on."""
    return pad("C", (1, -1, 0))(s, x, axes) + 0.5 * x


layers({"pad_between_features": pad("C"), "pad_by_turning_features": turned_features})
layers({"pad_positions": pad("LHW", (1, 0, 1))}, "LC HWC")

# --- masks that are constants


@layer()
def square_mask(s, x, axes):
    """A mask of features on a weight: square like what the batch makes where sizes coincide."""
    c = width(x, axes)
    mask = np.random.default_rng(s.knob).random((c, c)) < 0.7
    return times(x, s.weight(c, c) * jnp.asarray(mask, x.dtype), axes), axes


@layer()
def rows_mask(s, x, axes):
    """A row of features for each place in the batch, multiplied and added."""
    shape = (s.batch, width(x, axes))
    masks = np.random.default_rng(s.knob).random((2, *shape))
    n, c = axes.index("N"), axes.index("C")
    order = [0, 1] if n < c else [1, 0]
    whole = [
        s.batch if a == "N" else size if a == "C" else 1
        for a, size in zip(axes, x.shape, strict=True)
    ]
    laid = [s.rows(jnp.asarray(m.transpose(order).reshape(whole), x.dtype), n) for m in masks]
    return x * laid[0] + laid[1], axes


# --- one example after another


def by_example(x, axes, function, parts=1):
    """The function of a batch, on `parts` examples at a time."""
    n = axes.index("N")
    first = jnp.moveaxis(x, n, 0)
    split = first.reshape(first.shape[0] // parts, parts, *first.shape[1:])
    made = lax.map(lambda part: jnp.moveaxis(function(jnp.moveaxis(part, 0, n)), n, 0), split)
    return jnp.moveaxis(made.reshape(first.shape[0], *made.shape[2:]), 0, n)


@layer()
def mapped_over_examples(s, x, axes):
    w = s.weight(width(x, axes), s.knob)
    return by_example(x, axes, lambda part: jnp.tanh(times(part, w, axes))), axes


@layer()
def mapped_over_pairs(s, x, axes):
    w, pairs = s.weight(width(x, axes), s.knob), s.example is None and s.batch % 2 == 0
    return by_example(x, axes, lambda part: jnp.sin(times(part, w, axes)), 2 if pairs else 1), axes


@layer()
def rematerialised_map(s, x, axes):
    w = s.weight(width(x, axes), s.knob)
    inside = jax.checkpoint(lambda part: jnp.tanh(times(part, w, axes)))
    return by_example(x, axes, inside), axes
