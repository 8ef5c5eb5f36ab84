"""What is refused, at the user's own line, and what is wrong use."""

import linecache

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[torch]'")

from torch import nn

import hlo_surgery as hs
from tests.pytorch.single_examples import mean_square

X = torch.randn(5, 3)


def asked(module, loss):
    return hs.torch.grad(module, loss, statistics=hs.norms())


def branches(module, x):
    made = module(x)
    if made.sum() > 0:  # here
        return made.mean()
    return (2 * made).mean()


def picks(module, x):
    return module(x)[x[:, 0] > 0].mean()  # here


def is_centred(module, x):
    made = module(x)
    return ((made - made.mean(0)) ** 3).mean()  # here


def changes_its_argument(module, x):
    return module(x.mul_(2)).mean()  # here


def is_unknown(module, x):
    return torch.special.i0(module(x)).mean()  # here


def changes_a_weight(module, x):
    module.weight.data.clamp_(-1, 1)  # here
    return module(x).mean()


def has_a_mixing_backward(module, x):
    return Mixing.apply(module(x)).mean()


class Mixing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent * (x - x.mean(0))  # here


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "loss",
    [
        branches,
        picks,
        is_centred,
        changes_its_argument,
        is_unknown,
        changes_a_weight,
        has_a_mixing_backward,
    ],
)
def test_a_refusal_names_the_line(loss):
    with pytest.raises(hs.Refusal) as refusal:
        asked(nn.Linear(3, 4), loss)(X.clone())
    path, line = refusal.value.where.rsplit(":", 1)
    assert path == __file__
    assert "# here" in linecache.getline(path, int(line))


@pytest.mark.parametrize("first", [False, True])
def test_batch_norm_in_training(first):
    parts = [nn.BatchNorm1d(3), nn.Linear(3, 3)]
    module = nn.Sequential(*(parts if first else parts[::-1]))
    with pytest.raises(hs.Refusal, match="BatchNorm in training") as refusal:
        asked(module, mean_square)(X)
    assert "torch/nn/modules/batchnorm.py" in refusal.value.library


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(3, 4), 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x) * self.calls


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(3, 4), torch.zeros(4)

    def forward(self, x):
        self.last = self.last / 2 + self.layer(x).detach()[0]
        return self.layer(x) + self.last


@pytest.mark.parametrize(("kind", "name"), [(Counting, "calls"), (Remembering, "last")])
def test_state_that_is_no_buffer(kind, name):
    module = kind()
    before = getattr(module, name)
    with pytest.raises(ValueError, match=f"changes {name} .*register_buffer"):
        asked(module, mean_square)(X)
    assert getattr(module, name) is before


def with_a_hook():
    module = nn.Linear(3, 4)
    module.weight.register_hook(lambda gradient: 2 * gradient)
    return module


@pytest.mark.parametrize(
    ("module", "loss", "says"),
    [
        (with_a_hook, mean_square, "hook on its gradient"),
        (lambda: nn.Linear(3, 4).requires_grad_(False), mean_square, "requires a gradient"),
        (lambda: nn.Linear(3, 4), lambda m, x: m(x), r"float32\[5, 4\].* take its mean"),
        (lambda: nn.Linear(3, 4), lambda m, x: m(x).mean().detach(), "rests on no parameter"),
    ],
)
def test_wrong_use(module, loss, says):
    with pytest.raises(ValueError, match=says):
        asked(module(), loss)(X)


def test_wrong_arguments():
    f = asked(nn.Linear(3, 4), lambda module, x, y: (module(x) - y).mean())
    with pytest.raises(ValueError, match="5 in argument 0; 4 in argument 1"):
        f(X, torch.ones(4))
    with pytest.raises(TypeError, match="pass arrays as torch tensors"):
        f(X.numpy(), X)
    with pytest.raises(TypeError, match=r"it is a torch\.nn\.Module"):
        asked(mean_square, nn.Linear(3, 4))
    with pytest.raises(TypeError, match="is_real is not taken"):
        hs.torch.grad(nn.Linear(3, 4), mean_square, statistics=hs.norms(), is_real=1)


@pytest.mark.parametrize("arguments", [(nn.Linear(3, 4), X), (X,)], ids=["a module", "a tensor"])
def test_functions_of_jax_say_where_torch_is_taken(arguments):
    f = hs.grad(lambda *given: given[0], statistics=hs.norms())
    with pytest.raises(TypeError, match=r"is of PyTorch.* hlo_surgery\.torch\.grad"):
        f(*arguments)
