"""cuDNN's attention: the calls that jax.nn.dot_product_attention lowers to, written by their names.

JAX lowers to them where cuDNN is installed alone. For numbers each is put back as plain attention.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.module import load
from tests.dataflow.test_mosaic_kernels import put_in

B, N, T, H, D = 4, 2, 6, 8, 5
LENGTHS = jnp.array([6, 3, 5, 1], jnp.int32)
X = jnp.sin(jnp.arange(float(B * T * D))).reshape(B, T, D)
P = {
    "bias": jnp.cos(jnp.arange(float(N * T * T))).reshape(1, N, T, T),
    "w": jnp.cos(jnp.arange(float(D * N * H))).reshape(D, N * H),
}
CALLS = {
    (False, False): "__cudnn$fmhaSoftmax",
    (False, True): "__cudnn$fmhaScaleBiasSoftmax",
    (True, False): "__cudnn$fmhaSoftmaxBackward",
    (True, True): "__cudnn$fmhaScaleBiasSoftmaxBackward",
}
PRODUCTS = {
    False: ["bmm1", "bmm2"],
    True: ["bmm1_grad_gemm1", "bmm1_grad_gemm2", "bmm2_grad_gemm1", "bmm2_grad_gemm2"],
}


def configured(is_backward, mask, **other):
    """What JAX 0.10 says of a call: queries, keys and values are [B, N, T, H]."""
    sides = {f"{side}_batch_dimensions": ["0", "1"] for side in ("lhs", "rhs")}
    products = {f"{name}_dot_dimension_numbers": sides for name in PRODUCTS[is_backward]}
    said = {
        "algorithm": {},
        "fmha_scale": 1.0,
        "intermediate_tensor_shape": {},
        "is_flash_attention": True,
        "mask_type": mask,
        "dropout_rate": 0.0,
        "seed": 42,
        "sliding_window_length": 0,
        "max_seg_per_batch": 1,
        "is_paged_attention": False,
    }
    return json.dumps({"cudnn_fmha_backend_config": {**said, **products, **other}})


def call(is_backward, results, *arrays, bias=(), lengths=(), **other):
    """A call as JAX makes it, its last result being work space."""
    mask = "PADDING" if lengths else "NO_MASK"
    structs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in results]
    return jax.ffi.ffi_call(
        CALLS[is_backward, bool(bias)],
        [*structs, jax.ShapeDtypeStruct((0,), jnp.uint8)],
        custom_call_api_version=2,
        legacy_backend_config=configured(is_backward, mask, **other),
    )(*arrays, *lengths)[:-1]


def attention(**other):
    """Attention by cuDNN, of queries, keys, values, and a bias and lengths if there are any."""

    @jax.custom_vjp
    def attend(q, k, v, bias, lengths):
        return forward(q, k, v, bias, lengths)[0]

    def forward(q, k, v, bias, lengths):
        stats = (len(q), N, T)
        known = {"bias": bias, "lengths": lengths, **other}
        out, sums = call(False, [q.shape, stats], q, k, v, *bias, **known)
        return out, (q, k, v, sums, bias, out, lengths)

    def backward(saved, slope):
        q, k, v, sums, bias, out, lengths = saved
        shapes = [a.shape for a in (q, k, v, *bias)]
        arrays = (q, k, v, sums, slope, *bias, out)
        found = call(True, shapes, *arrays, bias=bias, lengths=lengths, **other)
        return *found[:3], tuple(found[3:]), tuple(None for _ in lengths)

    attend.defvjp(forward, backward)
    return attend


def plain(q, k, v, bias, lengths):
    scores = jnp.einsum("bnth,bnsh->bnts", q, k)
    scores = sum((scores, *bias))
    for own in lengths[:1]:
        scores = jnp.where(jnp.arange(T) < own[:, None, None, None], scores, -1e9)
    return jnp.einsum("bnts,bnsh->bnth", jax.nn.softmax(scores, -1), v)


def loss(attend, p, x, lengths=(), bias=lambda p, x: ()):
    q = jnp.tanh(x @ p["w"]).reshape(len(x), T, N, H).swapaxes(1, 2)
    out = attend(q, 0.5 * q, q, bias(p, x), lengths)
    return jnp.mean(jnp.sum(out**2, (1, 2, 3)))


def to_all(p, x):
    """A row of the bias for each example, so that its gradient is summed behind the call."""
    return (jnp.broadcast_to(p["bias"], (len(x), N, T, T)),)


def of_examples(p, x):
    return (jnp.einsum("btd,bsd->bts", x, x)[:, None] * jnp.ones((1, N, 1, 1)),)


def for_all(p, x):
    return (p["bias"],)


PROGRAMS = {
    "no mask": {},
    "lengths": {"lengths": (LENGTHS, LENGTHS)},
    "a bias of the examples": {"bias": of_examples},
    "a bias, repeated for the batch": {"bias": to_all},
    "a bias and lengths": {"bias": to_all, "lengths": (LENGTHS, LENGTHS)},
}


def module_of(program, attend, argnums, **asked):
    f = hs.grad(
        lambda p, x, lengths: loss(attend, p, x, lengths, program.get("bias", lambda p, x: ())),
        batch_argnums=argnums,
        statistics={"squares": hs.second_moment(), "norms": hs.norms(per="parameter")},
        target="tpu:v5e",
        **asked,
    )
    return f.module(P, X, program.get("lengths", ()))


def on_cpu(text, program):
    """The module with plain attention and its derivative in place of the calls."""
    has_lengths, has_bias = bool(program.get("lengths")), "bias" in program

    def forward(q, k, v, *rest):
        bias, lengths = rest[:has_bias], rest[has_bias:]
        return plain(q, k, v, bias, lengths), jnp.zeros((B, N, T)), jnp.zeros(0, jnp.uint8)

    def backward(q, k, v, _, slope, *rest):
        bias, lengths = rest[:has_bias], rest[has_bias + 1 :]
        given = (q, k, v, *bias)
        pull = jax.vjp(lambda q, k, v, *bias: plain(q, k, v, bias, lengths), *given)[1]
        return *pull(slope), jnp.zeros(0, jnp.uint8)

    q, bias, own = jnp.zeros((B, N, T, H)), jnp.zeros((B, N, T, T)), LENGTHS
    extra, lengths = [bias] * has_bias, [own] * 2 * has_lengths
    functions = {
        "forward": (forward, [q, q, q, *extra, *lengths]),
        "backward": (backward, [q, q, q, q[..., 0], q, *extra, q, *lengths]),
    }
    name_of = lambda found: "backward" if "Backward" in found["name"] else "forward"  # noqa: E731
    return put_in(text, r"(?P<name>__cudnn\S+?)", name_of, functions)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_statistics_are_those_of_single_examples(name):
    program = PROGRAMS[name]
    lengths = program.get("lengths", ())
    made = module_of(program, attention(), (1, 2) if lengths else 1)
    assert made.plan.trusted == ()
    arrays = jax.tree.leaves((P, X, lengths))
    got = load(on_cpu(made.code.operation.get_asm(), program)).call(*arrays)

    def one(x, own):
        bias = program.get("bias", lambda p, x: ())
        return jax.grad(
            lambda p: loss(plain, p, x[None], jax.tree.map(lambda a: a[None], own), bias)
        )(P)

    each = jax.vmap(one)(X, lengths)
    flat = jax.tree.leaves(each)
    squares = [(g**2).mean(0) for g in flat]
    norms = [jnp.linalg.norm(g.reshape(B, -1), axis=1) for g in flat]
    by_name = dict(zip([port.name for port in made.outputs], got, strict=True))
    wanted = {"squares": squares, "norms": norms}
    for statistic, leaves in wanted.items():
        for parameter, want in zip(("bias", "w"), leaves, strict=True):
            found = by_name[f"{statistic}/['{parameter}']"]
            np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-6)


def test_the_gradient_of_a_bias_of_one_for_all_is_a_sum_and_refused():
    with pytest.raises(hs.Refusal, match="the examples are reduced to one value") as found:
        module_of({"bias": for_all}, attention(), 1)
    assert found.value.output == "['bias']"
