"""Requests: what is asked of a module, checked and by position."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from hlo_surgery.derived import Derived, Groups, Statistic, named
from hlo_surgery.module import Module, Port
from hlo_surgery.passes.closed_over import ClosedOver
from hlo_surgery.planning_options import PlanningChoices, PlanningOptions

LossReduction = Literal["mean", "sum"]
OnMixing = Literal["refuse", "contribution"]
Batch = Mapping[str, int] | Mapping[int, int] | Mapping[str | int, int] | Sequence[str | int]


@dataclass(frozen=True)
class Request:
    """`batch`: example axis by argument number; `size`: B; `gradients`: output numbers.

    `groups`: for each statistic, which gradients belong together, by position; `losses`: the loss's output number,
    where one is needed. `closed_over`: traced values that the statistics were found to close over.
    """

    batch: Mapping[int, int]
    size: int
    statistics: Mapping[str, Statistic]
    gradients: tuple[int, ...]
    losses: tuple[int, ...]
    groups: Mapping[str, Groups]
    loss_reduction: LossReduction
    on_mixing: OnMixing
    planning: PlanningChoices
    closed_over: ClosedOver = field(default_factory=dict[int, Any])


def make_request(
    module: Module,
    batch: Batch,
    statistics: Statistic | Mapping[str, Statistic],
    gradients: Sequence[str | int] | None,
    loss_reduction: str,
    on_mixing: str,
    planning: PlanningOptions,
) -> Request:
    """Check everything against the module. Raises ValueError or TypeError that say what to pass instead."""
    check_words(loss_reduction, on_mixing)
    choices = PlanningChoices(**planning)
    axes = _batch_axes(module.arguments, batch)
    size = _batch_size(module.arguments, axes)
    picked = _gradients(module, axes, gradients)
    wanted = named(statistics)
    losses = (_loss(module, picked),) if any(isinstance(s, Derived) and s.losses for s in wanted.values()) else ()
    groups = {name: _groups(module, picked, s) for name, s in wanted.items()}
    for name, statistic in wanted.items():
        if isinstance(statistic, Derived) and size < statistic.least:
            raise ValueError(f"{name} is defined for at least {statistic.least} examples; the batch has {size}")
    return Request(axes, size, wanted, picked, losses, groups, loss_reduction, on_mixing, choices)  # type: ignore[arg-type]


def _loss(module: Module, gradients: tuple[int, ...]) -> int:
    scalars = [i for i, p in enumerate(module.outputs) if not p.shape and _is_inexact(p) and i not in gradients]
    if not scalars:
        raise ValueError("per_example_losses needs a module that returns its loss, as that of jax.value_and_grad does")
    return scalars[0]


def _groups(module: Module, gradients: tuple[int, ...], statistic: Statistic) -> Groups:
    """Positions in `gradients` of the outputs that belong together."""
    per = statistic.per if isinstance(statistic, Derived) else "parameter"
    if per == "global":
        return (tuple(range(len(gradients))),)
    if per == "parameter":
        return tuple((i,) for i in range(len(gradients)))
    if not isinstance(per, Mapping):
        raise ValueError(f"per is {per!r}; it is 'global', 'parameter', or a dict from label to outputs")
    numbers = [[_number(module.outputs, key, "output") for key in keys] for keys in per.values()]
    if sorted(n for group in numbers for n in group) != sorted(gradients):
        raise ValueError(f"the groups of {statistic.name} must hold every gradient once")
    return tuple(tuple(gradients.index(n) for n in group) for group in numbers)


def labels_of(name: str, statistic: Statistic, request: Request, outputs: Sequence[str]) -> list[str]:
    """The names of a statistic's arrays."""
    if not isinstance(statistic, Derived) or statistic.like == "gradient" or statistic.per == "parameter":
        return [f"{name}/{outputs[number]}" for number in request.gradients]
    return [name] if statistic.per == "global" else [f"{name}/{label}" for label in statistic.per]


def check_words(loss_reduction: str, on_mixing: str) -> None:
    """Raises ValueError for words that these are none of."""
    _one_of("loss_reduction", loss_reduction, get_args(LossReduction))
    _one_of("on_mixing", on_mixing, get_args(OnMixing))


def _one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; it is one of {', '.join(map(repr, allowed))}")


def _batch_axes(arguments: Sequence[Port], batch: Batch) -> dict[int, int]:
    """Example axis by argument number, from names or positions; a list means axis 0."""
    if isinstance(batch, str | bytes) or not isinstance(batch, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"batch is {batch!r}; pass a dict of argument to example axis, or a list of arguments")
    pairs = batch.items() if isinstance(batch, Mapping) else [(key, 0) for key in batch]
    axes: dict[int, int] = {}
    for key, axis in pairs:
        number = _number(arguments, key, "argument")
        axes[number] = _axis(arguments[number], axes.get(number, axis), axis)
    if not axes:
        raise ValueError("batch is empty; name at least one argument that carries the examples")
    return axes


def _number(ports: Sequence[Port], key: str | int, kind: str) -> int:
    names = [port.name for port in ports]
    if isinstance(key, str):
        if names.count(key) != 1:
            how = "no" if key not in names else "more than one"
            raise ValueError(f"{how} {kind} is named {key!r}; there are {', '.join(names)}")
        return names.index(key)
    number = operator.index(key)
    if not -len(ports) <= number < len(ports):
        raise ValueError(f"there is no {kind} {number}; the module has {len(ports)}")
    return number % len(ports)


def _axis(port: Port, first: int, axis: int) -> int:
    rank = len(port.shape)
    if (first - axis) % max(rank, 1):
        raise ValueError(f"argument {port.name} is given twice, with example axes {first} and {axis}")
    if not -rank <= operator.index(axis) < rank:
        raise ValueError(f"argument {port.name} has shape {port.shape}: there is no example axis {axis}")
    return axis % rank


def _batch_size(arguments: Sequence[Port], axes: Mapping[int, int]) -> int:
    sizes = {arguments[number].name: arguments[number].shape[axis] for number, axis in axes.items()}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        raise ValueError(f"the batch arguments have different numbers of examples along their axes ({listed})")
    size = next(iter(sizes.values()))
    if size == 0:
        raise ValueError("the batch is empty; a mean over no examples is not defined")
    return size


def _gradients(module: Module, axes: Mapping[int, int], picked: Sequence[str | int] | None) -> tuple[int, ...]:
    """The outputs picked, or all floating-point ones but the loss and other scalars that are like no parameter."""
    if picked is not None:
        numbers = tuple(_number(module.outputs, key, "output") for key in picked)
    else:
        parameters = [p for i, p in enumerate(module.arguments) if i not in axes]
        scalars = any(_is_inexact(p) and not p.shape for p in parameters)
        numbers = tuple(
            i for i, p in enumerate(module.outputs) if _is_inexact(p) and (p.shape or scalars or module.returns_zero(i))
        )
    if not numbers:
        listed = ", ".join(f"{p.name}: {p.dtype}{list(p.shape)}" for p in module.outputs) or "none"
        raise ValueError(f"the module has no gradient: no output is a floating-point array (outputs: {listed})")
    for port in (module.outputs[i] for i in numbers):
        if not _is_inexact(port):
            raise ValueError(f"output {port.name} has dtype {port.dtype}, which no gradient has")
    return numbers


def _is_inexact(port: Port) -> bool:
    return port.dtype.kind in "fcV" or np.issubdtype(port.dtype, np.inexact)
