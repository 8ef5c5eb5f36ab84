"""Operators of aten in float64: loss and gradients JAX makes of a graph, against PyTorch's."""

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[torch]'")

import jax
from torch import nn
from torch.nn import functional as F

from hlo_surgery.torch.draws import drawn
from hlo_surgery.torch.evaluation import evaluated
from hlo_surgery.torch.graphs import gradient_graph
from hlo_surgery.torch.modules import held_by
from hlo_surgery.torch.tensors import as_array, as_tensors

pytestmark = pytest.mark.slow

B = 3
HALF = torch.tensor([[0, 0, 1, 2, 3, 1]] * B)
FROM_THE_END = torch.tensor([[5, 4, 3, 2, 1, 0]] * B)
ENDS = torch.tensor([1, -1])
LABELS = torch.tensor([0, -100, 4])


def set_in_place(h):
    made = h.clone()
    made[:, :2] = 2 * h[:, 2:4]
    made[:, 3].add_(1)
    return made.mul_(h)


def attended(x):
    return F.scaled_dot_product_attention(x, x, x, is_causal=True)


# Of h, [B, 6].
FUNCTIONS = {
    "sines": lambda h: torch.sin(h) * torch.cos(h) + torch.atan2(h, h + 3) + torch.sinh(h),
    "exponentials": lambda h: torch.log1p(h * h) + torch.expm1(h) + 2.0**h + torch.erf(h),
    "powers": lambda h: (h.abs() + 0.1) ** h + h**3 + h.abs() ** 0.5 + torch.rsqrt(h * h + 1),
    "products": lambda h: torch.lerp(h, h * 2, 0.3) + torch.addcmul(h, h, h) + torch.square(h),
    "division": lambda h: torch.fmod(h, 0.3) + torch.remainder(h, 0.3) + h / (h * h + 1),
    "rounding": lambda h: h * (h.round() + h.floor() + torch.div(h, 0.3, rounding_mode="floor")),
    "activations": lambda h: F.mish(h) + F.hardswish(h) + F.selu(h) + F.celu(h) + F.softplus(h),
    "more activations": lambda h: F.gelu(h, approximate="tanh") + F.relu6(h) + F.logsigmoid(h),
    "shrinking": lambda h: F.tanhshrink(h) + F.hardtanh(h),
    "glu": F.glu,
    "softmax": lambda h: torch.softmax(h, -1) + torch.log_softmax(h, -1) + h.logsumexp(-1, True),
    "largest": lambda h: torch.cat([h.amax(-1, True), h.max(-1, True)[0], h.min(-1, True)[0]], -1),
    "deviations": lambda h: h.std(-1, keepdim=True) + h.var(-1, unbiased=False, keepdim=True),
    "norms": lambda h: h.norm(dim=-1) + h.norm(p=1, dim=-1) + h.norm(p=3, dim=-1),
    "cumulated": lambda h: h.cumsum(-1) + h.cumprod(-1) + h.prod(-1, keepdim=True),
    "sorted": lambda h: torch.cat([h.topk(2, -1).values, h.sort(-1, descending=True).values], 1),
    "looked up": lambda h: torch.cat([h[:, [2, 0]], h[:, ENDS], h.gather(1, HALF)], 1),
    "selected": lambda h: torch.cat([h.index_select(1, HALF[0]), h[:, 1::2], h.narrow(1, 1, 2)], 1),
    "moved": lambda h: torch.cat([h.roll(1, 1), h.flip(1), h.repeat(1, 2)], 1),
    "windows": lambda h: h.unfold(1, 3, 2),
    "scattered": lambda h: (h * h).scatter_add(1, HALF, h) + h.scatter(1, FROM_THE_END, h),
    "put": lambda h: h.index_add(1, HALF[0, :2], h[:, :2]) + h.index_fill(1, HALF[0, :1], 3.0),
    "masked": lambda h: h.masked_fill(h > 0, 1.0) + torch.where(h > 0, h, h * 2) + h.clamp(-1, 1),
    "triangles": lambda h: torch.tril(h[:, None] * h[:, :, None]) + torch.diag_embed(h),
    "diagonals": lambda h: torch.diagonal(h[:, None] * h[:, :, None], dim1=1, dim2=2),
    "in place": set_in_place,
    "einsum": lambda h: torch.einsum("bij,bkj->bik", h.reshape(B, 2, 3), h.reshape(B, 2, 3)),
    "distances": lambda h: F.cosine_similarity(h[:, :3], h[:, 3:]) + F.normalize(h).sum(1),
    "attention": lambda h: attended(h.reshape(B, 1, 3, 2)),
    "losses": lambda h: F.smooth_l1_loss(h, h * h, reduction="none") + F.huber_loss(h, -h),
    "entropies": lambda h: F.binary_cross_entropy_with_logits(h, torch.full_like(h, 0.3)),
    "cross entropy": lambda h: F.cross_entropy(h, LABELS, label_smoothing=0.1),
    "divergence": lambda h: F.kl_div(torch.log_softmax(h, -1), torch.full_like(h, 1 / 6)),
    "special": lambda h: torch.lgamma(h * h + 1) + torch.erfinv(torch.tanh(h)),
    "guarded": lambda h: torch.nan_to_num(h) + torch.logaddexp(h, -h) + torch.isnan(h),
    "chunks": lambda h: torch.cat([*h.chunk(2, 1)[::-1], *h.split(4, 1)], 1),
    "drawn": F.gumbel_softmax,
    "dropout": lambda h: F.dropout(h, 0.5) + torch.rand_like(h),
    "dropped channels": lambda h: F.dropout2d(h[..., None, None]),
}  # fmt: skip

# Of an image [B, 2, 5, 7], to which a layer before gives a gradient.
LAYERS = {
    "strided": nn.Conv2d(2, 4, 3, (2, 1), (1, 0), (1, 2), 2),
    "same": nn.Conv2d(2, 3, (3, 2), padding="same", bias=False),
    "reflected": nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"),
    "circular": nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"),
    "transposed": nn.ConvTranspose2d(2, 4, 3, (2, 3), (1, 2), (1, 0), 2, dilation=(1, 2)),
    "largest": nn.MaxPool2d(3, 2, 1, ceil_mode=True),
    "largest, dilated": nn.MaxPool2d((2, 3), (1, 2), dilation=(2, 1)),
    "mean": nn.AvgPool2d(3, 2, 1, ceil_mode=True),
    "mean without padding": nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
    "mean by a number": nn.AvgPool2d(2, divisor_override=3),
    "adaptive": nn.AdaptiveAvgPool2d((3, 2)),
    "nearest": nn.Upsample(scale_factor=1.7),
    "bilinear": nn.Upsample((7, 9), mode="bilinear"),
    "bilinear, aligned": nn.Upsample((7, 9), mode="bilinear", align_corners=True),
    "unfolded": nn.Unfold(2, stride=2),
    "local response": nn.LocalResponseNorm(2),
    "group norm": nn.GroupNorm(1, 2),
}


def check(module, x):
    module, x = module.double(), x.double()
    held = held_by(module)

    def loss(module, x):
        return (module(x) ** 2).mean()

    graph = gradient_graph(module, loss, held, [x], lambda loss, module, xs: loss(module, *xs))
    torch.manual_seed(0)
    given = [*held.trained.values(), *held.buffers.values(), x, *graph.constants]
    draws = drawn(graph.nodes)
    with jax.enable_x64(True):
        arrays = jax.tree.map(as_array, (given, draws))
        found = as_tensors(jax.jit(evaluated(graph.nodes))(*arrays), given)
    torch.manual_seed(0)
    value = loss(module, x)
    expected = [value.detach(), *torch.autograd.grad(value, [*held.trained.values()])]
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


class Applied(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.first, self.function = nn.Linear(6, 6), (function,)

    def forward(self, x):
        return self.function[0](self.first(x))


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    torch.manual_seed(1)
    check(Applied(FUNCTIONS[name]), torch.randn(B, 6))


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_images(name):
    torch.manual_seed(1)
    check(nn.Sequential(nn.Conv2d(2, 2, 1), LAYERS[name]), torch.randn(B, 2, 5, 7))
