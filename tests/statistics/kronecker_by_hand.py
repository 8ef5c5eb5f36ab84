"""Kronecker factors by hand: layers tell what they take, and take something to be added.

A loss of one example is written as `loss(params, example, tap)`, where `tap(name, a, y)` is called
for each use of a parameter with what it is multiplied by and what that makes: it returns y. The
gradients by y come from automatic differentiation by what is added there.
"""

from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np


def plain(name, a, y):
    """What a model does without anybody looking."""
    return y


def taps_of(loss, params, example):
    """By name and use [a, d], each [positions, elements], of one example's own loss."""
    shapes = []

    def noted(name, a, y):
        shapes.append((name, y.shape))
        return y

    jax.eval_shape(lambda p, e: loss(p, e, noted), params, example)

    def with_added(added):
        taken, left = [], list(added)

        def tap(name, a, y):
            taken.append(a)
            return y + left[len(taken) - 1]

        return loss(params, example, tap), taken

    zeros = [jnp.zeros(shape) for _, shape in shapes]
    gradients, taken = jax.grad(with_added, has_aux=True)(zeros)
    return [(name, a, d) for (name, _), a, d in zip(shapes, taken, gradients, strict=True)]


def in_float64(tree):
    """Its floats in double precision."""
    return jax.tree.map(
        lambda x: jnp.asarray(x, float) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree
    )


def pairs_by_name(loss, params, batch):
    """By parameter, for each example, all positions' a [T, D] and d [T, F] in float64."""
    with jax.enable_x64(True):
        wide, rows = in_float64(params), in_float64(batch)
        size = len(jax.tree.leaves(rows)[0])
        each = jax.jit(lambda example: [pair for _, *pair in taps_of(loss, wide, example)])
        examples = [jax.tree.map(itemgetter(b), rows) for b in range(size)]
        names = [name for name, *_ in taps_of(loss, wide, examples[0])]
        found = [zip(names, each(example), strict=True) for example in examples]
    by_name = {}
    for b, taps in enumerate(found):
        for name, (a, d) in taps:
            rows = by_name.setdefault(name, [([], []) for _ in range(size)])
            flat_a, flat_d = (np.asarray(x).reshape(-1, x.shape[-1]) for x in (a, d))
            rows[b][0].append(flat_a)
            rows[b][1].append(flat_d)
    return {
        name: [(np.concatenate(a), np.concatenate(d)) for a, d in rows]
        for name, rows in by_name.items()
    }


def factors_of(pairs, form):
    """(A, G) of [(a, d)], one an example."""
    a, d = (np.stack([pair[k] for pair in pairs]) for k in range(2))
    count, positions = a.shape[:2]
    if form == "reduce":
        mean, total = a.mean(1), d.sum(1)
        return mean.T @ mean / count, total.T @ total / count
    rows = a.reshape(-1, a.shape[2]), d.reshape(-1, d.shape[2])
    return rows[0].T @ rows[0] / count, rows[1].T @ rows[1] / (count * positions)
