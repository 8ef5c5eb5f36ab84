"""Graphs: a module's gradient, traced to aten operators without side effects.

PyTorch differentiates, so that an `autograd.Function` keeps its own backward pass and a number at
a kink the derivative that PyTorch gives it. Tensors are fake while it is traced: a branch on what
one holds cannot be taken unseen.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hlo_surgery.public_function import Function
from hlo_surgery.torch.aten import TABLE
from hlo_surgery.torch.modules import Held
from hlo_surgery.torch.pytorch import (
    Interpreter,
    Module,
    aten,
    decomposition_table,
    get_decompositions,
    make_fx,
    noted_in_graphs,
    sdpa,
    torch,
)
from hlo_surgery.torch.refused import Refusing, check_known, check_unchanged

# It changes its running averages without saying so, which functionalizing would not see.
UNSAID = (aten.native_batch_norm,)


class Graph(NamedTuple):
    """A graph of the trained parameters, frozen ones, buffers, arrays and constants, in this order,
    each flat; it returns the loss, the gradients and the buffers as they are then.
    """

    nodes: list[Any]
    constants: list[Any]


def gradient_graph(
    module: Any, loss: Function, held: Held, arrays: Sequence[Any], call: Any
) -> Graph:
    """The graph of the loss' gradient; `call(loss, module, arrays)` is the loss of these arrays.

    Raises ValueError where the loss is no real number that rests on a parameter, and Refusal where
    a graph would hide something, or has an operator that is not known.
    """
    inputs = [*held.trained.values(), *held.frozen.values(), *held.buffers.values(), *arrays]
    inputs = [x.detach() for x in inputs]
    gradient = _gradient(module, loss, held, call)
    # Operators that have gradients in aten, nodes that keep their lines, and the random numbers of
    # others left alone.
    with (
        warnings.catch_warnings(action="ignore"),
        torch.enable_grad(),
        sdpa.sdpa_kernel(sdpa.SDPBackend.MATH),
        torch.backends.mkldnn.flags(enabled=False),
        torch.random.fork_rng(devices=[]),
        noted_in_graphs.preserve_node_meta(),
    ):
        first = _traced(gradient, inputs, get_decompositions(UNSAID))
        check_unchanged(first.graph.nodes)
        names = [node.target for node in first.graph.nodes if node.op == "get_attr"]
        constants = {name: getattr(first, name) for name in dict.fromkeys(names)}
        run = torch.func.functionalize(_run(first, list(constants)), remove="mutations_and_views")
        table = {op: made for op, made in decomposition_table.items() if _is_taken_apart(op)}
        whole = [*inputs, *(x.detach() for x in constants.values())]
        second = _traced(run, whole, table)
    check_known(second.graph.nodes)
    return Graph(list(second.graph.nodes), list(constants.values()))


def _is_taken_apart(op: Any) -> bool:
    """Whether PyTorch takes it apart, into its own primitives: it has no function here, and draws
    nothing, which the parts would draw otherwise (dropout's are no others).
    """
    draws = torch.Tag.nondeterministic_seeded in getattr(op, "tags", ())
    return str(op) not in TABLE and (not draws or op is aten.native_dropout.default)


def _traced(function: Function, inputs: Sequence[Any], table: Any) -> Any:
    trace = make_fx(
        function, decomposition_table=table, tracing_mode="fake", _allow_non_fake_inputs=True
    )
    return trace(*inputs)


class _Loss(Module):
    """The loss as a module's own, as `functional_call` wants it."""

    def __init__(self, module: Any, call: Callable[[Any], Any]) -> None:
        super().__init__()
        self.module, self.calls = module, (call,)

    def forward(self) -> Any:
        """The loss of the module as it is."""
        return self.calls[0](self.module)


def _gradient(module: Any, loss: Function, held: Held, call: Any) -> Callable[..., list[Any]]:
    """The loss, its gradients and the buffers, of all that it rests on."""

    def gradient(*flat: Any) -> list[Any]:
        values = iter(flat)
        trained = {name: next(values).detach().requires_grad_() for name in held.trained}
        frozen = {name: next(values) for name in held.frozen}
        buffers = {name: next(values).clone() for name in held.buffers}
        arrays = list(values)
        state = {**trained, **frozen, **buffers}
        state = {f"module.{name}": value for name, value in state.items()}
        own = _Loss(module, lambda module: call(loss, module, arrays))
        with Refusing():
            value = torch.func.functional_call(own, state)
            check_loss(value)
            found = torch.autograd.grad(value, list(trained.values()), materialize_grads=True)
        after = [state[f"module.{name}"].detach() for name in buffers]
        return [value.detach(), *found, *after]

    return gradient


def check_loss(value: Any) -> None:
    """Raises ValueError for what is no loss."""
    if not isinstance(value, torch.Tensor) or value.shape != () or not value.is_floating_point():
        what = f"{value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else value
        raise ValueError(
            f"the loss is {what!r}; it is one real number, a tensor of shape []: take its mean"
        )
    if not value.requires_grad:
        raise ValueError(
            "the loss rests on no parameter that requires a gradient: do not detach it, and leave "
            "torch.no_grad() out of it"
        )


def _run(graph: Any, names: list[str]) -> Function:
    """The graph as a function that takes its constants as well, behind its inputs."""

    def run(*flat: Any) -> Any:
        count = len(flat) - len(names)
        given = _GivenConstants(graph, dict(zip(names, flat[count:], strict=True)))
        return given.run(*flat[:count], enable_io_processing=False)

    return run


class _GivenConstants(Interpreter):
    """Runs a graph with tensors in place of its own."""

    def __init__(self, graph: Any, constants: dict[str, Any]) -> None:
        super().__init__(graph)
        self._constants = constants

    def get_attr(self, target: str, args: Any, kwargs: Any) -> Any:
        """As fx calls it."""
        return self._constants[target]
