"""Requests: what is asked of a module, checked and by position."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_args

import jax
from jax.tree_util import keystr

from hlo_surgery.module import Module, Port
from hlo_surgery.passes.emit.splice import ClosedOver
from hlo_surgery.passes.ir.mlir import Value
from hlo_surgery.passes.strategies.strategy import Examples
from hlo_surgery.passes.structure.unification import Ragged
from hlo_surgery.requests.declaring import CallAxes, checked_calls
from hlo_surgery.requests.gradient_outputs import (
    gradient_outputs,
    is_inexact,
    loss_output,
    named_loss,
)
from hlo_surgery.requests.groups import groups_of
from hlo_surgery.requests.in_axes import example_count
from hlo_surgery.requests.options import PlanningChoices, PlanningOptions
from hlo_surgery.requests.segments import ragged_ports
from hlo_surgery.requests.updated_arguments import as_integer, picked_ports, port_number
from hlo_surgery.statistics.derived import (
    Derived,
    Groups,
    Statistic,
    Statistics,
    known_for,
    named,
    parts_of,
)

LossReduction = Literal["mean", "sum"]
OnMixing = Literal["refuse", "contribution"]
Batch = Mapping[str, int] | Mapping[int, int] | Mapping[str | int, int] | Sequence[str | int]


@dataclass(frozen=True)
class Request:
    """`batch`: example axis by argument number; `size`: B; `gradients`: output numbers; `outputs`:
    the names of all outputs.

    `groups`: for each statistic, which gradients belong together, by position; `losses`: the loss's
    output number, where one is needed. `is_real`: the argument that says which examples are no
    padding, `real_of` the arguments that it is made of, and `real` the values that say it, with
    their number. `closed_over`: traced values that
    the statistics were found to close over. `custom_calls`: the examples' axes of some, as they
    were declared. `pruned`: whether the module may lack what no output needs, as what `jax.jit`
    lowers does. `ragged`: by argument whose rows are the examples' by ids, their axis and the ids'
    argument; `crossed`: the value that says which examples met others.
    """

    batch: Mapping[int, int]
    size: int
    statistics: Mapping[str, Derived]
    gradients: tuple[int, ...]
    losses: tuple[int, ...]
    groups: Mapping[str, Groups]
    loss_reduction: LossReduction
    on_mixing: OnMixing
    planning: PlanningChoices
    closed_over: ClosedOver = field(default_factory=dict[int, Any])
    is_real: int | None = None
    real_of: frozenset[int] = frozenset()
    real: tuple[Value, Value] | None = None
    custom_calls: CallAxes = field(default_factory=dict[str, Any])
    pruned: bool = True
    ragged: Ragged | None = None
    crossed: Value | None = None
    outputs: Sequence[str] = ()

    @property
    def examples(self) -> Examples:
        """The batch, as strategies are told of it; of one example its mean is its sum."""
        is_mean = self.loss_reduction == "mean" or self.size == 1
        return Examples(self.size, is_mean, self.real, self.crossed)

    @property
    def private(self) -> list[str]:
        """The statistics that bound one example's effect, by name."""
        return [name for name, s in self.statistics.items() if s.private]

    @property
    def takes_sums(self) -> bool:
        """Whether one takes sums of gradients with weights, or of functions of whole gradients."""
        return any(s.takes_sums for s in self.statistics.values())


def make_request(
    module: Module,
    batch: Batch,
    statistics: Statistics,
    gradients: Sequence[str | int] | None = None,
    loss_reduction: str = "mean",
    on_mixing: str = "refuse",
    planning: PlanningOptions | None = None,
    loss: str | int | None = None,
    is_real: str | int | None = None,
    custom_calls: CallAxes | None = None,
    rows_per_example: int = 1,
    segments: Any = None,
    pruned: bool = True,
) -> Request:
    """Check everything against the module. Raises ValueError or TypeError that say what to pass
    instead.
    """
    check_words(loss_reduction, on_mixing)
    ragged = ragged_ports(module.arguments, segments)
    axes = _batch_axes(module.arguments, batch, ragged)
    size = _batch_size(module.arguments, axes, rows_per_example, is_real)
    flags = None if is_real is None else _flags(module.arguments, is_real, size)
    # A gradient taken from the tensor of the real examples' own would be another where the loss
    # counts padding, or ids name no example.
    choices = PlanningChoices(**planning or {})
    if flags is not None or ragged is not None:
        choices = replace(choices, reuse_gradient=False)
    picked = _gradients(module, axes, gradients)
    wanted = _known(named(statistics), module, picked)
    losses = _losses(module, axes, picked, wanted.values(), loss)
    outputs = [port.name for port in module.outputs]
    numbers = partial(picked_ports, module.outputs, kind="output")
    groups = {name: groups_of(s, picked, outputs, numbers) for name, s in wanted.items()}
    for name, statistic in wanted.items():
        if statistic.refuses_fewer and size < statistic.least:
            raise ValueError(
                f"{name} is defined for at least {statistic.least} examples; the batch has {size}"
            )
    asked: Any = (loss_reduction, on_mixing, choices)
    calls = checked_calls(custom_calls or {})
    return Request(
        axes,
        size,
        wanted,
        picked,
        losses,
        groups,
        *asked,
        is_real=flags,
        real_of=frozenset([] if flags is None else [flags]),
        custom_calls=calls,
        pruned=pruned,
        ragged=ragged,
        outputs=outputs,
    )


def request_by(module: Module, keywords: Mapping[str, Any]) -> Request:
    """The request that `rewrite_module` makes of its keywords."""
    planning: Any = {n: x for n, x in keywords.items() if n in PlanningOptions.__annotations__}
    others = {n: x for n, x in keywords.items() if n not in planning}
    return make_request(module, planning=planning, **others)


def _known(
    statistics: Mapping[str, Statistic], module: Module, gradients: Sequence[int]
) -> dict[str, Derived]:
    """The statistics, those of a gradient's tree as of a dict by the outputs' names."""
    ports = [module.outputs[number] for number in gradients]
    # The leaves of a mere dict are in the order of the names, and not in the outputs'.
    kinds = OrderedDict((port.name, jax.ShapeDtypeStruct(port.shape, port.dtype)) for port in ports)
    known = {name: known_for(s, kinds) for name, s in statistics.items()}
    changed = [n for n, s in statistics.items() if isinstance(s, Derived) and s.of_tree]
    if changed and len(kinds) < len(ports):
        raise ValueError(
            f"{changed[0]} takes the gradients by the names of their outputs, and two have one "
            "name; dump the module with as_text(debug_info=True), which keeps the names"
        )
    return known


def _flags(arguments: Sequence[Port], is_real: str | int, size: int) -> int:
    """The argument that says which examples are real, one flag for each."""
    number = port_number(arguments, is_real, "argument")
    port = arguments[number]
    if port.shape != (size,) or port.dtype.kind not in "biuf":
        raise ValueError(
            f"is_real must hold one flag or 0/1 for each of the {size} examples; it is {port.kind}"
        )
    return number


def _losses(
    module: Module,
    axes: Mapping[int, int],
    gradients: tuple[int, ...],
    statistics: Iterable[Derived],
    named: str | int | None,
) -> tuple[int, ...]:
    """The loss's output number, where a statistic needs it."""
    numbers = [] if named is None else picked_ports(module.outputs, named, "output")
    number = named_loss(module, gradients, numbers) if numbers else None
    if not any(s.losses for s in statistics):
        return ()
    return (loss_output(module, axes, gradients) if number is None else number,)


def labels_of(name: str, statistic: Derived, request: Request) -> list[str]:
    """The names of a statistic's arrays."""
    if statistic.like == "own":
        paths = jax.tree.leaves_with_path(statistic.returns)
        return [f"{name}{keystr(path)}" for path, _ in paths]
    parts = [f".{part}" for part in parts_of(statistic)] or [""]
    return [of + part for of in _labels(name, statistic, request) for part in parts]


def _labels(name: str, statistic: Derived, request: Request) -> list[str]:
    """The names of what it has an array for, or several."""
    if statistic.like == "gradient" or statistic.per == "parameter":
        return [f"{name}/{request.outputs[number]}" for number in request.gradients]
    return [name] if statistic.per == "global" else [f"{name}/{label}" for label in statistic.per]


def check_words(loss_reduction: str, on_mixing: str) -> None:
    """Raises ValueError for words that these are none of."""
    _one_of("loss_reduction", loss_reduction, get_args(LossReduction))
    _one_of("on_mixing", on_mixing, get_args(OnMixing))


def _one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; it is one of {', '.join(map(repr, allowed))}")


def _batch_axes(arguments: Sequence[Port], batch: Batch, ragged: Ragged | None) -> dict[int, int]:
    """Example axis by argument number, from names or positions; a list means axis 0."""
    if isinstance(batch, str | bytes) or not hasattr(batch, "__iter__"):
        raise TypeError(
            f"batch is {batch!r}; pass a dict of argument to example axis, or a list of arguments"
        )
    pairs = batch.items() if isinstance(batch, Mapping) else [(key, 0) for key in batch]
    axes: dict[int, int] = {}
    for key, axis in pairs:
        axis = as_integer(f"the example axis of {key}", axis)
        for number in picked_ports(arguments, key, "argument"):
            axes[number] = _axis(arguments[number], axes.get(number, axis), axis)
    if not axes and not ragged:
        raise ValueError("batch is empty; name at least one argument that carries the examples")
    if twice := [arguments[number].name for number in axes if number in (ragged or {})]:
        raise ValueError(f"argument {twice[0]} has an axis in batch, and ids in segments")
    return axes


def _axis(port: Port, first: int, axis: int) -> int:
    rank = len(port.shape)
    if (first - axis) % max(rank, 1):
        raise ValueError(
            f"argument {port.name} is given twice, with example axes {first} and {axis}"
        )
    if not -rank <= axis < rank:
        raise ValueError(
            f"argument {port.name} has shape {port.shape}: there is no example axis {axis}"
        )
    return axis % rank


def _batch_size(
    arguments: Sequence[Port],
    axes: Mapping[int, int],
    rows_per_example: int,
    is_real: str | int | None,
) -> int:
    sizes = {arguments[number].name: arguments[number].shape[axis] for number, axis in axes.items()}
    if not sizes and is_real is not None:
        # With ids alone.
        sizes = {"is_real": arguments[port_number(arguments, is_real, "argument")].shape[0]}
    if not sizes:
        raise ValueError(
            "segments has ids alone, which do not tell how many examples there are: name an "
            "argument with an axis of the examples, or pass is_real, one flag for each"
        )
    size = example_count(sizes, rows_per_example)
    if size == 0:
        raise ValueError("the batch is empty; a mean over no examples is not defined")
    return size


def _gradients(
    module: Module, axes: Mapping[int, int], picked: Sequence[str | int] | None
) -> tuple[int, ...]:
    """The outputs picked, each once, or those whose names say that they are gradients."""
    if picked is None:
        return gradient_outputs(module, axes)
    if isinstance(picked, str | bytes):
        raise TypeError(f"gradients is {picked!r}; pass a list of outputs, by name or position")
    numbers = [n for key in picked for n in picked_ports(module.outputs, key, "output")]
    if not numbers:
        raise ValueError("gradients is empty; name at least one output")
    for number in numbers:
        port = module.outputs[number]
        if numbers.count(number) > 1:
            raise ValueError(
                f"gradients names output {port.name} more than once; each counts once in norms "
                "and clips"
            )
        if not is_inexact(port):
            raise ValueError(f"output {port.name} has dtype {port.dtype}, which no gradient has")
    return tuple(numbers)
