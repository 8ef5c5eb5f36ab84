"""Per-example calls: a function's word that it takes examples one by one, kept in the module.

The function becomes a composite with its axes, which `passes/normalise/calls.py` reads.

Constant: what statistics take as given, though examples and parameters made it.

Axes of custom calls as they were given, checked; what they must fit only the module tells.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from hlo_surgery.passes.dataflow.ancestors import CONSTANT
from hlo_surgery.passes.dataflow.kernels import NONE, Axes
from hlo_surgery.passes.normalise.calls import AXES, FUNCTION, NAME, CallAxes
from hlo_surgery.public_function import Function
from hlo_surgery.requests.in_axes import axes_by_leaf, from_front

# Of a list of arrays, a list of arrays.
OnLeaves = Callable[..., list[Any]]


def per_example_call(fn: Function, in_axes: Any = 0, out_axes: Any = 0) -> Function:
    """`fn`, declared to take examples one by one: a kernel (Pallas, FFI) whose body shows nothing.

    What it returns at index b of these axes must be made of what its arguments hold at index b, and
    of what is None there, in the same way for all b: as `jax.vmap` of a function of one example
    would. `in_axes` and `out_axes` are as in `jax.vmap`: one int or None, or one for each argument
    or result, each a pytree prefix. This is trusted, with all that `fn` computes: put it around the
    kernel and nothing else. Plans list it, and `hlo-surgery verify` tests it on numbers. The result
    is the function itself, of positional arguments.

    Its derivative is that of `fn`, one by one as well; the forward pass is then computed again in
    the backward pass. To save that, give the kernel a `jax.custom_vjp` whose two functions are each
    in a per_example_call. What is None in `in_axes` gets a sum over the examples for a gradient,
    and statistics of that are refused: multiply by weights outside.

    Raises ValueError or TypeError where axes do not fit the arrays, and ValueError where `fn` calls
    the host in order, as kernels do under `pltpu.force_tpu_interpret_mode()`; when it is called.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> kernel = hs.per_example_call(jnp.linalg.cholesky)
    >>> kernel(4 * jnp.stack([jnp.eye(2)] * 3)).shape
    (3, 2, 2)
    """

    @functools.wraps(fn)
    def called(*args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        traced, returned = jax.make_jaxpr(fn, return_shape=True)(*args)
        _check_order(traced.effects)

        def on_leaves(*arrays: Any) -> list[Any]:
            return jax.tree.leaves(fn(*jax.tree.unflatten(tree, arrays)))

        each = tuple(in_axes) if isinstance(in_axes, list) else in_axes
        axes = (*_leaf_axes("in_axes", each, args), *_leaf_axes("out_axes", out_axes, returned))
        _check_sizes(axes, [*leaves, *jax.tree.leaves(returned)])
        on_leaves.__name__ = getattr(fn, "__name__", "a function")
        results = _differentiable(on_leaves, [axes])(*leaves)
        return jax.tree.unflatten(jax.tree.structure(returned), results)

    return called


def _check_order(effects: Iterable[Any]) -> None:
    """Raises ValueError for calls to the host in order: JAX hands none through a composite."""
    if any(type(effect).__name__.startswith("Ordered") for effect in effects):
        raise ValueError(
            "per_example_call holds a function that calls the host in order, which JAX cannot "
            "lower there; interpret a kernel by pallas_call(..., interpret=True) in place of "
            "force_tpu_interpret_mode, and leave ordered=True out"
        )


def _leaf_axes(name: str, axes: Any, arrays: Any) -> Axes:
    """The axis of each leaf, from the front, by a pytree prefix."""
    keyword = f"{name} of per_example_call"
    found = axes_by_leaf(keyword, axes, arrays, "what it goes with")
    return tuple(from_front(keyword, axis, leaf, "an array") for axis, _, leaf in found)


def _check_sizes(axes: Axes, leaves: Sequence[Any]) -> None:
    """Raises ValueError where arrays hold different numbers of examples."""
    pairs = zip(axes, leaves, strict=True)
    sizes = sorted({jnp.shape(leaf)[axis] for axis, leaf in pairs if axis is not None})
    if len(sizes) > 1:
        raise ValueError(
            "the axes of per_example_call have different sizes: "
            f"{', '.join(map(str, sizes))}; all are the axis of the examples"
        )


def _differentiable(fn: OnLeaves, factors: Sequence[Axes]) -> OnLeaves:
    """The function with a derivative that takes the examples one by one as well."""

    @jax.custom_vjp
    def call(*leaves: Any) -> list[Any]:
        return _mappable(fn, factors)(*leaves)

    def forward(*leaves: Any) -> tuple[list[Any], Any]:
        return call(*leaves), leaves

    def backward(leaves: Sequence[Any], slopes: Sequence[Any]) -> tuple[Any, ...]:
        return _pulled_back(fn, factors, leaves, slopes)

    call.defvjp(forward, backward)
    return call


def _pulled_back(
    fn: OnLeaves, factors: Sequence[Axes], leaves: Sequence[Any], slopes: Sequence[Any]
) -> tuple[Any, ...]:
    """The cotangents of the leaves; None for integers."""
    count, own = len(leaves), _inexact(leaves)
    kept = _inexact(jax.eval_shape(fn, *leaves))

    def pull(*arrays: Any) -> list[Any]:
        def of_own(*some: Any) -> list[Any]:
            given = dict(zip(own, some, strict=True))
            results = fn(*(given.get(i, x) for i, x in enumerate(arrays[:count])))
            return [results[i] for i in kept]

        back = jax.vjp(of_own, *(arrays[i] for i in own))[1]
        return list(back(list(arrays[count:])))

    pull.__name__ = f"the backward pass of {fn.__name__}"
    moved = [
        (*axes[:count], *(axes[count + i] for i in kept), *(axes[i] for i in own))
        for axes in factors
    ]
    found = _differentiable(pull, moved)(*leaves, *(slopes[i] for i in kept))
    by_leaf = dict(zip(own, found, strict=True))
    return tuple(by_leaf.get(i) for i in range(count))


def _inexact(leaves: Sequence[Any]) -> list[int]:
    """Which of them have a derivative."""
    return [i for i, x in enumerate(leaves) if jnp.issubdtype(x.dtype, jnp.inexact)]


def _mappable(fn: OnLeaves, factors: Sequence[Axes]) -> OnLeaves:
    """The function under `jax.vmap` too, which takes what it maps over one by one by definition."""

    @jax.custom_batching.custom_vmap
    def call(*leaves: Any) -> list[Any]:
        return _composite(fn, factors)(*leaves)

    @call.def_vmap
    def _(size: int, is_mapped: Sequence[bool], *leaves: Any) -> tuple[list[Any], list[bool]]:
        own = tuple(0 if mapped else None for mapped in is_mapped)
        mapped_fn = functools.wraps(fn)(jax.vmap(fn, own, axis_size=size))
        count = len(factors[0]) - len(leaves)
        lead = (*own, *([0] * count))
        shifted = [tuple(_shifted(a, new) for a, new in zip(f, lead, strict=True)) for f in factors]
        return _mappable(mapped_fn, [*shifted, lead])(*leaves), [True] * count

    return call


def _shifted(axis: int | None, new: int | None) -> int | None:
    return axis if axis is None or new is None else axis + 1


def _composite(fn: OnLeaves, factors: Sequence[Axes]) -> OnLeaves:
    said = tuple(tuple(NONE if a is None else a for a in axes) for axes in factors)
    marked = jax.lax.composite(lambda *leaves, **_: fn(*leaves), NAME)
    return lambda *leaves: marked(*leaves, **{AXES: said, FUNCTION: fn.__name__})


def constant(x: Any) -> Any:
    """The arrays of x, no gradient passing through them, as a constant of the batch.

    Like `jax.lax.stop_gradient`, which leaves nothing in a module: what a loss makes of all
    examples, such as advantages normalised over the batch, mixes them where a parameter reaches it,
    and is refused. Marked so, it may stand in every example's term. The gradient of example b is
    then that of its own term with x as it is in this batch, and the plan lists it.

    >>> import jax.numpy as jnp
    >>> import hlo_surgery as hs
    >>> def loss(w, x):
    ...     scores = x @ w
    ...     weights = hs.constant((scores - scores.mean()) / (scores.std() + 1))
    ...     return -jnp.mean(weights * scores)
    >>> f = hs.grad(loss, statistics=hs.norms())
    >>> gradient, norms = f(jnp.ones(2), jnp.array([[0.0, 1.0], [3.0, 0.0]]))
    >>> norms.tolist()
    [0.5, 1.5]
    """
    return jax.tree.map(_held, x)


def _held(x: Any) -> Any:
    return _marked(lax.stop_gradient(x))


@custom_vmap
def _marked(x: Any) -> Any:
    return lax.composite(lambda y: y, name=CONSTANT)(x)


@_marked.def_vmap
def _marked_of_many(_: int, is_batched: Any, x: Any) -> tuple[Any, Any]:
    """JAX has no rule for composites; the same mark is right of many at once."""
    return _marked(x), is_batched[0]


EXAMPLE = '{"my_kernel": ((0, 0, None), 0)}'


def checked_calls(given: Any) -> CallAxes:
    """Raises TypeError for what is no mapping from names to the axes of operands and results.

    >>> checked_calls({"my_kernel": ([0, None], 0)})
    {'my_kernel': ([0, None], 0)}
    """
    if not isinstance(given, Mapping):
        raise TypeError(f"custom_calls is {given!r}; pass a dict such as {EXAMPLE}")
    calls = cast(Mapping[Any, Any], given)
    for name, axes in calls.items():
        pair = isinstance(axes, tuple | list) and len(cast(Sequence[Any], axes)) == 2
        if not isinstance(name, str) or not pair or not all(map(_is_axes, axes)):
            raise TypeError(
                f"custom_calls holds {name!r}: {axes!r}; a call's name goes with the axes of its "
                f"operands and those of its results, such as {EXAMPLE}"
            )
    return dict(calls)


def _is_axes(given: Any) -> bool:
    """Whether these are an axis, none, or one for each array."""
    each: Any = given if isinstance(given, tuple | list) else [given]
    return all(a is None or type(a) is int for a in each)
