"""Layers of PyTorch: statistics equal to those of `torch.func.vmap(grad)`, in float64.

This folder alone tests modules of PyTorch.
"""

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[torch]'")

from torch import nn

import hlo_surgery as hs
from tests.pytorch.single_examples import assert_equal, by_vmap, mean_square, of_module, one_by_one


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 5), nn.Linear(5, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(torch.tanh(self.embedding(ids)))


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.layer = kind(3, 4, batch_first=True, **options)

    def forward(self, x):
        return self.layer(x)[0]


def floats(*shape):
    return torch.randn(*shape)


def normed():
    weights = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))
    return nn.Sequential(weights, nn.SiLU(), nn.LayerNorm(4), nn.Linear(4, 2), nn.RMSNorm(2))


LAYERS = {
    "tied embeddings": (Tied, lambda: torch.randint(0, 7, (4, 6))),
    "weight norm": (normed, lambda: floats(4, 3)),
}
RECURRENT = {
    "gru": lambda: Recurrent(nn.GRU, bidirectional=True),
    "lstm": lambda: Recurrent(nn.LSTM),
    "rnn": lambda: Recurrent(nn.RNN, num_layers=2),
}


def check(make, x, reference):
    module, (x,) = of_module(make(), [x])
    f = hs.torch.value_and_grad(
        module, mean_square, statistics={"all": hs.per_example(), "norms": hs.norms()}
    )
    (loss, gradient), found = f(x)
    expected = reference(module, mean_square, x)
    assert_equal(found["all"], expected)
    assert_equal(gradient, {name: rows.mean(0) for name, rows in expected.items()})
    squares = sum((rows**2).flatten(1).sum(1) for rows in expected.values())
    torch.testing.assert_close(found["norms"], squares**0.5, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(loss, mean_square(module, x).detach())


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    make, x = LAYERS[name]
    check(make, x(), by_vmap)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers(name):
    """Which `torch.func.vmap` does not take."""
    check(RECURRENT[name], floats(3, 4, 3), one_by_one)
