"""PyTorch, as the rest of this room sees it: what is used of it beside `torch` itself, by name.

Its types are left out, so that the rest is checked where PyTorch is not installed.
"""

from importlib import import_module
from typing import Any

torch: Any = import_module("torch")
make_fx: Any = import_module("torch.fx.experimental.proxy_tensor").make_fx
get_decompositions: Any = import_module("torch._decomp").get_decompositions
decomposition_table: Any = import_module("torch._decomp").decomposition_table
map_arg: Any = import_module("torch.fx.node").map_arg
noted_in_graphs: Any = import_module("torch.fx.traceback")
sdpa: Any = import_module("torch.nn.attention")
DispatchMode: Any = import_module("torch.utils._python_dispatch").TorchDispatchMode
Interpreter: Any = torch.fx.Interpreter
Module: Any = torch.nn.Module
Node: Any = torch.fx.Node
aten: Any = torch.ops.aten


def backward_number() -> int | None:
    """The number of autograd's node that runs its backward pass, None outside of any."""
    node = torch._C._current_autograd_node()
    return None if node is None else node._sequence_nr()


def next_number() -> int:
    """The number that autograd's next node has."""
    return torch.autograd._get_sequence_nr()
