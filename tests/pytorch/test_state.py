"""What a module holds besides trained parameters, and what changes between two calls."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[torch]'")

from torch import nn

import hlo_surgery as hs
from tests.pytorch.single_examples import assert_equal, mean_square, of_module


def gradient_of(module, x):
    """By PyTorch alone, which changes the module as it runs."""
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    return dict(
        zip(named, torch.autograd.grad(mean_square(module, x), [*named.values()]), strict=True)
    )


def asked(module, loss=mean_square):
    return hs.torch.grad(module, loss, statistics=hs.second_moment())


def test_dropout_draws_what_pytorch_would():
    module, (x,) = of_module(nn.Sequential(nn.Linear(3, 6), nn.Dropout(0.5)), [torch.ones(4, 3)])
    f = asked(module)
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        found.append(f(x)[0])
        after = torch.rand(1)
        torch.manual_seed(seed)
        assert_equal(found[-1], gradient_of(module, x))
        assert torch.rand(1) == after
    assert not torch.equal(found[0]["0.weight"], found[1]["0.weight"])


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x):
        self.count += 1
        made = self.layer(x) * self.scale * self.count
        self.average = 0.5 * self.average + made.detach().mean(0)
        return made


def test_buffers_are_changed():
    module, (x,) = of_module(Counting(), [torch.ones(4, 3)])
    by_torch, f = copy.deepcopy(module), asked(module)
    for _ in range(2):
        gradient, _ = f(x)
        expected = gradient_of(by_torch, x)
    assert_equal(gradient, expected)
    assert_equal(dict(module.named_buffers()), dict(by_torch.named_buffers()))


def test_what_the_module_is_at_a_call_counts():
    dropout = nn.Dropout(0.5)
    module, (x,) = of_module(nn.Sequential(nn.Linear(3, 4), dropout), [torch.randn(5, 3)])
    f = asked(module)

    def change_weights():
        with torch.no_grad():
            module[0].weight.mul_(2)

    changes = [
        lambda: None,
        lambda: setattr(dropout, "p", 0.9),
        module.eval,
        change_weights,
        lambda: module[0].bias.requires_grad_(False),
    ]
    for change in changes:
        change()
        torch.manual_seed(0)
        gradient, squares = f(x)
        torch.manual_seed(0)
        expected = gradient_of(module, x)
        assert_equal(gradient, expected)
        assert list(squares) == list(expected)
