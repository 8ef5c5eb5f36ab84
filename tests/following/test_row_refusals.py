"""What ids cannot tell apart is refused, and says what to do instead; near to it it is not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs

E, T, D = 3, 8, 2
IDS = np.array([0, 2, 2, 0, 1, 1, 2, -1], np.int32)


def batch():
    r = np.random.default_rng(0)
    return {"x": r.normal(size=(T, D)), "ids": IDS, "y": r.normal(size=E)}


def params():
    r = np.random.default_rng(1)
    shapes = {"w": (D, D), "b": (D,), "e": (T, D), "weights": (T,)}
    return {name: r.normal(size=shape) for name, shape in shapes.items()}


def segments(p, b):
    return {"x": b["ids"], "ids": None, "y": 0}


def pooled(h):
    return jax.ops.segment_sum(h, jnp.where(IDS < 0, E, IDS), E + 1)[:-1]


def rows(p, b):
    return jnp.tanh(b["x"] @ p["w"] + p["b"])


def loss(p, b):
    return jnp.mean((pooled(rows(p, b)).sum(1) - b["y"]) ** 2)


def statistics_of(of_batch, asked=None, p=None, **how):
    asked = asked or {"each": hs.per_example(), "crossed": hs.crossed()}
    how = {"segments": segments} | how
    return hs.grad(of_batch, statistics=asked, **how)(p or params(), batch())[1]


def linear(p, b):
    return jnp.mean(pooled(b["x"] @ p["w"] + p["b"]).sum(1))


def linear_in_rows(p, b):
    """The gradient of a bias is the number of rows, whose examples have as many as they like."""
    return jnp.mean(b["x"] @ p["w"] + p["b"])


def counted(p, b):
    """What is left of a bias that is added to rows, once their number is known."""
    return loss(p, b) + jnp.sum(p["b"]) * (T / E)


def weighted_rows(p, b):
    """The gradient of a bias is the sum of given weights, of which each row has its own."""
    return jnp.sum((b["x"] @ p["w"] + p["b"]).sum(1) * p["weights"]) / E


def by_row(p, b):
    return jnp.mean((pooled(jnp.tanh(b["x"] @ p["w"]) + p["e"]).sum(1) - b["y"]) ** 2)


def batch_normalised(p, b):
    h = rows(p, b)
    return jnp.mean((pooled(h - h.mean(0)).sum(1) - b["y"]) ** 2)


def attending(p, b):
    h = rows(p, b)
    return jnp.mean((pooled(jax.nn.softmax(h @ h.T) @ h).sum(1) - b["y"]) ** 2)


def cumulated(p, b):
    return jnp.mean((pooled(jnp.cumsum(rows(p, b), 0)).sum(1) - b["y"]) ** 2)


def by_maximum(p, b):
    return loss(p, b) + jnp.max(rows(p, b))


def squared_loss(p, b):
    return loss(p, b) ** 2


def data_by_place(p, b):
    """Each row meets a place of its own in data of all."""
    return jnp.mean((pooled(rows(p, b) * jnp.cumsum(b["x"], 0)).sum(1) - b["y"]) ** 2)


def until_small(p, b):
    h = jax.lax.while_loop(lambda h: jnp.any(h > 1), lambda h: h / 2, rows(p, b))
    return jnp.mean((pooled(jax.lax.stop_gradient(h) * rows(p, b)).sum(1) - b["y"]) ** 2)


def single_row_decayed(p, b):
    """The gradient of one row's term, and decay added to it, as rows of a sum."""
    one = jnp.outer(b["x"][0], b["x"][0]) + p["w"]
    return loss(p, b) + jnp.sum(one**3)


def stepwise(p, b):
    """The ids of each step's rows are others."""

    def step(total, shift):
        ids = jnp.roll(jnp.where(IDS < 0, E, IDS), shift)
        own = jax.ops.segment_sum(rows(p, b), ids, E + 1)[:-1]
        return total + jnp.mean((own.sum(1) - b["y"]) ** 2), None

    return jax.lax.scan(step, 0.0, jnp.arange(2))[0]


@pytest.mark.parametrize(
    ("of_batch", "said"),
    [
        (linear, "may belong to rows"),
        (linear_in_rows, "may belong to rows"),
        (counted, "may belong to rows"),
        (weighted_rows, "may belong to rows"),
        (by_row, "rows of examples"),
        (batch_normalised, "meets each example's own"),
        (attending, "rows of all other examples"),
        (cumulated, "along the example axis"),
        (data_by_place, "data of the whole batch"),
        (by_maximum, "reduced to one value, and not by a sum"),
        (squared_loss, "not linear|multiplied|meets"),
        (until_small, "decide together|reduced to one value"),
        (single_row_decayed, "is added to what belongs to some"),
        (stepwise, "not followed"),
    ],
)
def test_refused(of_batch, said):
    with pytest.raises(hs.Refusal, match=said) as refusal:
        statistics_of(of_batch)
    assert "test_row_refusals.py" in str(refusal.value) or refusal.value.where == "module"


def decayed(p, b):
    return loss(p, b) + 0.1 * jnp.sum(p["w"] ** 2) + jnp.linalg.norm(p["b"])


def standardised(p, b):
    own = (b["x"] - b["x"].mean(0)) / b["x"].std(0)
    return jnp.mean((pooled(jnp.tanh(own @ p["w"])).sum(1) - b["y"]) ** 2)


@pytest.mark.parametrize("of_batch", [loss, decayed, standardised])
def test_accepted(of_batch):
    found = statistics_of(of_batch, p={k: v for k, v in params().items() if k != "e"})
    assert not found["crossed"].any()
    assert not any(np.isnan(x).any() for x in jax.tree.leaves(found["each"]))


def test_constants_of_the_batch_are_listed():
    f = hs.grad(standardised, segments=segments, statistics=hs.norms())
    (data,) = hs.explain(f, {"w": params()["w"]}, batch()).data
    assert "sum of data" in data.why


def test_clipping_does_not_rest_on_the_other_examples_data():
    with pytest.raises(hs.Refusal, match="bounds each example's influence"):
        statistics_of(standardised, hs.clipped_mean(1.0), {"w": params()["w"]})


def saying(x=IDS, y=0):
    return {"segments": lambda p, b: {"x": x, "ids": None, "y": y}}


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        ({"segments": 1}, TypeError, "segments is 1"),
        ({"in_axes": 1}, ValueError, "leave in_axes out"),
        ({"rows_per_example": 2}, ValueError, "rows_per_example"),
        ({"on_mixing": "contribution"}, ValueError, "on_mixing"),
        ({"segments": lambda p, b: 0}, ValueError, "names no ids"),
        ({"segments": lambda p, b: {"x": b["ids"]}}, ValueError, "no prefix"),
        (saying(x=np.ones(T)), TypeError, "of ids"),
        (saying(x=IDS[1:]), ValueError, "each row"),
        (saying(y=IDS), ValueError, r"argument 1\['y'\], which has shape \[3\]"),
        (saying(y=None), ValueError, "how many"),
    ],
)
def test_wrong_use_is_an_error(how, error, said):
    with pytest.raises(error, match=said):
        statistics_of(loss, **how)
