"""PyTorch: gradients of a torch.nn.Module's loss, with statistics, of torch tensors.

The module's own backward pass is traced to aten operators, which JAX functions stand for
(`hlo_surgery.torch.aten`); what these make is a gradient function like any other.
"""

from importlib.util import find_spec

if find_spec("torch") is None:
    raise ModuleNotFoundError(
        "hlo_surgery.torch needs PyTorch, which is not installed: pip install '.[torch]'"
    )

from hlo_surgery.torch.torch_gradient import grad, value_and_grad

__all__ = ["grad", "value_and_grad"]
