"""Kronecker factors, and second moments in their eigenbases: of any form of program as by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from tests.statistics.kronecker_by_hand import factors_of, pairs_by_name, plain

B, T, D, F, LAYERS, ROWS = 6, 5, 8, 4, 3, 12
REAL = 0, 2, 3, 5
RNG = np.random.default_rng(0)
FORMS = ("expand", "reduce")
SLOW_REDUCE = ("expand", pytest.param("reduce", marks=pytest.mark.slow))


def draw(*shape):
    return jnp.asarray(RNG.normal(size=shape) / 2, jnp.float32)


def one_hot(ids, rows):
    return jnp.eye(rows)[ids]


SEQUENCE = {
    "bias": draw(LAYERS, D),
    "head": draw(D, ROWS),
    "heads": draw(D, 2, F),
    "layers": draw(LAYERS, D, D),
    "outer": draw(2, F, D),
    "scale": draw(D),
    "table": draw(ROWS, D),
}
IDS = jnp.asarray(RNG.integers(0, ROWS, (B, T)))


def sequence_of_one(p, ids, tap):
    """A lookup, layers of their own, heads, a scale, and what scores; of one example."""
    h = tap("table", one_hot(ids, ROWS), p["table"][ids])
    for i in range(LAYERS):
        y = tap(f"layers{i}", h, h @ p["layers"][i])
        y = tap(f"bias{i}", jnp.ones((T, 1)), y + p["bias"][i])
        h = jnp.tanh(y)
    q = tap("heads", h, jnp.einsum("td,dhf->thf", h, p["heads"]).reshape(T, -1)).reshape(T, 2, F)
    mixed = jnp.einsum("thf,hfd->td", jnp.sin(q), p["outer"])
    h = h + tap("outer", jnp.sin(q).reshape(T, -1), mixed)
    h = h * tap("scale", jnp.ones((T, 1)), jnp.ones((T, D)) * p["scale"])
    scores = tap("head", h, h @ p["head"])
    return jnp.mean(jax.nn.logsumexp(scores, -1) - scores[:, 0])


def losses(p, ids):
    """The same of a batch, its layers in a scan."""
    h, _ = jax.lax.scan(
        lambda h, layer: (jnp.tanh(h @ layer[0] + layer[1]), None),
        p["table"][ids],
        (p["layers"], p["bias"]),
    )
    q = jnp.einsum("btd,dhf->bthf", h, p["heads"])
    h = (h + jnp.einsum("bthf,hfd->btd", jnp.sin(q), p["outer"])) * p["scale"]
    scores = h @ p["head"]
    return jnp.mean(jax.nn.logsumexp(scores, -1) - scores[..., 0], 1)


def sequence(p, ids):
    return jnp.mean(losses(p, ids))


def stacked(found, name):
    """By layer, [L, ...]."""
    return [
        np.stack(side) for side in zip(*(found[f"{name}{i}"] for i in range(LAYERS)), strict=True)
    ]


def by_hand(loss, params, batch, form):
    pairs = pairs_by_name(loss, params, batch)
    return {name: factors_of(rows, form) for name, rows in pairs.items()}


@functools.cache
def expected_of_sequence(form, real=tuple(range(B))):
    found = by_hand(sequence_of_one, SEQUENCE, IDS[jnp.array(real)], form)
    found |= {name: stacked(found, name) for name in ("layers", "bias")}
    left, right = found["table"]
    found["table"] = np.diagonal(left), right
    return {name: found[name] for name in SEQUENCE}


def held(found, expected):
    for name, sides in expected.items():
        for own, side in zip(found[name], sides, strict=True):
            np.testing.assert_allclose(
                own, side, rtol=1e-5, atol=2e-5 * np.abs(side).max(), err_msg=name
            )


@pytest.mark.parametrize("form", FORMS)
def test_factors_of_a_model_of_sequences(form):
    f = hs.grad(sequence, statistics=hs.kronecker_factors(form))
    held(f(SEQUENCE, IDS)[1], expected_of_sequence(form))


SCANNED = {
    "numbers": (lambda h, w: jnp.tanh(h * w), draw(LAYERS)),
    "vectors": (lambda h, w: jnp.tanh(h + (h @ w)[..., None]), draw(LAYERS, D)),
    "scales": (lambda h, w: jnp.tanh(h * w), draw(LAYERS, D)),
    "kernels": (lambda h, w: jnp.tanh(h @ w), draw(LAYERS, D, D)),
    "positions": (lambda h, w: jnp.tanh(h + w), draw(LAYERS, T, D)),
    "tables": (lambda h, w: jnp.tanh(h + w[(h[..., 0] > 0).astype(int)]), draw(LAYERS, 2, D)),
    "a bias of one element": (lambda h, w: jnp.tanh(h + w), draw(LAYERS, 1)),
}


REFUSED = "positions", "tables", "a bias of one element"


@pytest.mark.parametrize(("step", "w"), SCANNED.values(), ids=SCANNED)
def test_stacked_layers_stand_in_front_whatever_else_is_asked(step, w):
    """Or are refused, where what is stacked cannot be told from what each layer has."""

    def loss(w, x):
        h, _ = jax.lax.scan(lambda h, own: (step(h, own), None), x, w)
        return jnp.mean(jnp.sum(h**2, (1, 2)))

    f = functools.partial(hs.grad, loss, batch_argnums=1)
    x = draw(B, T, D)
    alone = f(statistics=hs.kronecker_factors())(w, x)[1]
    asked = {"factors": hs.kronecker_factors(), "clipped": hs.clipped_mean(0.1)}
    try:
        found = f(statistics=asked)(w, x)[1]["factors"]
    except hs.Refusal:
        assert any(step is SCANNED[name][0] for name in REFUSED)
    else:
        held({"w": found}, {"w": alone})
        assert jax.tree.map(jnp.shape, found) == jax.tree.map(jnp.shape, alone)


def test_factors_beside_padding_and_of_a_sum():
    real = jnp.zeros(B, int).at[jnp.array(REAL)].set(1)

    def total(p, ids, real):
        return jnp.sum(losses(p, ids) * real)

    how = {"is_real": 2, "loss_reduction": "sum", "batch_argnums": (1, 2)}
    f = hs.grad(total, statistics=hs.kronecker_factors(), **how)
    held(f(SEQUENCE, IDS.at[real == 0].set(3), real)[1], expected_of_sequence("expand", REAL))


IMAGES = draw(B, 7, 6, 3)
FILTERS = {
    "first": draw(3, 2, 3, 4),
    "second": draw(5, 4, 2, 2),
    "dense": draw(15, 3),
}
STRIDES = {"first": (2, 1), "second": (1, 2)}
LAYOUTS = {"first": ("NHWC", "HWIO", "NHWC"), "second": ("NHWC", "OIHW", "NHWC")}


def convolved(x, kernel, name):
    layout = LAYOUTS[name]
    return jax.lax.conv_general_dilated(x, kernel, STRIDES[name], "SAME", dimension_numbers=layout)


def patches_of(x, name):
    """[places, h w i], or [places, i h w] as the kernel has them."""
    layout = LAYOUTS[name][1]
    sizes = FILTERS[name].shape
    spatial = tuple(sizes[layout.index(axis)] for axis in "HW")
    taken = jax.lax.conv_general_dilated_patches(
        x[None], spatial, STRIDES[name], "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )[0]
    channels = taken.reshape(*taken.shape[:2], x.shape[-1], *spatial)
    order = [2 + "IHW".index(axis) for axis in layout if axis != "O"]
    return channels.transpose(0, 1, *order).reshape(*taken.shape[:2], -1)


def image_of_one(p, x, tap):
    h = jnp.tanh(tap("first", patches_of(x, "first"), convolved(x[None], p["first"], "first")[0]))
    h = jnp.sin(
        tap("second", patches_of(h, "second"), convolved(h[None], p["second"], "second")[0])
    )
    flat = jnp.mean(h, 0).reshape(-1)
    return jnp.sum(tap("dense", flat, flat @ p["dense"]) ** 2)


def images(p, x):
    return jnp.mean(jax.vmap(image_of_one, (None, 0, None))(p, x, plain))


@pytest.mark.parametrize("form", SLOW_REDUCE)
def test_factors_of_kernels_in_two_layouts(form):
    found = hs.grad(images, statistics=hs.kronecker_factors(form))(FILTERS, IMAGES)[1]
    expected = by_hand(image_of_one, FILTERS, IMAGES, form)
    held(
        {name: found[name] for name in ("first", "dense")},
        {n: expected[n] for n in ("first", "dense")},
    )
    # A kernel [o, i, h, w] has the patches on its right, and with them B.
    (patches, own), (left, right) = expected["second"], found["second"]
    np.testing.assert_allclose(np.kron(left, right), np.kron(own, patches), rtol=1e-4, atol=1e-5)


TWICE = {"w": draw(D, D), "experts": draw(2, D, F)}
ROWS_OF_X = draw(B, D)


def twice(p, x):
    h = jnp.tanh(jnp.tanh(x @ p["w"]) @ p["w"])
    shifted = jnp.sin(h[:, None] + jnp.arange(2)[:, None])
    both = jnp.einsum("bed,edf->bef", shifted, p["experts"])
    return jnp.mean(jnp.sum(both[:, 0] * both[:, 1], -1))


def squares(p, x):
    return jnp.mean(jnp.sum(jnp.tanh(x @ p["w"] + p["b"]) ** 2, -1))


DENSE = {"w": draw(D, F), "b": draw(F)}


@pytest.mark.parametrize("form", SLOW_REDUCE)
def test_what_is_added_as_it_is_is_a_table_of_which_every_row_is_looked_up(form):
    def added(w, x, rows):
        return jnp.mean(jnp.sum(jnp.tanh(x[:, :, None] + w[rows]), (1, 2)))

    rows, w = jnp.tile(jnp.arange(D), (B, 1)), draw(D, F)
    ask = {"statistics": hs.kronecker_factors(form)}
    as_it_is = hs.grad(lambda w, x: added(w, x, slice(None)), **ask)(w, ROWS_OF_X)[1]
    looked_up = hs.grad(added, batch_argnums=(1, 2), **ask)(w, ROWS_OF_X, rows)[1]
    assert as_it_is.left.shape == (D,)
    held({"w": as_it_is}, {"w": looked_up})


def squares_in(bases, own):
    """The mean of (P' g Q)**2, from gradients [B, *parameter] and Kronecker factors' bases."""

    def turned(g, basis):
        left, right = (np.asarray(side, np.float64) for side in basis)
        rank = max(left.ndim, right.ndim)
        left, right = (
            side if side.ndim == rank else np.eye(side.shape[-1]) for side in (left, right)
        )
        matrix = np.reshape(g, (*left.shape[:-2], left.shape[-1], right.shape[-1]))
        return (np.swapaxes(left, -1, -2) @ matrix @ right).reshape(g.shape)

    return {
        name: np.mean([turned(np.asarray(g, np.float64), bases[name]) ** 2 for g in rows], 0)
        for name, rows in own.items()
    }


def heads(p, x):
    rows = jnp.sin(x[:, None] + jnp.arange(T)[:, None])
    return jnp.mean(jnp.sum(jnp.sin(jnp.einsum("btd,hdf->bthf", rows, p["w"])), (1, 2, 3)))


def one_position(p, x):
    return jnp.mean(jnp.sum(jnp.sin(jnp.einsum("bd,hdf->bhf", x, p["w"])), (1, 2)))


HEADS = {"w": draw(2, D, F)}
EIGENBASES = {
    "heads": (heads, HEADS, ROWS_OF_X),
    "heads of one position": (one_position, HEADS, ROWS_OF_X),
    "dense": (squares, DENSE, ROWS_OF_X),
    "sequences": (sequence, SEQUENCE, IDS),
    "experts": (twice, TWICE, ROWS_OF_X),
}


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("sequences", "experts", "heads")]


@pytest.mark.parametrize("name", ["dense", "heads of one position", *SLOW])
def test_second_moments_in_eigenbases(name):
    loss, params, x = EIGENBASES[name]
    bases = hs.curvature.eigenbases(hs.grad(loss, statistics=hs.kronecker_factors())(params, x)[1])
    own = jax.vmap(lambda row: jax.grad(loss)(params, row[None]))(x)
    found = jax.jit(lambda b: hs.grad(loss, statistics=hs.second_moment_in(b))(params, x)[1])(bases)
    expected = squares_in(bases, own)
    for key, value in expected.items():
        np.testing.assert_allclose(
            found[key], value, rtol=1e-4, atol=1e-5 * value.max(), err_msg=key
        )


@pytest.mark.parametrize("form", SLOW_REDUCE)
def test_rows_that_are_added_along_the_last_axis_are_those_of_the_table(form):
    """Their elements were taken in the order in which the site has them."""
    w, x = draw(ROWS, F), draw(B, F, T)
    along_first = lambda w, x: jnp.mean(jnp.sum(jnp.tanh(x + w[:T].T), (1, 2)))  # noqa: E731
    turned = lambda w, x: along_first(w, jnp.swapaxes(x, 1, 2))  # noqa: E731
    plain = lambda w, x: jnp.mean(jnp.sum(jnp.tanh(x + w[:T]), (1, 2)))  # noqa: E731
    ask = {"statistics": hs.kronecker_factors(form)}
    expected = hs.grad(plain, **ask)(w, jnp.swapaxes(x, 1, 2))[1]
    held({"w": hs.grad(along_first, **ask)(w, x)[1]}, {"w": expected})
    held({"w": hs.grad(turned, **ask)(w, jnp.swapaxes(x, 1, 2))[1]}, {"w": expected})
