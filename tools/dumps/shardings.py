"""Gradient modules for several devices: sharded jit arguments, and shard_map with collectives."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tools.dumps.forms import Arguments, File, artifact, gradient, text
from tools.models.dumped import DumpModel

ROWS = PartitionSpec("data")


def mesh(*names: str) -> Mesh:
    """Two devices along each axis."""
    devices = np.array(jax.devices()[: 2 ** len(names)])
    return Mesh(devices.reshape([2] * len(names)), names)


def sharded_gradient(model: DumpModel) -> Any:
    """Data and model parallel: sharded arguments, and a constraint within."""
    here = mesh("data", "model")

    def loss(p: Any, x: Any, y: Any) -> Any:
        x = jax.lax.with_sharding_constraint(x, NamedSharding(here, PartitionSpec("data", None)))
        return model.loss(p, x, y)

    rows = NamedSharding(here, ROWS)
    columns = [
        NamedSharding(here, PartitionSpec(*spec))
        for spec in ((None, "model"), ("model",), ("model", None))
    ]
    return jax.jit(
        jax.grad(loss), in_shardings=(columns, rows, rows), out_shardings=columns, keep_unused=True
    )


def mapped(function: Any) -> Any:
    """`function` of parameters and each device's own examples; its result is alike on all."""
    options: dict[str, Any] = {"mesh": mesh("data"), "in_specs": (PartitionSpec(), ROWS, ROWS)}
    if hasattr(jax, "shard_map"):
        return jax.shard_map(function, out_specs=PartitionSpec(), **options)
    from jax.experimental.shard_map import shard_map

    return shard_map(function, out_specs=PartitionSpec(), **options)


def gradient_of_mapped_loss(model: DumpModel) -> Any:
    """The loss of each device's examples, averaged over the devices, and then differentiated."""

    def loss(*arguments: Any) -> Any:
        return jax.lax.pmean(model.loss(*arguments), "data")

    return jax.jit(jax.grad(mapped(loss)), keep_unused=True)


def as_own(parameters: Any) -> Any:
    """Each device's own copy: newer versions of jax sum the gradient of what they share."""
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(parameters, ("data",), to="varying")
    return jax.lax.pvary(parameters, ("data",)) if hasattr(jax.lax, "pvary") else parameters  # pyright: ignore[reportAttributeAccessIssue]


def mapped_gradient(model: DumpModel) -> Any:
    """The gradient of each device's examples, averaged over the devices."""

    def averaged(p: Any, *inputs: Any) -> Any:
        return jax.lax.pmean(gradient(model)(as_own(p), *inputs), "data")

    return jax.jit(mapped(averaged), keep_unused=True)


def as_sharded_text(model: DumpModel, arguments: Arguments) -> File:
    return text(sharded_gradient(model).lower(*arguments))


def as_sharded_export(model: DumpModel, arguments: Arguments) -> File:
    return artifact(sharded_gradient(model), arguments)


def as_text_of_mapped_loss(model: DumpModel, arguments: Arguments) -> File:
    return text(gradient_of_mapped_loss(model).lower(*arguments))


def as_text_of_mapped_gradient(model: DumpModel, arguments: Arguments) -> File:
    return text(mapped_gradient(model).lower(*arguments))


def as_export_of_mapped_gradient(model: DumpModel, arguments: Arguments) -> File:
    return artifact(mapped_gradient(model), arguments)
