"""The API: gradient functions of torch tensors that return statistics of the examples', too."""

from collections.abc import Callable, Sequence
from typing import Any

from hlo_surgery.rewritten_function import Statistics
from hlo_surgery.torch.torch_gradient import TorchGradient


def grad(
    module: Any,
    loss: Callable[..., Any],
    *,
    batch_argnums: int | Sequence[int] | None = None,
    statistics: Statistics,
    **options: Any,
) -> TorchGradient:
    """The gradient of a module's loss with statistics: `f(*args) == (gradient, stats)`.

    `loss(module, *args)` is the mean over the examples (or their sum, with
    `loss_reduction="sum"`), one real number. The gradient is a dict by the names of
    `module.named_parameters()`, of those that require one; `stats` has for each statistic such a
    dict, or what else it is (for one statistic, not in a dict, that itself). All are torch tensors.
    `batch_argnums` are the positions, among args, of those that hold the examples along their first
    axis: by default all that hold tensors. `options` are those of `hlo_surgery.grad`: `in_axes`,
    `loss_reduction`, `on_mixing`, `rows_per_example`, `strategy`, `memory_budget` and so on; but
    `is_real` and `segments` are not taken.

    What the module is when f is called counts: its parameters, its buffers, `train()` or `eval()`,
    what requires a gradient. Buffers that it changes are changed, and masks are drawn from
    PyTorch's own stream, as when it is called. Arguments that are no tensors are as they are; what
    else the loss reads in Python is read once for arguments of such kinds.

    f raises `Refusal` where an example's own gradient is not defined or not proved, or an operator
    is not known, and names the line.

    >>> import torch
    >>> import hlo_surgery as hs
    >>> import hlo_surgery.torch
    >>> module = torch.nn.Linear(3, 1, bias=False)
    >>> _ = torch.nn.init.ones_(module.weight)
    >>> loss = lambda module, x: (module(x) ** 2).mean()
    >>> f = hs.torch.grad(module, loss, statistics=hs.second_moment())
    >>> gradient, squares = f(torch.ones(4, 3))
    >>> squares["weight"].tolist()
    [[36.0, 36.0, 36.0]]
    """
    return TorchGradient(module, loss, batch_argnums, statistics, options, with_value=False)


def value_and_grad(
    module: Any,
    loss: Callable[..., Any],
    *,
    batch_argnums: int | Sequence[int] | None = None,
    statistics: Statistics,
    **options: Any,
) -> TorchGradient:
    """The loss, too: `f(*args) == ((loss, gradient), stats)`. Everything else is as in `grad`."""
    return TorchGradient(module, loss, batch_argnums, statistics, options, with_value=True)
