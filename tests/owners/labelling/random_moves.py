"""Random programs that move the examples of a batch about, and let some of them meet.

Each step takes one or two arrays made so far, and makes another: `draw` gives a loss of (w, x).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

B, D = 6, 2


def rows(a):
    """As [n, D], whatever the dimensions before the features."""
    return a.reshape(-1, D)


def fitted(a, n):
    """The first n rows, or all again from the start."""
    return jnp.concatenate([rows(a)] * (n // len(rows(a)) + 1))[:n]


def split(rng, a, b, w):
    r = rows(a)
    factors = [k for k in range(2, len(r)) if len(r) % k == 0]
    return r.reshape(int(rng.choice(factors)), -1, D) if factors else r


def swapped(rng, a, b, w):
    return a.swapaxes(0, 1) if a.ndim == 3 else a


def permuted(rng, a, b, w):
    return rows(a)[rng.permutation(len(rows(a)))]


def chosen(rng, a, b, w):
    return rows(a)[rng.integers(0, len(rows(a)), rng.integers(1, 7))]


def turned(rng, a, b, w):
    return jnp.flip(a, 0)


def rolled(rng, a, b, w):
    return jnp.roll(rows(a), int(rng.integers(1, 4)), 0)


def cut(rng, a, b, w):
    r = rows(a)
    start = int(rng.integers(0, len(r)))
    return r[start : start + int(rng.integers(1, 5)) : int(rng.integers(1, 3))]


def padded(rng, a, b, w):
    low, high, inner = (int(n) for n in rng.integers(0, 3, 3))
    return lax.pad(
        rows(a), np.zeros((), a.dtype) + rng.integers(0, 2), ((low, high, inner), (0, 0, 0))
    )


def joined(rng, a, b, w):
    return jnp.concatenate([rows(a), rows(b)])


def added(rng, a, b, w):
    return rows(a) + fitted(b, len(rows(a)))


def multiplied(rng, a, b, w):
    return rows(a) * fitted(b, len(rows(a)))


def dense(rng, a, b, w):
    return jnp.tanh(a @ w)


def scaled(rng, a, b, w):
    return a * rng.normal(size=a.shape)


def masked(rng, a, b, w):
    return jnp.where(rng.integers(0, 2, len(rows(a)))[:, None] > 0, rows(a), 0.0)


def put(rng, a, b, w):
    r = rows(a)
    return r.at[int(rng.integers(0, len(r)))].set(rows(b)[0])


def put_by_number(rng, a, b, w):
    r = rows(a)
    return jnp.zeros_like(r).at[rng.integers(0, len(r), len(r))].add(r)


def summed_in_groups(rng, a, b, w):
    return a.sum(0) if a.ndim == 3 else a.sum(0, keepdims=True)


def largest_in_groups(rng, a, b, w):
    return a.max(1) if a.ndim == 3 else a


def scanned(rng, a, b, w):
    return lax.scan(lambda s, r: (s, jnp.tanh(r @ w + s[0])), jnp.ones(D), rows(a))[1]


def carried(rng, a, b, w):
    return lax.scan(lambda s, r: (s + r, r * w[0]), jnp.zeros(D), rows(a))[0][None]


def carried_on(rng, a, b, w):
    return lax.scan(lambda s, r: (r, r + s), jnp.zeros(D), rows(a))[1]


def numbered(rng, a, b, w):
    r, order = rows(a), jnp.array(rng.permutation(len(rows(a))))
    step = lambda i, s: lax.dynamic_update_slice(  # noqa: E731
        s, jnp.tanh(lax.dynamic_slice(r, (order[i], 0), (1, D)) @ w), (i, 0)
    )
    return lax.fori_loop(0, len(r), step, jnp.zeros_like(r))


def branched(rng, a, b, w):
    r = rows(a)
    return lax.map(lambda e: lax.cond(e[0] > 0, lambda: jnp.sin(e), lambda: e * w[0]), r)


STEPS = [
    *(split, swapped, permuted, chosen, turned, rolled, cut, padded, joined, added, multiplied),
    *(dense, scaled, masked, put, put_by_number, summed_in_groups, largest_in_groups),
    *(scanned, carried, carried_on, numbered, branched, dense, split, joined),
]


def draw(seed):
    """A loss, and the names of its steps."""
    rng = np.random.default_rng(seed)
    names = [STEPS[k] for k in rng.integers(0, len(STEPS), rng.integers(2, 6))]
    picks = rng.integers(0, 100, (len(names), 2))

    def loss(w, x):
        own = np.random.default_rng(seed + 1)
        made = [jnp.tanh(x @ w)]
        for step, (one, other) in zip(names, picks, strict=True):
            made.append(step(own, made[-1 - one % min(2, len(made))], made[other % len(made)], w))
        last = made[-1]
        return jnp.sum(jnp.tanh(last @ w) ** 2) if seed % 2 else jnp.sum(last)

    return loss, [step.__name__ for step in names]


def gradient(seed):
    """The gradient function, and the names of its steps."""
    loss, names = draw(seed)
    return jax.grad(loss), names
