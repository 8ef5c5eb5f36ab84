"""Layers of PyTorch: statistics equal to those of `torch.func.vmap(grad)`, in float64."""

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[torch]'")

from torch import nn

import hlo_surgery as hs
from tests.pytorch.single_examples import (
    assert_equal,
    by_vmap,
    mean_square,
    of_module,
    one_by_one,
)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 5), nn.Linear(5, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(torch.tanh(self.embedding(ids)))


class Attention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.layer = kind(3, 4, batch_first=True, **options)

    def forward(self, x):
        return self.layer(x)[0]


def floats(*shape):
    return torch.randn(*shape)


def encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def images():
    pooled = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.AvgPool2d(2, 1, 1), nn.Flatten())
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), *pooled)


def enlarging():
    transposed = nn.ConvTranspose2d(2, 4, 3, (2, 1), 1, (1, 0), groups=2)
    return nn.Sequential(transposed, nn.GELU(), nn.Upsample(scale_factor=2), nn.Conv2d(4, 1, 3))


def normed():
    weights = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))
    return nn.Sequential(weights, nn.SiLU(), nn.LayerNorm(4), nn.Linear(4, 2), nn.RMSNorm(2))


LAYERS = {
    "tied embeddings": (Tied, lambda: torch.randint(0, 7, (4, 6))),
    "weight norm": (normed, lambda: floats(4, 3)),
}
SLOW = {
    "attention": (Attention, lambda: floats(4, 5, 8)),
    "attention with more keys": (
        lambda: Attention(add_bias_kv=True, add_zero_attn=True),
        lambda: floats(3, 4, 8),
    ),
    "transformer encoder": (encoder, lambda: floats(3, 4, 8)),
    "convolution, group norm, pooling": (images, lambda: floats(4, 2, 5, 4)),
    "transposed convolution": (enlarging, lambda: floats(3, 2, 4, 3)),
    "instance norm": (
        lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.InstanceNorm1d(4, affine=True), nn.ELU()),
        lambda: floats(4, 2, 8),
    ),
    "batch norm with running averages": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval(),
        lambda: floats(5, 3),
    ),
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
@pytest.mark.parametrize("name", SLOW)
def test_more_layers(name):
    make, x = SLOW[name]
    check(make, x(), by_vmap)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers(name):
    """Which `torch.func.vmap` does not take."""
    check(RECURRENT[name], floats(3, 4, 3), one_by_one)


class Cubed(torch.autograd.Function):
    """A backward pass that is none of the forward pass."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * 7 * ctx.saved_tensors[0]


def test_a_function_keeps_its_own_backward_pass():
    def loss(module, x):
        return Cubed.apply(module(x)).mean()

    module, (x,) = of_module(nn.Linear(3, 4), [floats(5, 3)])
    _, found = hs.torch.grad(module, loss, statistics=hs.per_example())(x)
    assert_equal(found, one_by_one(module, loss, x))
    assert found["bias"].abs().max() > 0.1
