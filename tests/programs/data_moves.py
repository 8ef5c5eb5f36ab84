"""Programs that do nothing but move the examples of a batch of eight to other places, and programs
in which they meet after such a move.

Each is a loss of (w [3, 4], x [8, 3]).
"""

import jax.numpy as jnp
import numpy as np
from jax import lax

B = 8
W = np.sin(np.arange(12, dtype=np.float32)).reshape(3, 4)
X = np.cos(np.arange(24, dtype=np.float32)).reshape(B, 3)
ORDER = np.array([3, 1, 2, 0, 7, 6, 5, 4])


def energy(w, rows):
    """The sum over all rows, whatever the dimensions before the features."""
    return jnp.sum(jnp.tanh(rows @ w) ** 2)


def nested_map(w, x):
    halves = x.reshape(2, 4, 3)
    return jnp.mean(lax.map(lambda half: lax.map(lambda row: energy(w, row), half), halves))


def added_up(of_part):
    """The sum over parts of what `of_part` makes of each."""
    return lambda w, parts: lax.scan(lambda s, part: (s + of_part(w, part), None), 0.0, parts)[0]


MOVES = {
    "split in two": lambda w, x: energy(w, x.reshape(2, 4, 3)) / B,
    "split in three": lambda w, x: energy(w, x.reshape(2, 2, 2, 3)) / B,
    "a map in a map": nested_map,
    "microbatches of microbatches": lambda w, x: (
        added_up(added_up(energy))(w, x.reshape(2, 2, 2, 3)) / B
    ),
    "permuted": lambda w, x: energy(w, x[ORDER]) / B,
    "reversed": lambda w, x: energy(w, x[::-1]) / B,
    "rolled": lambda w, x: energy(w, jnp.roll(x, 1, 0)) / B,
    "put into a buffer": lambda w, x: energy(w, jnp.zeros_like(x).at[:].set(x)) / B,
    "added to a buffer": lambda w, x: energy(w, jnp.zeros_like(x).at[...].add(x)) / B,
    "one by one": lambda w, x: sum(energy(w, x[b]) for b in range(B)) / B,
    "halves exchanged": lambda w, x: energy(w, jnp.concatenate([x[4:], x[:4]])) / B,
    "even and odd": lambda w, x: (energy(w, x[::2]) + energy(w, x[1::2])) / B,
    "padded": lambda w, x: energy(w, jnp.pad(x, ((0, 2), (0, 0)))) / B,
    "half and half": lambda w, x: (energy(w, x[:4]) + energy(w, x[4:])) / B,
}


def hidden(w, x):
    return jnp.tanh(x @ w)


def pairs(one, other):
    return jnp.mean(jnp.sum(one * other, -1))


def centred(h):
    return jnp.sum((h - h.mean(0)) ** 2)


MEETINGS = {
    "centred": lambda w, x: centred(hidden(w, x)),
    "similarities": lambda w, x: jnp.mean(jnp.sin(hidden(w, x) @ hidden(w, x).T)),
    "neighbours": lambda w, x: pairs(hidden(w, x[1:]), hidden(w, x[:-1])),
    "beside the rolled": lambda w, x: pairs(hidden(w, x), jnp.roll(hidden(w, x), 1, 0)),
    "beside the permuted": lambda w, x: pairs(hidden(w, x), hidden(w, x[ORDER])),
    "beside the reversed": lambda w, x: pairs(hidden(w, x), hidden(w, x)[::-1]),
    "added to the reversed": lambda w, x: energy(w, jnp.asarray(x)[::-1].at[:].add(x)),
    "times the reversed": lambda w, x: energy(w, jnp.asarray(x)[::-1].at[:].multiply(x)),
    "beside the other half": lambda w, x: pairs(hidden(w, x[:4]), hidden(w, x[4:])),
    "carried on": lambda w, x: jnp.sum(
        lax.scan(lambda h, row: (jnp.tanh(h + row @ w), None), jnp.zeros(4), x)[0]
    ),
    "centred microbatches": lambda w, x: added_up(lambda w, part: centred(hidden(w, part)))(
        w, x.reshape(2, 4, 3)
    ),
    "neighbours in a loop": lambda w, x: lax.fori_loop(
        0, B - 1, lambda b, s: s + pairs(hidden(w, x[b]), hidden(w, x[b + 1])), 0.0
    ),
    "the first with all": lambda w, x: jnp.sum(hidden(w, x) * hidden(w, x[:1])),
    "two rows one by one": lambda w, x: sum(
        pairs(hidden(w, x[b]), hidden(w, x[b - 1])) for b in range(B)
    ),
    "the largest of halves": lambda w, x: jnp.sum(jnp.maximum(hidden(w, x[:4]), hidden(w, x[4:]))),
    "a sum of halves, squared": lambda w, x: jnp.sum((hidden(w, x[:4]) + hidden(w, x[4:])) ** 2),
}
