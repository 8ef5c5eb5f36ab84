"""The Python API: gradient functions that also return statistics of the individual examples' gradients."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hlo_surgery.module import Module, load
from hlo_surgery.pipeline import explain_module, rewrite_module
from hlo_surgery.planning import Plan
from hlo_surgery.statistics import Statistic, named

Statistics = Statistic | Mapping[str, Statistic]


def grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    batch_argnums: int | Sequence[int] = 1,
    in_axes: Any = 0,
    statistics: Statistics,
    loss_reduction: str = "mean",
    on_mixing: str = "refuse",
    strategy: str = "auto",
) -> "WithStatistics":
    """Like `jax.grad(fun, argnums, has_aux)`, with statistics: returns f with `f(*args) == (result, stats)`.

    `result` is what `jax.grad` returns. `stats` has for each statistic a pytree like the gradient (for one statistic,
    not in a dict, that pytree itself). `batch_argnums` are the arguments whose leaves carry the examples, along
    `in_axes` (as in `jax.vmap`: one int, or one entry for each batch argument, each a pytree prefix).
    `loss_reduction` says whether `fun` averages or sums over the examples.

    Calling f raises `Refusal` where an example's own gradient is not defined or not proved, naming the source line.

    >>> import jax.numpy as jnp
    >>> loss = lambda w, x: jnp.mean((x @ w) ** 2)
    >>> import hlo_surgery as hs
    >>> f = hs.grad(loss, statistics=hs.second_moment())
    >>> gradient, squares = f(jnp.ones(3), jnp.ones((4, 3)))
    >>> squares.tolist()
    [36.0, 36.0, 36.0]
    """
    differentiated = jax.grad(fun, argnums, has_aux=has_aux)
    options = _Options(batch_argnums, in_axes, statistics, loss_reduction, on_mixing, strategy)
    return WithStatistics(differentiated, operator.itemgetter(0) if has_aux else _all, options)


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    batch_argnums: int | Sequence[int] = 1,
    in_axes: Any = 0,
    statistics: Statistics,
    loss_reduction: str = "mean",
    on_mixing: str = "refuse",
    strategy: str = "auto",
) -> "WithStatistics":
    """Like `jax.value_and_grad(fun, argnums, has_aux)`, with statistics: `f(*args) == ((value, gradient), stats)`.

    Everything else is as in `grad`.
    """
    differentiated = jax.value_and_grad(fun, argnums, has_aux=has_aux)
    options = _Options(batch_argnums, in_axes, statistics, loss_reduction, on_mixing, strategy)
    return WithStatistics(differentiated, operator.itemgetter(1), options)


def rewrite(
    grad_fun: Callable[..., Any],
    *,
    batch_argnums: int | Sequence[int],
    in_axes: Any = 0,
    statistics: Statistics,
    gradients: Callable[[Any], Any] | None = None,
    loss_reduction: str = "mean",
    on_mixing: str = "refuse",
    strategy: str = "auto",
) -> "WithStatistics":
    """Any function that returns gradients of a minibatch loss already, with statistics: `f(*args) == (outputs, stats)`.

    `gradients` picks them from what `grad_fun` returns (`lambda outputs: outputs[1]`); by default all of it is.
    Everything else is as in `grad`.
    """
    options = _Options(batch_argnums, in_axes, statistics, loss_reduction, on_mixing, strategy)
    return WithStatistics(grad_fun, gradients or _all, options)


def explain(target: Any, *args: Any, **kwargs: Any) -> Plan:
    """The plan, which prints: for each gradient output its sites with source lines, tail, strategy, FLOPs and bytes.

    `explain(f, *args)` for a function made by `grad`, `value_and_grad` or `rewrite`; `explain(module, batch=...)` for
    a module, with the keywords of `rewrite_module`.
    """
    return target.explain(*args, **kwargs) if isinstance(target, WithStatistics) else explain_module(target, **kwargs)


def _all(outputs: Any) -> Any:
    return outputs


@dataclass(frozen=True)
class _Options:
    batch_argnums: int | Sequence[int]
    in_axes: Any
    statistics: Statistics
    loss_reduction: str
    on_mixing: str
    strategy: str


class WithStatistics:
    """A function that returns gradients, made to return statistics too. Rewritten once per shapes and dtypes."""

    def __init__(self, fun: Callable[..., Any], pick: Callable[[Any], Any], options: _Options) -> None:
        self._fun, self._pick, self._options = fun, pick, options
        # Sorted by name, as the leaves of a dict are.
        self._statistics = dict(sorted(named(options.statistics).items()))
        self._rewritten: dict[Any, tuple[Module, Any]] = {}
        self.__doc__ = getattr(fun, "__doc__", None)

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """The function's own result, and the statistics."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        arrays = [_flat_array(leaf) for leaf in leaves if _is_array(leaf)]
        module, result_tree = self._lookup(leaves, tree)
        return jax.tree.map(
            _as_key, result_tree, jax.tree.unflatten(jax.tree.structure(result_tree), module.jitted(*arrays))
        )

    def explain(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for these arguments, which prints."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        plan = self._lookup(leaves, tree)[0].plan
        assert plan is not None
        return plan

    def module(self, *args: Any, **kwargs: Any) -> Module:
        """The rewritten module for these arguments: its text, to save it, its plan."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        return self._lookup(leaves, tree)[0]

    def _lookup(self, leaves: list[Any], tree: Any) -> tuple[Module, Any]:
        key = (tree, tuple(map(_signature, leaves)))
        if key not in self._rewritten:
            self._rewritten[key] = self._rewrite(leaves, tree)
        return self._rewritten[key]

    def _rewrite(self, leaves: list[Any], tree: Any) -> tuple[Module, Any]:
        lowered, shape = _lower(self._fun, leaves, tree)
        batch = self._batch(leaves, tree)
        numbers = jax.tree.leaves(self._pick(_numbered(shape)))
        rewritten = rewrite_module(
            lowered,
            batch=batch,
            statistics=self._statistics,
            gradients=numbers,
            loss_reduction=self._options.loss_reduction,
            on_mixing=self._options.on_mixing,
            strategy=self._options.strategy,
        )
        picked = jax.tree.structure(self._pick(shape))
        return rewritten, (shape, self._statistics_tree(picked))

    def _statistics_tree(self, gradient: Any) -> Any:
        like_gradient = jax.tree.unflatten(gradient, [""] * gradient.num_leaves)
        if isinstance(self._options.statistics, Statistic):
            return like_gradient
        return dict.fromkeys(self._statistics, like_gradient)

    def _batch(self, leaves: list[Any], tree: Any) -> dict[int, int]:
        """Example axis by number of the flat array argument."""
        args, kwargs = jax.tree.unflatten(tree, leaves)
        axes: list[list[int | None]] = [[None] * len(jax.tree.leaves(arg)) for arg in args]
        chosen = _batch_numbers(self._options.batch_argnums, len(args))
        for number, in_axis in zip(chosen, _one_for_each(self._options.in_axes, chosen), strict=True):
            axes[number] = _leaf_axes(in_axis, args[number])
        flat = [axis for part in axes for axis in part] + [None] * len(jax.tree.leaves(kwargs))
        arrays = [axis for axis, leaf in zip(flat, leaves, strict=True) if _is_array(leaf)]
        return {i: axis for i, axis in enumerate(arrays) if axis is not None}


def _batch_numbers(numbers: int | Sequence[int], count: int) -> list[int]:
    """The positions of the batch arguments, checked."""
    chosen = [numbers] if isinstance(numbers, int) else list(numbers)
    for number in chosen:
        if not isinstance(number, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"batch_argnums holds {number!r}; pass the position of an argument, or several")
        if not -count <= number < count:
            raise ValueError(f"batch_argnums names argument {number}; {count} positional ones were given")
    positions = [number % count for number in chosen]
    if len(set(positions)) < len(positions):
        raise ValueError(f"batch_argnums names an argument twice: {numbers}")
    return positions


def _is_array(leaf: Any) -> bool:
    """Whether a leaf is traced: arrays and numbers are, flags and whatever else JAX cannot hold are static."""
    held = isinstance(leaf, jax.Array | jax.ShapeDtypeStruct | np.ndarray | np.number | int | float | complex)
    return held and not isinstance(leaf, bool)


def _kind(leaf: Any) -> Any:
    """Shape, dtype and weak type of an array, a number, or what stands for one."""
    return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)


def _signature(leaf: Any) -> Any:
    if not _is_array(leaf):
        return leaf
    kind = _kind(leaf)
    return kind.shape, kind.dtype, kind.weak_type


def _lower(fun: Callable[..., Any], leaves: list[Any], tree: Any) -> tuple[Module, Any]:
    """The function's module for these arguments, its arrays flat; and what it returns, as a tree of shapes."""
    shapes: list[Any] = []

    def flat(*arrays: Any) -> Any:
        remaining = iter(arrays)
        args, kwargs = jax.tree.unflatten(tree, [next(remaining) if _is_array(x) else x for x in leaves])
        result = fun(*args, **kwargs)
        shapes.append(jax.tree.map(_key_kind, result))
        return result

    kinds = [_kind(leaf) for leaf in leaves if _is_array(leaf)]
    structs = [jax.ShapeDtypeStruct(k.shape, k.dtype, weak_type=k.weak_type) for k in kinds]
    lowered = load(jax.jit(flat, keep_unused=True).lower(*structs).as_text(debug_info=True))
    if len(lowered.arguments) != len(structs):
        raise TypeError("the function closes over traced values; pass them as arguments, or use jax.closure_convert")
    return lowered, shapes[0]


def _numbered(shape: Any) -> Any:
    """The tree with its leaves' numbers for leaves."""
    return jax.tree.unflatten(jax.tree.structure(shape), range(len(jax.tree.leaves(shape))))


def _flat_array(leaf: Any) -> Any:
    """PRNG keys travel as the integers that hold them."""
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def _key_kind(output: Any) -> str:
    """The implementation of a PRNG key's generator; "" for any other output."""
    return str(jax.random.key_impl(output)) if jnp.issubdtype(output.dtype, jax.dtypes.prng_key) else ""


def _as_key(kind: str, output: jax.Array) -> jax.Array:
    return jax.random.wrap_key_data(output, impl=kind) if kind else output


def _one_for_each(in_axes: Any, chosen: Sequence[int]) -> list[Any]:
    """One entry of in_axes for each batch argument."""
    if isinstance(in_axes, tuple | list) and len(in_axes) != len(chosen):
        raise ValueError(f"in_axes has {len(in_axes)} entries for {len(chosen)} batch arguments; pass one for each")
    return list(in_axes) if isinstance(in_axes, tuple | list) else [in_axes] * len(chosen)


def _leaf_axes(in_axis: Any, argument: Any) -> list[int | None]:
    """The example axis of each leaf of a batch argument, from a pytree prefix, counted from the front."""
    try:
        axes = jax.tree.broadcast(in_axis, argument, is_leaf=_is_none)
    except ValueError as error:
        raise ValueError(f"in_axes is no prefix of the batch argument it goes with: {error}") from None
    pairs = zip(jax.tree.leaves(axes, is_leaf=_is_none), jax.tree.leaves(argument, is_leaf=_is_none), strict=True)
    return [_from_front(axis, leaf) for axis, leaf in pairs if leaf is not None]


def _from_front(axis: Any, leaf: Any) -> int | None:
    if axis is None or not _is_array(leaf):
        return None
    if not isinstance(axis, int):
        raise TypeError(f"in_axes holds {axis!r}; an example axis is an integer, or None for a leaf without examples")
    rank = len(_kind(leaf).shape)
    if not -rank <= axis < rank:
        raise ValueError(f"a batch argument has shape {_kind(leaf).shape}: there is no example axis {axis}")
    return axis % rank


def _is_none(x: Any) -> bool:
    return x is None
