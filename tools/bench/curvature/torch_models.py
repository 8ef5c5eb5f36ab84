"""The classifiers of `peer_models` in PyTorch, of the same weights, and arrays back in JAX's axes.

PyTorch's images are [B, C, h, w] and its kernels [out, in, h, w]; what is dense behind images takes
their places before their channels, as in JAX.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch  # pyright: ignore
from backpack.custom_module.permute import Permute  # pyright: ignore
from torch import nn  # pyright: ignore

from tools.bench.curvature.peer_models import Model

Network = Any
Array = np.ndarray[Any, Any]


def network(model: Model) -> Network:
    """A chain of modules."""
    parts = {name: module(model, name) for name in model.layers}
    return {"MLP": of_mlp, "small images": of_small_images, "images": of_images}[model.name](parts)


def module(model: Model, name: str) -> Any:
    """The layer, with its weights."""
    kernel = np.array(model.params[name]["w"])
    shape = kernel.shape
    if len(shape) == 2:
        made: Any = nn.Linear(*shape)
    else:
        # Of stride 2 all is padded behind, by a module of its own, as in JAX.
        stride = 2 if model.name == "images" and name == "second" else 1
        padding = shape[0] // 2 if stride == 1 else 0
        made = nn.Conv2d(shape[2], shape[3], shape[0], stride, padding)
    axes = (1, 0) if len(shape) == 2 else (3, 2, 0, 1)
    made.weight.data = torch.from_numpy(np.ascontiguousarray(kernel.transpose(axes)))
    made.bias.data = torch.from_numpy(np.array(model.params[name]["b"]))
    return made


def of_mlp(parts: dict[str, Any]) -> Network:
    return nn.Sequential(parts["first"], nn.Tanh(), parts["second"], nn.Tanh(), parts["last"])


def of_small_images(parts: dict[str, Any]) -> Network:
    return nn.Sequential(
        *(parts["first"], nn.ReLU(), nn.MaxPool2d(2)),
        *(parts["second"], nn.ReLU(), nn.MaxPool2d(2)),
        *(Permute(0, 2, 3, 1), nn.Flatten()),
        *(parts["third"], nn.ReLU(), parts["last"]),
    )


def of_images(parts: dict[str, Any]) -> Network:
    return nn.Sequential(
        *(parts["first"], nn.ReLU()),
        *(nn.ZeroPad2d((0, 1, 0, 1)), parts["second"], nn.ReLU()),
        *(Permute(0, 2, 3, 1), nn.Flatten(), parts["last"]),
    )


def batch(model: Model) -> tuple[Any, Any]:
    """Inputs and labels."""
    x, y = np.array(model.x), np.array(model.y, np.int64)
    x = x.transpose(0, 3, 1, 2) if x.ndim == 4 else x
    return torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y)


def kernel_of(found: Any) -> Array:
    """What is like a kernel, in the axes of JAX's."""
    value = found.detach().numpy()
    return value.T if value.ndim == 2 else value.transpose(2, 3, 1, 0)


def patches_of(found: Any, kernel: Sequence[int], axes: int = 2) -> Array:
    """Of what goes over a kernel's patches along its first axes, in the order of JAX's."""
    value = found.detach().numpy()
    if len(kernel) == 2:
        return value
    height, width, channels = kernel[:3]
    order = np.arange(value.shape[0]).reshape(channels, height, width).transpose(1, 2, 0).ravel()
    return value[np.ix_(order, order)] if axes == 2 else value[order]
