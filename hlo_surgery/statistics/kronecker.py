"""Kronecker factors: what K-FAC and its kin keep of each parameter's curvature.

Projections of the examples' gradients: what data attribution keeps of them.
"""

import math
from typing import Any, Literal

import jax
from jax import Array

from hlo_surgery.passes.measures.kronecker import (
    Eigenbases,
    KroneckerFactor,
    KroneckerFactors,
    fits,
    is_factors,
)
from hlo_surgery.passes.measures.moments import MEANS
from hlo_surgery.passes.measures.projections import (
    COLUMNS,
    OUTPUTS,
    SEEDS,
    DenselyProjected,
    Projected,
    random_signs,
)
from hlo_surgery.statistics.derived import Arrays, Derived, Found, Groups, Per, integer, leaves_like
from hlo_surgery.statistics.weighted import group_sums

FORMS = ("expand", "reduce")


def kronecker_factors(form: Literal["expand", "reduce"] = "expand") -> Derived:
    """Two second moments for each parameter, whose Kronecker product stands for the mean of
    `vec(g_b) vec(g_b)'`: the factors of K-FAC, at every contraction, without naming layers.

    The result has `KroneckerFactors(left, right)` in place of each parameter. Where a parameter is
    used, its gradient is `g_b = c sum_t l_bt r_bt'`, over T positions t: of a kernel [D, F] for
    layers `y = x @ w`, l are its inputs x and `c r` are the gradients of b's own loss by y.

    - "expand": `left = mean_b sum_t l l'`, `right = mean_bt (c r) (c r)'`;
    - "reduce": `left = mean_b (mean_t l) (mean_t l)'`, `right = mean_b (sum_t c r) (sum_t c r)'`.

    (Eschenhagen et al., "Kronecker-Factored Approximate Curvature for Modern Neural Network
    Architectures", section 3.) With T = 1 both are the same, and of examples that are all alike
    `kron(left, right)` is `vec(g) vec(g)'` exactly. The number c, in which a mean loss has B and
    what scales the gradient behind the contraction, always lies in right: of a kernel that is
    stored [F, D], left is of the gradients by y over c, and right of x times c.

    Axes are those of the parameter: left goes over the first ones, [D, D], and right over the rest.
    A convolution's kernel [h, w, i, o] has left over the patches, [h w i, h w i]; [D, heads, f] has
    right over the last two; of [heads, D, f] each head stands for itself, as stacked layers do. A
    vector has left [1, 1]: `sum_t 1` of a bias, whose right is [F, F]. Of a table that is looked up
    the side of its rows is a diagonal, [V]: exactly so of "expand", and of "reduce" the diagonal is
    taken. A parameter of several axes that is added as it is, as learned positions are, or
    multiplied elementwise, is such a table, of which every row is looked up, or of a slice of it
    those of the slice. Stacked layers, as in a scan, stand in front: [L, D, D].
    Where a parameter is used several times, positions are those of all uses; as w and as w' it is
    refused, and so is a mean of gradients taken one by one, as by `jax.vmap(jax.grad(loss))`.
    Positions that the loss masks out count in T. Of the labels that are there it is the empirical
    Fisher matrix; for the Fisher matrix draw them from the model, with `sampled_labels`.

    Raises ValueError for another form, and for a batch of one example; Refusal where a gradient is
    not read as such a sum, or its axes do not part into first and others.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> loss = lambda w, x: jnp.mean(jnp.sum((x @ w) ** 2, -1) / 2)
    >>> f = hs.grad(loss, batch_argnums=1, statistics=hs.kronecker_factors())
    >>> _, (left, right) = f(jnp.eye(2), jnp.array([[2.0, 0.0], [0.0, 4.0]]))
    >>> left.tolist(), right.tolist()
    ([[2.0, 0.0], [0.0, 8.0]], [[2.0, 0.0], [0.0, 8.0]])
    """
    if form not in FORMS:
        raise ValueError(f"kronecker_factors takes the form 'expand' or 'reduce', not {form!r}")
    measures = KroneckerFactor("left", form), KroneckerFactor("right", form)

    def combine(found: Found, groups: Groups) -> Arrays:
        sides = zip(*(found.of(measure) for measure in measures), strict=True)
        return [x for pair in sides for x in pair]

    name = "kronecker_factors" if form == "expand" else f"kronecker_factors({form!r})"
    return Derived(name, combine, measures, parts=KroneckerFactors, least=2)


def second_moment_in(bases: Any) -> Derived:
    """The mean over the examples of `|P' g_b Q|**2`, elementwise and like the gradient, with the
    orthonormal columns of P and Q for each parameter: the second moments of EK-FAC.

    `bases`: `Eigenbases(P, Q)` in place of each parameter, as `eigenbases` makes them of Kronecker
    factors; they may be traced. Of one position an example, as in dense layers of
    vectors, it costs two thin contractions and one of squares; of several each example's gradient
    is made and turned. (George et al., "Fast Approximate Natural Gradient Descent in a
    Kronecker-factored Eigenbasis", section 3.)

    Raises ValueError where the bases are not like the gradient, or are the factors themselves.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> loss = lambda w, x: jnp.mean(x @ w)
    >>> w, x = jnp.ones(2), jnp.array([[2.0, 2.0], [3.0, 3.0]])
    >>> _, factors = hs.grad(loss, batch_argnums=1, statistics=hs.kronecker_factors())(w, x)
    >>> basis = hs.curvature.eigenbases(factors)
    >>> f = hs.grad(loss, batch_argnums=1, statistics=hs.second_moment_in(basis))
    >>> [round(float(s), 2) for s in f(w, x)[1]]  # all along (1, 1): the mean of 8 and 18
    [0.0, 13.0]
    """
    name = "second_moment_in"

    def of_tree(gradient: Any) -> Derived:
        own = _bases_of(gradient, bases)

        def combine(found: Found, groups: Groups) -> Arrays:
            return found.rotated_squares(own)

        return Derived(name, combine, reweights=True, joins=MEANS)

    return Derived(name, reweights=True, of_tree=of_tree)


def _bases_of(gradient: Any, bases: Any) -> list[Any]:
    """Those of each array; ValueError where there is not one for each, of its axes."""
    own = leaves_like(gradient, bases, "second_moment_in", is_factors)
    kinds = jax.tree.leaves(gradient)
    are_bases = all(isinstance(basis, Eigenbases) for basis in own)
    if not (are_bases and all(map(fits, kinds, own))):
        raise ValueError(
            "second_moment_in takes Eigenbases in place of each parameter, as eigenbases "
            "makes them of what kronecker_factors finds of the same gradient"
        )
    return own


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
    columns = integer("projected", "k from 1 to 2**20, such as 16", k, 1, LARGEST)
    number = integer("projected", "seed from 0 to 2**64 - 1", seed, 0, SEEDS - 1)
    if kind not in KINDS:
        raise ValueError(f"projected takes a kind of {' or '.join(KINDS)}, not {kind!r}")
    measure = KINDS[kind](columns, number)

    def combine(found: Found, groups: Groups) -> Arrays:
        each = [_signed(measure, i, x) for i, x in enumerate(found.of(measure))]
        if per == "parameter":
            return each
        wide = [_as_wide(measure, i, x) for i, x in enumerate(each)]
        return group_sums(wide, groups)

    chosen = {"seed": number, "kind": kind} if kind != "kronecker" else {"seed": number}
    arguments = [str(columns), *(f"{name}={value!r}" for name, value in chosen.items() if value)]
    grouped = [] if per == "parameter" else [f"per={per!r}" if isinstance(per, str) else "per=..."]
    name = f"projected({', '.join([*arguments, *grouped])})"
    return Derived(name, combine, (measure,), "group", per, by_example=True)


def _signed(measure: Measure, i: int, x: Array) -> Array:
    """The projections of output i, with signs of its own: equal shapes have independent ones."""
    rows = x.shape[1] if x.ndim == 3 else 1
    signs = random_signs(measure.seed, (OUTPUTS, i), rows, measure.k)
    return x * signs.reshape(x.shape[1:]).astype(x.dtype)


def _as_wide(measure: Measure, i: int, x: Array) -> Array:
    """A vector's projection [B, k], beside those of matrices: as that of a single column."""
    if isinstance(measure, DenselyProjected) or x.ndim == 3:
        return x
    column = random_signs(measure.seed, (COLUMNS, i), 1, measure.k).astype(x.dtype)
    return x[:, :, None] * column / math.sqrt(measure.k)
