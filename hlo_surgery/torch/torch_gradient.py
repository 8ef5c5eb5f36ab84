"""Gradient functions of torch tensors that return statistics of the examples', too: traced as often
as their arguments or their module need it.
"""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import hlo_surgery.api as jax_api
from hlo_surgery.plan import Plan
from hlo_surgery.public_function import Function
from hlo_surgery.requests.declaring import constant
from hlo_surgery.rewriting.gradient_function import WithStatistics
from hlo_surgery.statistics.derived import Statistics
from hlo_surgery.torch.draws import drawn
from hlo_surgery.torch.evaluation import evaluated
from hlo_surgery.torch.graphs import Graph, gradient_graph
from hlo_surgery.torch.modules import Held, held_by, mode_of, places_of, unchanged
from hlo_surgery.torch.pytorch import torch
from hlo_surgery.torch.tensors import as_array, as_tensors


def grad(
    module: Any,
    loss: Function,
    *,
    batch_argnums: int | Sequence[int] | None = None,
    statistics: Statistics,
    **options: Any,
) -> "TorchGradient":
    """The gradient of a module's loss with statistics: `f(*args) == (gradient, stats)`.

    `loss(module, *args)` is the mean over the examples (or their sum, with
    `loss_reduction="sum"`), one real number. The gradient is a dict by the names of
    `module.named_parameters()`, of those that require one; `stats` has for each statistic such a
    dict, or what else it is (for one statistic, not in a dict, that itself). All are torch tensors.
    `batch_argnums` are the positions, among args, of those that hold the examples along their first
    axis: by default all that hold tensors. `options` are those of `hlo_surgery.grad`: `in_axes`,
    `loss_reduction`, `on_mixing`, `rows_per_example`, `strategy`, `memory_budget` and so on; but
    `is_real` and `segments` are not taken.

    What the module is when f is called counts: its parameters, its buffers, `train()` or `eval()`,
    what requires a gradient. Buffers that it changes are changed, and masks are drawn from
    PyTorch's own stream, as when it is called. Arguments that are no tensors are as they are; what
    else the loss reads in Python is read once for arguments of such kinds.

    f raises `Refusal` where an example's own gradient is not defined or not proved, or an operator
    is not known, and names the line.

    >>> import torch
    >>> import hlo_surgery as hs
    >>> import hlo_surgery.torch
    >>> module = torch.nn.Linear(3, 1, bias=False)
    >>> _ = torch.nn.init.ones_(module.weight)
    >>> loss = lambda module, x: (module(x) ** 2).mean()
    >>> f = hs.torch.grad(module, loss, statistics=hs.second_moment())
    >>> gradient, squares = f(torch.ones(4, 3))
    >>> squares["weight"].tolist()
    [[36.0, 36.0, 36.0]]
    """
    return TorchGradient(module, loss, batch_argnums, statistics, options, with_value=False)


def value_and_grad(
    module: Any,
    loss: Function,
    *,
    batch_argnums: int | Sequence[int] | None = None,
    statistics: Statistics,
    **options: Any,
) -> "TorchGradient":
    """The loss, too: `f(*args) == ((loss, gradient), stats)`. Everything else is as in `grad`."""
    return TorchGradient(module, loss, batch_argnums, statistics, options, with_value=True)


class Traced(NamedTuple):
    """A graph, and what of its inputs in JAX returns its outputs and the statistics.

    `places`: where the module holds tensors that are constants of the graph.
    """

    graph: Graph
    function: WithStatistics
    places: list[tuple[Any, str, Any]]

    @property
    def is_current(self) -> bool:
        """Whether the module still holds the same tensors."""
        return all(vars(part).get(name) is value for part, name, value in self.places)


class TorchGradient:
    """A gradient function of torch tensors, traced for each kind of arguments and of module."""

    def __init__(
        self,
        module: Any,
        loss: Function,
        batch_argnums: int | Sequence[int] | None,
        statistics: Statistics,
        options: dict[str, Any],
        *,
        with_value: bool,
    ) -> None:
        for name in ("is_real", "segments"):
            if name in options:
                raise TypeError(f"{name} is not taken for PyTorch; give it to hs.grad, of JAX")
        self._module, self._loss, self._batch = module, loss, batch_argnums
        self._options: dict[str, Any] = {"statistics": statistics, **options}
        self._with_value = with_value
        self._traced: dict[Any, Traced] = {}
        # What is wrong with these shows here, before there are arguments.
        held_by(module)
        self._rewritten(Graph([], []), Held({}, {}, {}), (0,))

    def __call__(self, *args: Any) -> tuple[Any, Any]:
        """The gradient, or the loss and the gradient, and the statistics."""
        held, traced, inputs = self._prepared(args)
        with jax.enable_x64(True):
            arrays = jax.tree.map(as_array, inputs)
            leaves, tree = jax.tree.flatten(traced.function(*arrays))
        outputs, statistics = tree.unflatten(as_tensors(leaves, jax.tree.leaves(inputs)))
        with torch.no_grad():
            for name, value in outputs["buffers"].items():
                held.buffers[name].copy_(value)
        gradient = _in_order(outputs["gradient"], held)
        result = (outputs["loss"], gradient) if self._with_value else gradient
        return result, _in_order(statistics, held)

    def explain(self, *args: Any) -> Plan:
        """The plan for these arguments, which prints."""
        _, traced, inputs = self._prepared(args)
        with jax.enable_x64(True):
            return traced.function.explain(*jax.tree.map(as_array, inputs))

    def _prepared(self, args: Sequence[Any]) -> tuple[Held, Traced, tuple[Any, ...]]:
        """What the module holds, what is traced for that and these arguments, and its inputs."""
        held = held_by(self._module)
        leaves, tree = jax.tree.flatten(args)
        trained = list(held.trained.values())
        given = [*held.frozen.values(), *held.buffers.values()]
        kinds = (*map(_kind, [*trained, *given, *leaves]), *held.buffers)
        key = (tree, kinds, mode_of(self._module))
        if key not in self._traced or not self._traced[key].is_current:
            self._traced[key] = self._trace(held, leaves, tree, args)
        traced = self._traced[key]
        # Arguments, what is trained, what is not, constants, draws.
        arrays = jax.tree.map(lambda leaf: leaf if _is_tensor(leaf) else None, tuple(args))
        graph = traced.graph
        return held, traced, (*arrays, trained, given, graph.constants, drawn(graph.nodes))

    def _trace(self, held: Held, leaves: list[Any], tree: Any, args: Sequence[Any]) -> Traced:
        def call(loss: Function, module: Any, arrays: Sequence[Any]) -> Any:
            given = iter(arrays)
            whole = (next(given) if _is_tensor(leaf) else leaf for leaf in leaves)
            return loss(module, *tree.unflatten(whole))

        tensors, read = [leaf for leaf in leaves if _is_tensor(leaf)], list[Any]()
        with unchanged(self._module, read):
            graph = gradient_graph(self._module, self._loss, held, tensors, call)
            read += graph.constants
        function = self._rewritten(graph, held, self._batch_of(args))
        return Traced(graph, function, places_of(self._module, graph.constants))

    def _batch_of(self, args: Sequence[Any]) -> Sequence[int]:
        """Positions among the arguments with examples. Raises ValueError for others."""
        if self._batch is None:
            return [i for i, arg in enumerate(args) if any(map(_is_tensor, jax.tree.leaves(arg)))]
        named = (self._batch,) if isinstance(self._batch, int) else tuple(self._batch)
        for number in named:
            if not -len(args) <= number < len(args):
                raise ValueError(f"batch_argnums names {number}; there are {len(args)} arguments")
        return [number % len(args) for number in named]

    def _rewritten(self, graph: Graph, held: Held, batch: Sequence[int]) -> "WithStatistics":
        run, changed = evaluated(graph.nodes), _changed(graph, held)
        names, buffer_names = list(held.trained), list(held.buffers)

        def outputs(*inputs: Any) -> dict[str, Any]:
            *args, trained, given, constants, draws = inputs
            args = [arg if i in batch else _as_given(arg) for i, arg in enumerate(args)]
            given, constants, draws = map(_as_given, (given, constants, draws))
            flat = jax.tree.leaves((trained, given, args, constants))
            loss, *more = run(flat, draws)
            gradient = dict(zip(names, more, strict=False))
            after = dict(zip(buffer_names, more[len(names) :], strict=True))
            buffers = {name: after[name] for name in changed}
            return {"loss": loss, "gradient": gradient, "buffers": buffers}

        return jax_api.rewrite(
            outputs,
            batch_argnums=batch,
            gradients=lambda found: found["gradient"],
            loss=lambda found: found["loss"],
            **self._options,
        )


def _changed(graph: Graph, held: Held) -> list[str]:
    """The buffers that are others in the end."""
    if not graph.nodes:
        return []
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    output = graph.nodes[-1].args[0]
    first = len(held.trained) + len(held.frozen)
    pairs = zip(held.buffers, output[1 + len(held.trained) :], inputs[first:], strict=False)
    return [name for name, after, before in pairs if _origin(after) is not before]


def _origin(node: Any) -> Any:
    """What a node is a copy of."""
    copies = ("aten.clone.default", "aten.detach_copy.default", "aten.alias.default")
    while str(node.target) in copies:
        node = node.args[0]
    return node


def _in_order(tree: Any, held: Held) -> Any:
    """The tree with the parameters of each dict in the module's own order."""
    if not isinstance(tree, dict):
        return tree
    names = held.trained if tree.keys() == held.trained.keys() else tree
    return {name: _in_order(tree[name], held) for name in names}


def _as_given(arrays: Any) -> Any:
    """The arrays, marked as what rests on no parameter; integers rest on none."""
    return jax.tree.map(
        lambda x: constant(x) if jnp.issubdtype(x.dtype, jnp.inexact) else x, arrays
    )


def _is_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor)


def _kind(leaf: Any) -> Any:
    """What tracing sees of an argument."""
    if _is_tensor(leaf):
        return tuple(leaf.shape), leaf.dtype, leaf.device
    if not isinstance(leaf, Hashable):
        raise TypeError(
            f"an argument holds a {type(leaf).__name__}: pass arrays as torch tensors, and else "
            "what can be compared"
        )
    return type(leaf), leaf
