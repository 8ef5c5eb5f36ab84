"""Kronecker factors, and second moments in their eigenbases: as by hand, or refused."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from tests.statistics.kronecker_by_hand import factors_of, pairs_by_name

B, T, D, F, LAYERS, ROWS = 6, 5, 8, 4, 3, 12
REAL = 0, 2, 3, 5
RNG = np.random.default_rng(0)
FORMS = ("expand", "reduce")


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


@pytest.mark.first(1)
@pytest.mark.parametrize("form", FORMS)
def test_factors_of_a_model_of_sequences(form):
    f = hs.grad(sequence, statistics=hs.kronecker_factors(form))
    held(f(SEQUENCE, IDS)[1], expected_of_sequence(form))


def test_factors_beside_padding_and_of_a_sum():
    real = jnp.zeros(B, int).at[jnp.array(REAL)].set(1)

    def total(p, ids, real):
        return jnp.sum(losses(p, ids) * real)

    how = {"is_real": 2, "loss_reduction": "sum", "batch_argnums": (1, 2)}
    f = hs.grad(total, statistics=hs.kronecker_factors(), **how)
    held(f(SEQUENCE, IDS.at[real == 0].set(3), real)[1], expected_of_sequence("expand", REAL))


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


@pytest.mark.first(2)
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


def tied(p, ids):
    return jnp.mean(jnp.tanh(p[ids]) @ p.T)


def decayed(w, x):
    return jnp.mean(jnp.tanh(x @ w)) + jnp.sum(w**2)


def alternating(w, x):
    return jnp.mean(jnp.tanh(jnp.einsum("bde,hdfe->bhf", x, w)))


def in_part(w, x):
    return jnp.mean(jnp.tanh(x @ w[:, :2]))


def there_and_back(w, x):
    return jnp.mean(jnp.tanh(x @ w) @ w.T)


def on_both_sides(w, x):
    """A vector that is added, and multiplied by."""
    return jnp.mean(jnp.tanh(x + w) @ w)


REFUSED = {
    "a kernel and its transpose": (there_and_back, draw(D, D), ROWS_OF_X),
    "a vector, added and contracted": (on_both_sides, draw(D), ROWS_OF_X),
    "a table that scores": (tied, draw(ROWS, D), IDS),
    "decay": (decayed, draw(D, F), ROWS_OF_X),
    "axes that alternate": (alternating, draw(2, D, F, T), draw(B, D, T)),
    "a part of a kernel": (in_part, draw(D, F), ROWS_OF_X),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_such_sum_is_refused(name):
    loss, w, x = REFUSED[name]
    f = hs.grad(loss, statistics=hs.kronecker_factors())
    with pytest.raises(hs.Refusal, match=r"(?s)test_kronecker.py:\d+.*sum of outer products"):
        f(w, x)


def penalised(w, x):
    errors = jnp.mean(jnp.tanh(x @ w))
    penalty = 0.1 * jnp.sum(w**2)
    return errors + penalty


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


def test_a_penalty_is_refused_at_its_own_line():
    with pytest.raises(hs.Refusal) as refused:
        hs.grad(penalised, statistics=hs.kronecker_factors())(draw(D, F), ROWS_OF_X)
    assert refused.value.where.endswith(f"test_kronecker.py:{line_of(penalised, 'penalty =')}")
    assert "rests on no example" in refused.value.why
    assert "weight decay, to the optimizer" in refused.value.help


def tied_apart(looked_up, scores, ids):
    return jnp.mean(jnp.tanh(looked_up[ids]) @ scores.T)


def test_of_a_tied_table_each_use_as_a_parameter_is_the_way_out():
    w, ask = draw(ROWS, D), {"statistics": hs.kronecker_factors()}
    with pytest.raises(hs.Refusal, match="two ways that have no factors in common") as refused:
        hs.grad(tied, **ask)(w, IDS)
    assert "as in loss(w, w)" in refused.value.help
    both = hs.grad(tied_apart, argnums=(0, 1), batch_argnums=2, **ask)(w, w, IDS)[1]
    for i, name in enumerate(("looked_up", "scores")):
        fixed = lambda own, ids, i=i: tied_apart(*((own, w), (w, own))[i], ids)  # noqa: E731
        held({name: both[i]}, {name: hs.grad(fixed, **ask)(w, IDS)[1]})


def test_wrong_use_says_what_to_write():
    with pytest.raises(ValueError, match="'expand' or 'reduce', not 'flat'"):
        hs.kronecker_factors("flat")
    with pytest.raises(ValueError, match="at least 2 examples; the batch has 1"):
        hs.grad(squares, statistics=hs.kronecker_factors())(DENSE, ROWS_OF_X[:1])
