"""Projections of the examples' gradients: what data attribution keeps of them."""

import math
from typing import Literal

import jax
import jax.numpy as jnp

from hlo_surgery.counted import integer_of
from hlo_surgery.passes.measures.projections import (
    COLUMNS,
    OUTPUTS,
    SEEDS,
    DenselyProjected,
    Projected,
    random_signs,
)
from hlo_surgery.statistics.derived import Derived, Groups, Per
from hlo_surgery.statistics.found import Found

Measure = Projected | DenselyProjected
# XLA ends the process on an array of k * k for each example that has more bytes than 64 bits count.
LARGEST = 1 << 20
KINDS: dict[str, type[Measure]] = {"kronecker": Projected, "dense": DenselyProjected}


def projected(
    k: int,
    seed: int = 0,
    per: Per = "parameter",
    kind: Literal["kronecker", "dense"] = "kronecker",
) -> Derived:
    """Each example's gradient, projected by random signs: inner products of projections have those
    of the gradients as their mean over seeds.

    `kind`: "kronecker", P' g Q / k, is [B, k, k] for a parameter, and [B, k] for a vector or a
    number; the first factor goes over leading dimensions, the second over the others, so that
    each has as few elements as can be. It costs a thin contraction for each factor. "dense", with
    signs of its own for each element, is [B, k], and takes every example's gradient in turn; where
    those of a batch fit in memory, `strategy="lift"` draws the signs once for all of them.
    `per`: "parameter" gives a pytree like the gradient; "global" the sum over all parameters,
    [B, k, k] or [B, k]; groups as in `norms`.

    The signs depend on `seed`, and on each parameter's shape and place in the gradient: they are
    the same whatever the batch, the devices or the run. Factors are rounded as the contraction that
    they are of rounds them, on TPU by default to bfloat16: `jax.default_matmul_precision` says so
    for both. It is refused where `norms` is.
    (Park et al., "TRAK: Attributing Model Behavior at Scale", section 3.2; Choe et al., "What is
    Your Data Worth to GPT?", section 3.)

    Raises ValueError for what is no k from 1 to 2**20, or no such kind.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> loss = lambda w, x: jnp.mean((x @ w) ** 2)
    >>> f = hs.grad(loss, batch_argnums=1, statistics=hs.projected(2))
    >>> _, projections = f(jnp.ones((3, 4)), jnp.ones((5, 3)))
    >>> projections.shape
    (5, 2, 2)
    """
    columns, number = _checked(k, seed, kind)
    measure = KINDS[kind](columns, number)

    def combine(found: Found, groups: Groups) -> list[jax.Array]:
        each = [_signed(measure, i, x) for i, x in enumerate(found.of(measure))]
        if per == "parameter":
            return each
        wide = [_as_wide(measure, i, x) for i, x in enumerate(each)]
        return [jnp.sum(jnp.stack([wide[i] for i in group]), 0) for group in groups]

    chosen = {"seed": number, "kind": kind} if kind != "kronecker" else {"seed": number}
    arguments = [str(columns), *(f"{name}={value!r}" for name, value in chosen.items() if value)]
    grouped = [] if per == "parameter" else [f"per={per!r}" if isinstance(per, str) else "per=..."]
    name = f"projected({', '.join([*arguments, *grouped])})"
    return Derived(name, combine, (measure,), "group", per)


def _checked(k: int, seed: int, kind: str) -> tuple[int, int]:
    """k and the seed as Python's. Raises ValueError for arguments that are none."""
    columns, number = integer_of(k), integer_of(seed)
    if columns is None or not 1 <= columns <= LARGEST:
        raise ValueError(f"projected takes an integer k from 1 to 2**20, such as 16, not {k!r}")
    if number is None or not 0 <= number < SEEDS:
        raise ValueError(f"projected takes an integer seed from 0 to 2**64 - 1, not {seed!r}")
    if kind not in KINDS:
        raise ValueError(f"projected takes a kind of {' or '.join(KINDS)}, not {kind!r}")
    return columns, number


def _signed(measure: Measure, i: int, x: jax.Array) -> jax.Array:
    """The projections of output i, with signs of its own: equal shapes have independent ones."""
    rows = x.shape[1] if x.ndim == 3 else 1
    signs = random_signs(measure.seed, (OUTPUTS, i), rows, measure.k)
    return x * signs.reshape(x.shape[1:]).astype(x.dtype)


def _as_wide(measure: Measure, i: int, x: jax.Array) -> jax.Array:
    """A vector's projection [B, k], beside those of matrices: as that of a single column."""
    if isinstance(measure, DenselyProjected) or x.ndim == 3:
        return x
    column = random_signs(measure.seed, (COLUMNS, i), 1, measure.k).astype(x.dtype)
    return x[:, :, None] * column / math.sqrt(measure.k)
