"""TPU kernels: what their grids and index maps show of the examples, and what they do not.

They are lowered for a TPU that is not here; for numbers the same kernel is interpreted on CPU.
"""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import hlo_surgery as hs
from hlo_surgery.module import load
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.modules import inline_calls

B, L, D = 4, 8, 128
X = jnp.sin(jnp.arange(float(B * L * D))).reshape(B, L, D)
W = jnp.cos(jnp.arange(float(D * D))).reshape(D, D) / 8
BLOCK = (1, L, D)


def in_order(b):
    return b, 0, 0


def called(kernel, *arrays, maps, out=in_order, block=BLOCK, grid=(B,), how=None, **options):
    """A kernel over blocks of its operands, one array out."""
    how = ("parallel",) * len(grid) if how is None else how
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((B, L, D), jnp.float32),
        grid=grid,
        in_specs=[pl.BlockSpec(block, m) if callable(m) else m for m in maps],
        out_specs=pl.BlockSpec(block, out),
        compiler_params=pltpu.CompilerParams(dimension_semantics=how),
        **options,
    )(*arrays)


def copied(x, out):
    out[...] = jnp.tanh(x[...])


def added(x, e, out):
    out[...] = jnp.tanh(x[...] + e[...])


def kept(x, out, before):
    """One iteration takes what the one before was given."""

    @pl.when(pl.program_id(0) == 0)
    def _():
        before[...] = jnp.zeros(BLOCK)

    out[...] = jnp.tanh(x[...] + before[...])
    before[...] = x[...]


def left(x, e, out):
    """The same, in a constant's window, which stays where it is."""
    out[...] = jnp.tanh(x[...] + e[...])
    e[...] = x[...]


def summed(x, out, total):
    """Each takes the sum so far, which is another result."""

    @pl.when(pl.program_id(0) == 0)
    def _():
        total[...] = jnp.zeros(BLOCK)

    total[...] += x[...]
    out[...] = jnp.tanh(total[...])


def in_sum(x):
    return pl.pallas_call(
        summed,
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((B, L, D), BLOCK)],
        grid=(B,),
        in_specs=[pl.BlockSpec(BLOCK, in_order)],
        out_specs=[pl.BlockSpec(BLOCK, in_order), pl.BlockSpec(BLOCK, lambda b: (0, 0, 0))],
    )(x)[0]


def filled(x, out):
    """What it could reach it does not take."""
    out[...] = jnp.ones(out.shape)


def module_of(features):
    """The module with norms of a linear model on features that kernels make of the examples."""

    def loss(w, x):
        return jnp.mean(jnp.sum((features(x) @ w) ** 2, (1, 2)))

    f = hs.grad(loss, statistics=hs.norms(), target="tpu:v5e")
    return f.module(jax.ShapeDtypeStruct(W.shape, W.dtype), jax.ShapeDtypeStruct(X.shape, X.dtype))


E = jnp.ones((B, L, D))
ACCEPTED = {
    "a block an example": lambda x: called(copied, x, maps=[in_order]),
    "the same block of a constant for all": lambda x: called(
        added, x, E, maps=[in_order, lambda b: (0, 0, 0)]
    ),
    "rows of a constant": lambda x: called(added, x, E, maps=[in_order, in_order]),
    "two dimensions of the grid": lambda x: called(
        copied,
        x,
        maps=[lambda b, t: (b, t, 0)],
        out=lambda b, t: (b, t, 0),
        grid=(B, 1),
        how=("parallel", "arbitrary"),
    ),
    "mapped": lambda x: jax.vmap(
        lambda one: pl.pallas_call(
            copied,
            out_shape=jax.ShapeDtypeStruct((L, D), jnp.float32),
            grid=(1,),
            in_specs=[pl.BlockSpec((L, D), lambda t: (t, 0))],
            out_specs=pl.BlockSpec((L, D), lambda t: (t, 0)),
            compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
        )(one)
    )(x),
}
REFUSED = {
    "one after the other": lambda x: called(copied, x, maps=[in_order], how=("arbitrary",)),
    "in reverse": lambda x: called(copied, x, maps=[lambda b: (B - 1 - b, 0, 0)]),
    "written in reverse": lambda x: called(
        copied, x, maps=[in_order], out=lambda b: (B - 1 - b, 0, 0)
    ),
    "the first example for all": lambda x: called(copied, x, maps=[lambda b: (0, 0, 0)]),
    "an example and the first": lambda x: called(added, x, x, maps=[in_order, lambda b: (0, 0, 0)]),
    "one after the other, with what is kept": lambda x: called(
        kept,
        x,
        maps=[in_order],
        how=("arbitrary",),
        scratch_shapes=[pltpu.VMEM(BLOCK, jnp.float32)],
    ),
    "one after the other, with what is left": lambda x: called(
        left, x, E, maps=[in_order, lambda b: (0, 0, 0)], how=("arbitrary",)
    ),
    "one after the other, with their sum": in_sum,
    "two at a time": lambda x: called(copied, x, maps=[in_order], block=(2, L, D), grid=(B // 2,)),
    "two of them, one for most": lambda x: called(
        copied, x, maps=[lambda b: (jax.lax.min(b, 1), 0, 0)]
    ),
    "an example's rows across the grid": lambda x: called(
        copied, x, maps=[lambda b, t: (t, 0, 0)], out=lambda b, t: (b, 0, 0), grid=(B, B)
    ),
    "all of it in reach": lambda x: called(filled, x, maps=[pl.BlockSpec(memory_space=pl.ANY)]),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_a_grid_takes_one_by_one_is_apart(name):
    plan = module_of(ACCEPTED[name]).plan
    assert plan.batch_size == B
    assert plan.outputs[0].strategies


@pytest.mark.parametrize("name", REFUSED)
def test_what_meets_in_a_kernel_is_refused(name):
    with pytest.raises(hs.Refusal, match=r"test_mosaic_kernels\.py:\d+: refused: .*custom_call"):
        module_of(REFUSED[name])


def kernels(module):
    ops = mlir.all_operations(module.code)
    return [op for op in ops if mlir.text_attribute(op, "call_target_name") == "tpu_custom_call"]


def attended(q, k, v):
    return jax.nn.softmax(q @ k.T, axis=-1) @ v


def forward(q, k, v, out):
    out[0] = attended(q[0], k[0], v[0])


def backward(q, k, v, slope, *outs):
    _, pull = jax.vjp(attended, q[0], k[0], v[0])
    for out, found in zip(outs, pull(slope[0]), strict=True):
        out[0] = found


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def attention(interpret, q, k, v):
    return _attention(interpret, forward, 1, q, k, v)[0]


def _attention(interpret, kernel, count, *arrays):
    specs = [pl.BlockSpec(BLOCK, in_order)]
    return pl.pallas_call(
        kernel,
        out_shape=[jax.ShapeDtypeStruct((B, L, D), jnp.float32)] * count,
        grid=(B,),
        in_specs=specs * len(arrays),
        out_specs=specs * count,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        interpret=interpret,
    )(*arrays)


attention.defvjp(
    lambda interpret, *arrays: (attention(interpret, *arrays), arrays),
    lambda interpret, arrays, slope: tuple(_attention(interpret, backward, 3, *arrays, slope)),
)


def attentive(p, x, attend):
    q, k, v = (jnp.tanh(x @ p[name]) for name in "qkv")
    return jnp.mean(jnp.sum(attend(q, k, v) ** 2, (1, 2)))


RESULTS, TYPES = r"(?P<results>%\d+(?::\d)?)", r"(?P<types>\(.*\) -> .*)"


def put_in(text, target, name_of, functions):
    """The module with functions for calls of a target: `name_of` says of a call which it is."""
    call = rf"{RESULTS} = stablehlo\.custom_call @{target}\((?P<operands>[^)]*)\).*? : {TYPES}"

    def called(found):
        named = f"{found['results']} = func.call @{name_of(found)}({found['operands']})"
        return f"{named} : {found['types']}"

    replaced, number = re.subn(call, called, text)
    assert number == len(functions)
    bodies = [private(name, *made) for name, made in functions.items()]
    return "\n".join([replaced[: replaced.rindex("}")], *bodies, "}\n"])


def private(name, function, arrays):
    module = mlir.parse(jax.jit(function, keep_unused=True).lower(*arrays).as_text())
    inline_calls(module)
    body = mlir.main_function(module).operation.get_asm()
    return body.replace("func.func public @main", f"func.func private @{name}")


def on_cpu(text):
    """The module with its calls to kernels interpreted."""
    forwards, backwards = (
        partial(_attention, True, kernel, count) for kernel, count in ((forward, 1), (backward, 3))
    )
    functions = {"forwards": (forwards, [X] * 3), "backwards": (backwards, [X] * 4)}
    name_of = lambda found: "backwards" if ":3" in found["results"] else "forwards"  # noqa: E731
    return put_in(text, "tpu_custom_call", name_of, functions)


@pytest.mark.parametrize("strategy", ["auto", "lift", "loop"])
def test_statistics_are_those_of_plain_attention(strategy):
    statistics = {"n": hs.norms(), "s": hs.second_moment(), "c": hs.clipped_mean(0.1)}
    p = {name: W * scale for name, scale in zip("qkv", (1, 0.5, 0.25), strict=True)}
    f = hs.grad(
        lambda p, x: attentive(p, x, partial(attention, False)),
        statistics=statistics,
        strategy=strategy,
        target="tpu:v5e",
    )
    rewritten = f.module(*jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (p, X)))
    assert len(kernels(rewritten)) == 2
    code = rewritten.code.operation.get_asm()
    got = load(on_cpu(code)).call(*jax.tree.leaves((p, X)))
    plain = hs.grad(
        lambda p, x: attentive(p, x, jax.vmap(attended)), statistics=statistics, strategy=strategy
    )
    for g, w in zip(got, jax.tree.leaves(plain(p, X)), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5 * np.abs(w).max())
