"""The loss among the outputs: the one real number that examples reach, or what the user names."""

import json
from collections.abc import Collection, Sequence

import jax.numpy as jnp

from hlo_surgery.module import Module, Port
from hlo_surgery.planning.plan import listing
from hlo_surgery.requests.gradient_outputs import port_text


def loss_output(module: Module, batch: Collection[int], gradients: Collection[int]) -> int:
    """The output that is the loss, where there is one that can be. `batch`: the arguments with
    examples.

    Raises ValueError where there is none, or more than one.
    """
    reached = [i for i, sources in enumerate(module.sources()) if not sources.isdisjoint(batch)]
    others = {*gradients, *module.statistics}
    found = [i for i in reached if i not in others and is_number(module.outputs[i])]
    if not found:
        raise ValueError(
            "per_example_losses needs a module that returns its loss, as that of "
            "jax.value_and_grad does"
        )
    if len(found) > 1:
        listed = listing([f"{i} {port_text(module.outputs[i])}" for i in found])
        raise ValueError(
            f"which output is the loss is not clear: {listed}; name it in loss=... (--loss), "
            f"such as loss={json.dumps(module.outputs[_likely(module, found)].name)}"
        )
    return found[0]


def _likely(module: Module, numbers: Sequence[int]) -> int:
    """That whose name says it, else the first."""
    return next((i for i in numbers if "loss" in module.outputs[i].name.lower()), numbers[0])


def named_loss(module: Module, gradients: Collection[int], numbers: Sequence[int]) -> int:
    """The output that the user says is the loss, the only one of a tree. Raises ValueError where it
    cannot be.
    """
    if len(numbers) > 1:
        listed = listing([port_text(module.outputs[i]) for i in numbers])
        raise ValueError(f"the loss is one real number; this is a tree of {listed}: name one")
    (number,) = numbers
    port = module.outputs[number]
    if number in gradients:
        raise ValueError(f"output {port.name} is named both as the loss and as a gradient")
    if not is_number(port):
        raise ValueError(f"the loss is one real number; output {port_text(port)} is none")
    return number


def is_number(port: Port) -> bool:
    """Whether an output is a single real number."""
    return not port.shape and bool(jnp.issubdtype(port.dtype, jnp.floating))
