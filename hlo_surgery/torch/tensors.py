"""Tensors: PyTorch's as JAX arrays and back, by DLPack, without a copy where that is safe."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from hlo_surgery.torch.pytorch import torch


def as_array(tensor: Any) -> Array:
    """The array that a tensor is. Raises ValueError where JAX has no such device or layout."""
    plain = tensor.detach().contiguous().resolve_conj().resolve_neg()
    try:
        return jnp.from_dlpack(plain)
    except Exception as problem:
        raise ValueError(
            f"JAX takes no tensor of {tensor.dtype} on {tensor.device}, {tensor.layout}: move the "
            f"module and its arguments to a device that JAX has ({jax.default_backend()}), or "
            "install JAX for this one"
        ) from problem


def as_tensors(arrays: Iterable[Array], given: Iterable[Any]) -> list[Any]:
    """The tensors that arrays are, each with memory of its own, apart from that of those given."""
    taken = {tensor.data_ptr() for tensor in given}
    tensors: list[Any] = []
    for array in jax.block_until_ready(list(arrays)):
        tensor = torch.from_dlpack(array)
        tensors.append(tensor.clone() if tensor.data_ptr() in taken else tensor)
        taken.add(tensors[-1].data_ptr())
    return tensors


def dtype_of(dtype: Any) -> Any:
    """JAX's dtype of the same name."""
    return jnp.dtype(getattr(jnp, str(dtype).removeprefix("torch.")))
