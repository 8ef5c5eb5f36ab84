"""PyTorch: gradients of a torch.nn.Module's loss, with statistics, of torch tensors.

The module's own backward pass is traced to aten operators, which JAX functions stand for
(`hlo_surgery.torch.aten`); what these make is a gradient function like any other.
"""

try:
    import torch as _torch  # noqa: F401  # pyright: ignore[reportMissingImports, reportUnusedImport]
except ModuleNotFoundError as problem:
    raise ModuleNotFoundError(
        "hlo_surgery.torch needs torch, which is not installed: pip install 'hlo-surgery[torch]'"
    ) from problem

from hlo_surgery.torch.api import grad, value_and_grad

__all__ = ["grad", "value_and_grad"]
