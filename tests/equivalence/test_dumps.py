"""Modules as jax 0.4.30 to 0.10 and TensorFlow write them, held to references, or refused."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import hlo_surgery as hs

DUMPS = Path(__file__).resolve().parent.parent.parent / "fixtures" / "dumps"
METAS = {
    path.parent.name: json.loads(path.read_text()) for path in sorted(DUMPS.glob("*/meta.json"))
}
SEPARABLE = [name for name, meta in METAS.items() if meta["verdict"] == "separable"]
# Bytecode of these versions encodes functions in a way that later ones took for other things.
UNREADABLE = [name for name in SEPARABLE if re.fullmatch(r"\w+_bytecode_jax_0\.4\.\d+", name)]
# Sums of a few dozen float32 numbers in another order, relative to each output's largest entry.
TOLERANCE = 2e-6

EFFECT_HELP = (
    "  help:    hs.grad and hs.rewrite keep callbacks whose results nothing uses, such as "
    "jax.debug.print; take others (jax.pure_callback, io_callback), and in a dumped module all, "
    "out of the function; what the host computes from the examples alone can be an argument"
)
DEVICES_HELP = (
    "  help:    leave the partitioning to jit (in_shardings, with_sharding_constraint) instead of "
    "shard_map or pmap; "
    "or call hs.grad inside the mapped function, and average over the devices what it returns"
)
SHAPES_HELP = "lower or export the function at fixed shapes"


def file_of(name):
    (file,) = (DUMPS / name).glob("module.*")
    return file


def rewritten(source, axes):
    return hs.modules.rewrite_module(
        source, batch=axes, statistics={"second_moment": hs.second_moment()}
    )


def axes_of(name):
    arguments = enumerate(METAS[name]["arguments"])
    return {i: a["example_axis"] for i, a in arguments if a["example_axis"] is not None}


def inputs(name):
    stored = np.load(DUMPS / name / "inputs.npz")
    return [stored[f"arg{i}"] for i in range(len(stored))]


def assert_references(name, outputs):
    stored = np.load(DUMPS / name / "reference.npz")
    count = len(stored) // 2
    labels = [f"{kind}{i}" for kind in ("grad", "second_moment") for i in range(count)]
    for label, got in zip(labels, outputs, strict=True):
        scale = np.abs(stored[label]).max()
        np.testing.assert_allclose(
            got, stored[label], rtol=0, atol=TOLERANCE * scale, err_msg=label
        )


# The versions between the first and the last of those that wrote each.
BETWEEN = re.compile(r"_jax_0\.(4\.38|7\.2)$")


@pytest.mark.first(4)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if BETWEEN.search(name) else ())
        for name in SEPARABLE
        if name not in UNREADABLE
    ],
)
def test_a_dump_of_any_age_is_rewritten(name):
    module = rewritten(file_of(name), axes_of(name))
    assert_references(name, module.call(*inputs(name)))


@pytest.mark.parametrize(
    "name", ["by_platform_cpu_tpu_jax_0.4.30", "by_platform_cpu_cuda_jax_0.10.2"]
)
def test_the_platform_index_is_an_argument_by_name(name):
    module = rewritten(file_of(name), {"x": 0, "y": 0})
    assert [port.name for port in module.arguments] == [
        "_platform_index",
        "p[0]",
        "p[1]",
        "p[2]",
        "x",
        "y",
    ]
    _, *others = inputs(name)
    with pytest.raises(AssertionError):  # the other platform's branch computes something else
        assert_references(name, module.call(np.int32(1), *others))


@pytest.mark.parametrize("name", UNREADABLE)
def test_bytecode_of_another_mlir_says_what_to_dump_instead(name):
    said = (
        r"this is no StableHLO module: this jaxlib cannot read the bytecode by MLIR\d+\.0\.0git, "
        r"which differs between "
        "versions of MLIR, or the file is damaged or cut short; "
        "dump text, a portable artifact or a jax.export artifact"
    )
    with pytest.raises(ValueError, match=f"^{said}$"):
        hs.modules.load(file_of(name))


def by_verdict(verdict):
    return [name for name, meta in METAS.items() if meta["verdict"] == verdict]


WHERE_HOST_IS_CALLED = {
    "printing": r"dump_models\.py:(\d+)",
    "printing_in_order": r"dump_models\.py:(\d+)",
    "calling_back": r"module:(\d+)",
}


@pytest.mark.parametrize("name", by_verdict("side effect"))
def test_a_call_to_the_host_is_refused(name):
    with pytest.raises(hs.Refusal) as refused:
        rewritten(file_of(name), axes_of(name))
    target = r"xla(_ffi)?_python_cpu_callback"
    where = WHERE_HOST_IS_CALLED[METAS[name]["model"]]
    said = (
        rf"{where}: refused: stablehlo\.custom_call: the program calls its host back \(by "
        rf"{target}\)\n"
    )
    matched = re.fullmatch(said + re.escape(EFFECT_HELP), str(refused.value))
    assert matched
    if where.startswith("module"):
        assert "callback" in file_of(name).read_text().splitlines()[int(matched[1]) - 1]


@pytest.mark.parametrize("name", by_verdict("written for each device"))
def test_a_program_for_each_device_in_gspmd_form_is_refused(name):
    with pytest.raises(hs.Refusal) as refused:
        rewritten(file_of(name), axes_of(name))
    assert re.sub(r"^dump_(shardings|forms)\.py:\d+", "LINE", str(refused.value)) == (
        "LINE: refused: stablehlo.custom_call: the program is written for each device on its own "
        f"(SPMDFullToShardShape), and examples lie on several\n{DEVICES_HELP}"
    )


@pytest.mark.parametrize("name", by_verdict("no static shape"))
def test_a_symbolic_batch_is_no_batch(name):
    said = re.escape(f"; only tensors of static shape are supported: {SHAPES_HELP}")
    with pytest.raises(ValueError, match=rf"^argument \S+ has type tensor<\?x3xf32>{said}$"):
        hs.modules.load(file_of(name))


def test_a_shape_that_the_data_decides_is_refused():
    text = """
    func.func @main(%w: tensor<3xf32>, %x: tensor<4x3xf32>, %n: tensor<1xi32>) -> tensor<3xf32> {
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %many = stablehlo.dynamic_broadcast_in_dim %zero, %n, dims = []
        : (tensor<f32>, tensor<1xi32>) -> tensor<?xf32>
      %sum = stablehlo.reduce(%many init: %zero) applies stablehlo.add across dimensions = [0]
        : (tensor<?xf32>, tensor<f32>) -> tensor<f32>
      %all = stablehlo.broadcast_in_dim %sum, dims = [] : (tensor<f32>) -> tensor<3xf32>
      %own = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0]
        : (tensor<4x3xf32>, tensor<f32>) -> tensor<3xf32>
      %g = stablehlo.add %own, %all : tensor<3xf32>
      return %g : tensor<3xf32>
    }"""
    with pytest.raises(hs.Refusal) as refused:
        rewritten(text, [1])
    assert str(refused.value) == (
        f"module:4: refused: stablehlo.dynamic_broadcast_in_dim: the shape of what this op returns "
        f"is known at run time only\n  help:    {SHAPES_HELP}"
    )


OUTFEED = """
func.func @main(%w: tensor<3xf32>, %x: tensor<4x3xf32>) -> tensor<3xf32> {
  %token = stablehlo.create_token : !stablehlo.token
  %done = "stablehlo.outfeed"(%x, %token) : (tensor<4x3xf32>, !stablehlo.token) -> !stablehlo.token
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %g = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0]
    : (tensor<4x3xf32>, tensor<f32>) -> tensor<3xf32>
  return %g : tensor<3xf32>
}"""


def test_an_outfeed_is_refused():
    with pytest.raises(hs.Refusal) as refused:
        rewritten(OUTFEED, [1])
    assert str(refused.value) == (
        "module:4: refused: stablehlo.outfeed: data is moved between the program and its host\n"
        + EFFECT_HELP
    )


def test_an_unknown_side_effect_is_refused():
    effect = "stablehlo.custom_call @launch(%x) {has_side_effect = true} : (tensor<4x3xf32>) -> ()"
    with pytest.raises(hs.Refusal) as refused:
        rewritten(re.sub(r"%token.*\n.*\n", f"{effect}\n", OUTFEED), [1])
    assert (
        str(refused.value)
        == "module:3: refused: stablehlo.custom_call: launch has a side effect\n" + EFFECT_HELP
    )
