"""Make the dumps by TensorFlow in fixtures/dumps: run in an environment that has TensorFlow.

    python tools/dumps/make_tensorflow_dumps.py

JAX and this package are not needed for it. Run so, no path of the machine gets into the source
lines. The references are one tape for each example.
"""

# pyright: reportMissingImports=false, reportMissingModuleSource=false
# pyright: reportUntypedFunctionDecorator=false
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

DUMPS = Path(__file__).resolve().parents[2] / "fixtures" / "dumps"
SIZE = 4
STAGES = {"text": ("stablehlo", "mlir"), "portable": ("stablehlo_serialized", "mlirbc")}


def mlp_loss(w: Any, b: Any, v: Any, x: Any, y: Any) -> Any:
    return tf.reduce_mean(tf.reduce_sum((tf.tanh(x @ w + b) @ v - y) ** 2, -1))


def convolution_loss(kernel: Any, dense: Any, x: Any, labels: Any) -> Any:
    hidden = tf.nn.relu(tf.nn.conv1d(x, kernel, 1, "SAME"))
    logits = tf.reduce_max(hidden, 1) @ dense
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def drawn(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


LABELS = np.asarray([2, 0, 1, 4], np.int32)
# By model: the loss, its parameters, and its batch.
MODELS: dict[str, tuple[Callable[..., Any], list[Any], list[Any]]] = {
    "mlp": (mlp_loss, [drawn(3, 6), drawn(6), drawn(6, 2)], [drawn(SIZE, 3), drawn(SIZE, 2)]),
    "convolution": (
        convolution_loss,
        [drawn(3, 4, 6), drawn(6, 5)],
        [drawn(SIZE, 7, 4), LABELS],
    ),
}


def gradient_of(loss: Callable[..., Any], count: int) -> Any:
    """The gradient function of the first `count` arguments, of which XLA compiles one program."""

    @tf.function(jit_compile=True)
    def gradient(*arguments: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(arguments[:count])
            value = loss(*arguments)
        return tape.gradient(value, arguments[:count])

    return gradient


def references(gradient: Any, parameters: Sequence[Any], batch: Sequence[Any]) -> dict[str, Any]:
    each = [gradient(*parameters, *(a[b : b + 1] for a in batch)) for b in range(SIZE)]
    stacked = [np.stack(one) for one in zip(*each, strict=True)]
    squares = {f"second_moment{i}": np.mean(g**2, 0) for i, g in enumerate(stacked)}
    return {f"grad{i}": np.mean(g, 0) for i, g in enumerate(stacked)} | squares


def write(model: str, form: str) -> None:
    loss, parameters, batch = MODELS[model]
    arguments = [tf.constant(a) for a in (*parameters, *batch)]
    gradient = gradient_of(loss, len(parameters))
    stage, suffix = STAGES[form]
    found = gradient.experimental_get_compiler_ir(*arguments)(stage=stage)
    folder = DUMPS / f"{model}_{form}_tensorflow_{tf.__version__}"
    folder.mkdir(exist_ok=True)
    data = found if isinstance(found, bytes) else found.encode()
    (folder / f"module.{suffix}").write_bytes(data)
    stored: dict[str, Any] = {f"arg{i}": np.asarray(a) for i, a in enumerate(arguments)}
    np.savez(folder / "inputs.npz", **stored)
    np.savez(folder / "reference.npz", **references(gradient, arguments[: len(parameters)], batch))
    (folder / "meta.json").write_text(json.dumps(meta(model, form), indent=1) + "\n")


def meta(model: str, form: str) -> dict[str, Any]:
    _, parameters, batch = MODELS[model]
    axes = [None] * len(parameters) + [0] * len(batch)
    arguments = [
        {"shape": list(a.shape), "dtype": str(a.dtype), "example_axis": axis}
        for a, axis in zip([*parameters, *batch], axes, strict=True)
    ]
    return {
        "maker": "tensorflow",
        "tensorflow": tf.__version__,
        "model": model,
        "special": f"experimental_get_compiler_ir(stage={STAGES[form][0]!r})",
        "verdict": "separable",
        "batch_size": SIZE,
        "arguments": arguments,
    }


if __name__ == "__main__":
    for model in MODELS:
        for form in STAGES:
            write(model, form)
