"""Kronecker factors: what K-FAC and its kin keep of each parameter's curvature."""

from typing import Any, Literal

import jax

from hlo_surgery.passes.measures.kronecker import (
    Eigenbases,
    KroneckerFactor,
    KroneckerFactors,
    fits,
    is_factors,
)
from hlo_surgery.passes.measures.moments import MEANS
from hlo_surgery.statistics.derived import Derived, Groups, not_yet
from hlo_surgery.statistics.found import Found
from hlo_surgery.statistics.like_gradient import leaves_like

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

    def combine(found: Found, groups: Groups) -> list[jax.Array]:
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
    >>> basis = hs.eigenbases(factors)
    >>> f = hs.grad(loss, batch_argnums=1, statistics=hs.second_moment_in(basis))
    >>> [round(float(s), 2) for s in f(w, x)[1]]  # all along (1, 1): the mean of 8 and 18
    [0.0, 13.0]
    """
    name = "second_moment_in"

    def of_tree(gradient: Any) -> Derived:
        own = _bases_of(gradient, bases)

        def combine(found: Found, groups: Groups) -> list[jax.Array]:
            return found.rotated_squares(own)

        return Derived(name, combine, reweights=True, joins=MEANS)

    return Derived(name, not_yet, reweights=True, of_tree=of_tree)


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
