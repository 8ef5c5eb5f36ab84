"""Programs for each device, by jax.shard_map: results and statistics against plain arrays.

They are lowered for a mesh without devices. What a body computes is held to nested `jax.vmap`s over
named axes, and second moments to one example at a time.
"""

import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import hlo_surgery as hs
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.normalise.normalize import normalize
from hlo_surgery.passes.normalise.out_of_scope import put_back

D, M, ALL, BLOCKS = P("data"), P("model"), P(), P("data", "model")
BOTH = ("data", "model")
NEXT = [(i, (i + 1) % 4) for i in range(4)]


def mesh(**sizes):
    return AbstractMesh(
        tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes)
    )


GRID, ROW = mesh(data=2, model=4), mesh(data=4)


def mapped(body, over, in_specs, out_specs, **options):
    return jax.shard_map(
        body, mesh=over, in_specs=in_specs, out_specs=out_specs, **{"check_vma": False, **options}
    )


def text(function, *arguments):
    lowered = (
        jax.jit(function, keep_unused=True).trace(*arguments).lower(lowering_platforms=("cpu",))
    )
    return lowered.as_text(debug_info=True)


def for_one_device(source):
    code = mlir.clone(hs.modules.load(source).code)
    normalize(code)
    put_back(code)
    assert code.operation.verify()
    return hs.modules.Module(code)


def uniform(shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


X = uniform((8, 16))


def rows(x):
    return jnp.int32(jnp.abs(x[:, 0]) * 7) % x.shape[0]


def pooled(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "SAME")


def convolved(image, kernel):
    return lax.conv_general_dilated(
        image[:, :, None], kernel[:3, None], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    )


def drawn(x):
    key = jax.random.fold_in(jax.random.key(3), lax.axis_index("data"))
    return x + jax.random.normal(key, x.shape)


def counted(x):
    """A loop whose carry differs from device to device only after two rounds."""
    return x + lax.fori_loop(0, 3, lambda _, c: (c[1], x.sum(), c[2] + c[0]), (0.0, 0.0, 0.0))[2]


def scanned(x):
    return lax.scan(lambda c, row: (jnp.tanh(c + row), c * row), x[0], x)[1]


def chosen(x):
    return lax.cond(
        lax.psum(x.sum(), BOTH) > 0, lambda: x * lax.psum(x, "data"), lambda: jnp.ones_like(x)
    )


BODIES = {
    "psum": lambda x: lax.psum(x, "data") * x,
    "pmax": lambda x: lax.pmax(x, "model") * x,
    "all_gather": lambda x: lax.all_gather(x, "model", axis=1, tiled=True)[:, :4] * x,
    "reduce_scatter": lambda x: lax.psum_scatter(x, "model", scatter_dimension=1, tiled=True) * x,
    "all_to_all": lambda x: lax.all_to_all(x, "model", 1, 0, tiled=True) * x[:1, :1],
    "ppermute": lambda x: lax.ppermute(x, "model", NEXT),
    "axis_index": lambda x: x * lax.axis_index("model") + 10 * lax.axis_index("data"),
    "one number between two": lambda x: (
        x * lax.clamp(x.mean(), lax.psum(x.sum(), "model"), x.max())
    ),
    "slice at the axis_index": lambda x: (
        lax.dynamic_slice_in_dim(x, lax.axis_index("model"), 1, 1) * x
    ),
    "sort": lambda x: jnp.sort(x, axis=1) + jnp.argsort(x, axis=0),
    "reductions": lambda x: x.max(1, keepdims=True) + jnp.argmax(x, 0) + jnp.prod(x) + x.any(),
    "pooling": lambda x: jax.grad(lambda y: (pooled(y) ** 2).sum())(x),
    "convolution": lambda x: convolved(x, lax.psum(x, "data")).sum(-1),
    "gather": lambda x: x[rows(x)] + lax.psum(x, "data")[rows(x)] + x[rows(lax.psum(x, BOTH))],
    "scatter": lambda x: x.at[rows(x)].add(lax.psum(x, "data")),
    "pad": lambda x: (
        jnp.pad(x, ((1, 0), (0, 0)))[1:] + jnp.pad(x[1:], ((1, 0), (0, 0)), constant_values=x[0, 0])
    ),
    "random numbers": drawn,
    "loop": counted,
    "scan": scanned,
    "branches": chosen,
    "matmul": lambda x: jnp.tanh(x @ lax.psum(x, "model").T) @ x,
}


@pytest.mark.first(3)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_computes_the_same(body):
    source = text(mapped(body, GRID, BLOCKS, BLOCKS), X)
    assert "sdy.manual_computation" in source
    (got,) = for_one_device(source).call(X)
    blocks = X.reshape(2, 4, 4, 4).transpose(0, 2, 1, 3)  # [data, model, row, column]
    on_each = jax.vmap(jax.vmap(body, axis_name="model"), axis_name="data")
    want = on_each(blocks).transpose(0, 2, 1, 3).reshape(got.shape)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


BATCH = 8
DRAWS = [
    uniform(shape, seed)
    for seed, shape in enumerate([(6, 8), (8,), (8, 4), (BATCH, 6), (BATCH, 4)])
]
PARAMS, INPUTS = dict(zip(("w", "b", "v"), DRAWS, strict=False)), DRAWS[3:]


def hidden(p, x):
    return jnp.tanh(x @ p["w"] + p["b"])


def mlp(p, x, y):
    return jnp.mean((hidden(p, x) @ p["v"] - y) ** 2)


def attention(p, x, y):
    h = jnp.tanh(x[:, :, None] * p["w"])
    h = jax.nn.softmax(jnp.einsum("btd,bsd->bts", h * p["b"], h)) @ h
    h = (h - h.mean(-1, keepdims=True)) * lax.rsqrt(h.var(-1, keepdims=True) + 1e-5)
    return jnp.mean((h.mean(1) @ p["v"] - y) ** 2)


def deep(p, x, y):
    layers = jnp.stack([p["v"] @ p["v"].T] * 3)
    h, _ = lax.scan(jax.checkpoint(lambda h, w: (jnp.tanh(h @ w), None)), hidden(p, x), layers)
    return jnp.mean((h @ p["v"] - y) ** 2)


def averaged(loss, axes="data"):
    """The gradient of each device's own examples, averaged over the devices."""
    return lambda *arguments: lax.pmean(jax.grad(loss)(*arguments), axes)


def data_parallel(loss):
    return mapped(averaged(loss), ROW, (ALL, D, D), ALL)


TENSORS = {"w": P(None, "model"), "b": M, "v": P("model", None)}


def tensor_loss(p, x, y):
    return lax.pmean(jnp.mean((lax.psum(hidden(p, x) @ p["v"], "model") - y) ** 2), "data")


def tensors_gathered(p, x, y):
    h = lax.all_gather(hidden(p, x), "model", axis=1, tiled=True)
    return lax.pmean(jnp.mean((h @ lax.all_gather(p["v"], "model", tiled=True) - y) ** 2), "data")


def around_a_ring(p, x, y):
    """Each device meets the others' part of the hidden values, as in ring attention."""
    h = k = hidden(p, x)
    met = jnp.zeros_like(h)
    for _ in range(4):
        met, k = met + jnp.tanh(h * k), lax.ppermute(k, "model", NEXT)
    return lax.pmean(jnp.mean((lax.psum(met @ p["v"], "model") - y) ** 2), "data")


def ring(p, x, y):
    parts = hidden(p, x).reshape(-1, 4, 2)
    met = sum(jnp.tanh(parts * jnp.roll(parts, i, 1)) for i in range(4)).reshape(-1, 8)
    return jnp.mean((met @ p["v"] - y) ** 2)


DIMS = {"w": 1, "b": 0, "v": 0}
FULLY_SHARDED = {"w": P(None, "data"), "b": D, "v": P("data", None)}


def gathered(p):
    return {k: lax.all_gather(p[k], "data", axis=dim, tiled=True) for k, dim in DIMS.items()}


def scattered(gradient):
    return {
        k: lax.psum_scatter(gradient[k], "data", scatter_dimension=dim, tiled=True)
        / lax.axis_size("data")
        for k, dim in DIMS.items()
    }


def fully_sharded(p, x, y):
    return scattered(jax.grad(mlp)(gathered(p), x, y))


CUBE = mesh(replica=2, data=2, model=2)
REPLICAS = P(("replica", "data"))

GRADIENTS = {
    **{
        f"data parallel {loss.__name__}": (data_parallel(loss), loss)
        for loss in (mlp, attention, deep)
    },
    "tensor parallel": (
        mapped(jax.grad(tensor_loss), GRID, (TENSORS, D, D), TENSORS, check_vma=True),
        mlp,
    ),
    "tensors gathered": (jax.grad(mapped(tensors_gathered, GRID, (TENSORS, D, D), ALL)), mlp),
    "ring": (jax.grad(mapped(around_a_ring, GRID, (TENSORS, D, D), ALL, check_vma=True)), ring),
    "fully sharded": (mapped(fully_sharded, ROW, (FULLY_SHARDED, D, D), FULLY_SHARDED), mlp),
    "batch over two axes": (
        mapped(averaged(mlp, ("replica", "data")), CUBE, (ALL, REPLICAS, REPLICAS), ALL),
        mlp,
    ),
}


def rewritten(gradient):
    source = text(gradient, PARAMS, *INPUTS)
    assert "sdy.manual_computation" in source
    return hs.modules.rewrite_module(source, batch=[3, 4], statistics=hs.second_moment())


@pytest.mark.first(1)
@pytest.mark.parametrize(("gradient", "loss"), GRADIENTS.values(), ids=GRADIENTS)
def test_second_moments(gradient, loss):
    outputs = rewritten(gradient).call(*jax.tree.leaves((PARAMS, *INPUTS)))
    examples = jax.vmap(lambda *one: jax.grad(loss)(PARAMS, *(x[None] for x in one)))(*INPUTS)
    wanted = [
        jax.tree.map(lambda g: g.mean(0), examples),
        jax.tree.map(lambda g: (g**2).mean(0), examples),
    ]
    for got, want in zip(outputs, jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def refused(gradient):
    with pytest.raises(hs.Refusal) as found:
        rewritten(gradient)
    return found.value


def line_of(function, words):
    """`file:line` of the first line of a function that has these words."""
    lines, first = inspect.getsourcelines(function)
    number = next(i for i, line in enumerate(lines) if words in line)
    return f"test_devices.py:{first + number}"


def centred(p, x, y):
    h = x @ p["w"]
    h = h - lax.pmean(h.mean(0), "data")  # over all examples
    return jnp.mean(((h + p["b"]) @ p["v"] - y) ** 2)


def test_examples_that_meet_are_refused_at_the_line_where_they_do():
    refusal = refused(data_parallel(centred))
    assert refusal.where.endswith(line_of(centred, "# over all examples"))
    assert refusal.op == "stablehlo.subtract"


def clipped(p, x, y):
    gradient = jax.grad(mlp)(p, x, y)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient)))
    return lax.pmean(jax.tree.map(lambda g: g / jnp.maximum(norm, 1), gradient), "data")


def test_a_gradient_clipped_on_each_device_is_refused():
    refusal = refused(mapped(clipped, ROW, (ALL, D, D), ALL))
    assert refusal.where.endswith(line_of(clipped, "norm = "))


def test_gradients_on_which_devices_need_not_agree_are_refused():
    def over_one(*arguments):
        return lax.pmean(jax.grad(mlp)(*arguments), "data")

    refusals = [
        refused(mapped(jax.grad(mlp), ROW, (ALL, D, D), ALL)),
        refused(mapped(jax.grad(mlp), mesh(data=8), (ALL, D, D), ALL)),
        refused(mapped(over_one, GRID, (ALL, P(BOTH), P(BOTH)), ALL)),
    ]
    for refusal in refusals:
        assert refusal.op == "sdy.manual_computation"
        assert "test_devices.py:" in refusal.where
        assert refusal.why.startswith("devices return different values for an output")
        assert refusal.help.startswith("add jax.lax.pmean over all the axes")


def until_small(p, x, y):
    x = lax.while_loop(lambda z: (z**2).sum() > 1, lambda z: z / 2, x)  # how often
    return mlp(p, x, y)


def by_sign(p, x, y):
    x = lax.cond(x[0, 0] > 0, lambda: x, lambda: -x)  # which
    return mlp(p, x, y)


def greatest(p, x, y):
    best = jnp.zeros((6, 4)).at[rows(x)].max(y)  # a scatter
    return mlp(p, x, y) + best.sum()


UNKNOWN = {
    "loop": (
        until_small,
        "# how often",
        "stablehlo.while",
        "each device decides on its own how often this loop runs",
    ),
    "branch": (
        by_sign,
        "# which",
        "stablehlo.case",
        "each device decides on its own which branch is taken",
    ),
    "scatter": (
        greatest,
        "# a scatter",
        "stablehlo.scatter",
        "nothing is known of how it works on several devices' values at once",
    ),
}


@pytest.mark.parametrize(("loss", "words", "op", "why"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_cannot_be_done_for_all_devices_is_refused_by_name(loss, words, op, why):
    def gradient(p, x, y):
        return lax.pmean(jax.grad(lambda p: loss(p, lax.stop_gradient(x), y))(p), "data")

    refusal = refused(mapped(gradient, ROW, (ALL, D, D), ALL))
    assert refusal.where.endswith(line_of(loss, words))
    assert refusal.why == f"the program is written for each device on its own ({op}), and {why}"
    assert refusal.help.startswith("leave the partitioning to jit")


def test_groups_that_are_no_axes_are_refused():
    source = text(
        mapped(lambda x: lax.psum(x, "data", axis_index_groups=[[0, 3], [1, 2]]), ROW, D, D), X
    )
    with pytest.raises(
        hs.Refusal, match=r"\(stablehlo.all_reduce\), and its devices are not all those along some"
    ):
        for_one_device(source)


BODIES_OF_REDUCTIONS = {
    "an op more": "%n = stablehlo.add %arg2, %arg3 : tensor<f32>\n%r = stablehlo.negate %n : "
    "tensor<f32>",
    "an op that is not returned": "%n = stablehlo.add %arg2, %arg3 : tensor<f32>",
    "one device's value twice": "%r = stablehlo.add %arg2, %arg2 : tensor<f32>",
    "an op that has an order": "%r = stablehlo.subtract %arg2, %arg3 : tensor<f32>",
}
SUMS = text(mapped(lambda x: lax.psum(x, "data"), ROW, D, ALL), X)


def with_body(body):
    """A sum over the devices, whose body is another."""
    returned = "%r" if "%r" in body else "%arg2"
    lines = (
        rf"\1: tensor<f32>, \2: tensor<f32>):\n{body}\nstablehlo.return {returned} : "
        rf"tensor<f32>\n}})"
    )
    found = re.sub(r"(%arg2): .*, (%arg3): .*\n.*\n *stablehlo.return .*\n *\}\)", lines, SUMS)
    assert found != SUMS
    return found


@pytest.mark.parametrize("body", BODIES_OF_REDUCTIONS.values(), ids=BODIES_OF_REDUCTIONS)
def test_values_that_are_combined_otherwise_are_refused(body):
    with pytest.raises(
        hs.Refusal, match=r"\(stablehlo.all_reduce\).* or it combines them unknown how"
    ):
        for_one_device(with_body(body))


def test_places_along_axes_that_are_not_manual_are_refused():
    """Another computation might add up what the devices hold there."""

    def twice(x):
        own = mapped(lambda x: lax.psum(x.sum(0) * lax.axis_index("model"), "data"), GRID, D, ALL)(
            x
        )
        return mapped(lambda y: lax.psum(y, "model"), GRID, ALL, ALL)(own)

    source = text(twice, X)
    assert for_one_device(source)
    with pytest.raises(
        hs.Refusal, match="depend on the device's place along axes that are not manual"
    ):
        for_one_device(source.replace('manual_axes={"data", "model"}', 'manual_axes={"data"}', 1))
