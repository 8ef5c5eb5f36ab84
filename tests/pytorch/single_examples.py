"""References: each example's gradient by PyTorch alone."""

import torch
from torch.func import functional_call, grad, vmap


def mean_square(module, x):
    return (module(x) ** 2).mean()


def of_module(module, arguments, seed=0):
    """The module in float64, and its arguments, of which floats are random."""
    torch.manual_seed(seed)
    return module.double(), [x.double() if x.is_floating_point() else x for x in arguments]


def by_vmap(module, loss, *arguments):
    """The examples' gradients by `torch.func`, by name."""
    buffers = dict(module.named_buffers())

    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module = module

        def forward(self, *one):
            return loss(self.module, *(x[None] for x in one))

    def one(parameters, *example):
        state = {f"module.{k}": v for k, v in {**parameters, **buffers}.items()}
        return functional_call(Loss(), state, example)

    parameters = {k: p.detach() for k, p in module.named_parameters() if p.requires_grad}
    return vmap(grad(one), (None, *[0] * len(arguments)))(parameters, *arguments)


def one_by_one(module, loss, *arguments):
    """The same where `torch.func.vmap` takes no such layer."""
    named = {k: p for k, p in module.named_parameters() if p.requires_grad}
    rows = [
        torch.autograd.grad(loss(module, *(x[b : b + 1] for x in arguments)), [*named.values()])
        for b in range(len(arguments[0]))
    ]
    return {k: torch.stack(each) for k, each in zip(named, zip(*rows, strict=True), strict=True)}


def assert_equal(found, expected):
    assert list(found) == list(expected)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-12, atol=1e-12)
