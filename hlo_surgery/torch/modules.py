"""Modules: what a torch.nn.Module holds, and what of it a traced gradient rests on."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

from hlo_surgery.torch.pytorch import Module, torch


class Held(NamedTuple):
    """A module's tensors by name, a tied one under its first: parameters that require a gradient,
    those that are frozen, and buffers.
    """

    trained: dict[str, Any]
    frozen: dict[str, Any]
    buffers: dict[str, Any]


def held_by(module: Any) -> Held:
    """What the module holds now. Raises TypeError for what is no module, ValueError where no
    parameter requires a gradient, or a gradient hook would change what is seen.
    """
    if not isinstance(module, Module):
        raise TypeError(f"module is {module!r}; it is a torch.nn.Module")
    if "_orig_mod" in module._modules:
        raise ValueError(
            "torch.compile made the module, which hides it: pass the one it was made of"
        )
    parameters = dict(module.named_parameters())
    trained = {name: p for name, p in parameters.items() if p.requires_grad}
    frozen = {name: p for name, p in parameters.items() if not p.requires_grad}
    if not trained:
        raise ValueError("no parameter of the module requires a gradient; requires_grad_() it")
    for name, parameter in trained.items():
        if parameter._backward_hooks:
            raise ValueError(
                f"{name} has a hook on its gradient, which no statistic would see: remove it, and "
                "apply what it does to the gradient that is returned"
            )
    return Held(trained, frozen, dict(module.named_buffers()))


def mode_of(module: Any) -> Any:
    """What a gradient rests on beside tensors: what its parts are and hold, such as `training` and
    `p`, which names are tied, and how PyTorch computes.
    """
    parts = tuple((name, type(part), _plain(vars(part))) for name, part in module.named_modules())
    named = [*module.named_parameters(remove_duplicate=False)]
    first: dict[int, str] = {}
    tied = tuple((name, first.setdefault(id(p), name), p.requires_grad) for name, p in named)
    cast = torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")
    kinds = torch.get_autocast_dtype("cpu"), torch.get_autocast_dtype("cuda")
    return parts, tied, cast, kinds, torch.get_default_dtype()


def _plain(value: Any) -> Any:
    """What can be compared of a value; of tensors, which may change, nothing."""
    if isinstance(value, torch.Tensor):
        return None
    if isinstance(value, dict):
        return tuple((key, _plain(held)) for key, held in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    by_value = isinstance(value, int | float | complex | str | bytes | torch.dtype)
    return (type(value), value) if by_value else id(value)


def places_of(module: Any, tensors: list[Any]) -> list[tuple[Any, str, Any]]:
    """The parts of the module that hold one of these by name, and which."""
    numbers = {id(tensor) for tensor in tensors}
    return [
        (part, name, value)
        for part in module.modules()
        for name, value in vars(part).items()
        if id(value) in numbers
    ]


@contextmanager
def unchanged(module: Any, read: list[Any]) -> Generator[None]:
    """Restores what the module's parts hold by name, such as what a layer leaves for its caller.

    Raises ValueError where that is state: no tensor, or one that is among those `read`, which is
    filled by the time that this ends.
    """
    before = [(name, part, dict(vars(part))) for name, part in module.named_modules()]
    try:
        yield
        for name, part, held in before:
            # PyTorch's own layers keep no state but in buffers.
            if not type(part).__module__.startswith("torch."):
                _check_state(name, part, held, read)
    finally:
        for _, part, held in before:
            vars(part).clear()
            vars(part).update(held)


def _check_state(name: str, part: Any, held: dict[str, Any], read: list[Any]) -> None:
    for key in dict.fromkeys([*held, *vars(part)]):
        old, new = held.get(key), vars(part).get(key)
        if old is new or (old is None and isinstance(new, torch.Tensor)):
            continue
        derived = isinstance(new, torch.Tensor) and not any(old is x for x in read)
        if not derived:
            where = f"{name}.{key}" if name else key
            raise ValueError(
                f"the module changes {where} as it runs, which would be seen once and then never "
                f"again: register it as a buffer, self.register_buffer({key!r}, torch.tensor(...))"
            )
