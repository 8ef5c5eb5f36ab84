"""PyTorch: gradients of a torch.nn.Module's loss, with statistics, of torch tensors.

The module's own backward pass is traced to aten operators, which JAX functions stand for
(`hlo_surgery.torch.aten`); what these make is a gradient function like any other.

torch_gradient    the functions, traced as often as their arguments or their module need it
modules           what a module holds, and what of it a trace rests on
graphs            its gradient as a graph of operators
lines, refused    which line made each; what no graph can hold
draws             random numbers, from PyTorch's own stream
evaluation        a graph as a JAX function
tensors           PyTorch's as JAX's, and back
pytorch           what is used of PyTorch itself
"""

from importlib.util import find_spec

if find_spec("torch") is None:
    raise ModuleNotFoundError(
        "hlo_surgery.torch needs PyTorch, which is not installed: pip install '.[torch]'"
    )

from hlo_surgery.torch.torch_gradient import grad, value_and_grad

__all__ = ["grad", "value_and_grad"]
