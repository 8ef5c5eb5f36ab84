"""Dump gradient modules of `tools/models/fixtures/`, with inputs, references and verdicts.

    python -m tools.dumps.make_fixtures [NAME ...]

fixtures/NAME/ then holds
    module.mlir    the gradient function, lowered, with source locations (file names, no folders)
    inputs.npz     arg0, arg1, ...: its arguments (bfloat16 stored as float32), the same every run
    reference.npz  grad0, grad1, ...: its outputs
                   second_moment0, ...: mean over examples of g_b**2, where separable
    meta.json      batch size, loss reduction, verdict, tolerance, arguments with their example
                   axes, gradients
"""

# pyright: reportUnknownMemberType=false
# JAX's own signatures are partly untyped.

import argparse
import inspect
import json
import re
import zlib
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from tools.dumps.references import (
    check_verdict,
    flat_gradient,
    gradient_function,
    per_example_gradients,
    second_difference,
    second_moments,
)
from tools.models.fixtures import MODELS
from tools.models.fixtures.model import EXAMPLES, Model
from tools.models.specs import Input, Weight

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
LARGEST_MODULE = 150_000
TOLERANCES = {
    "float32": (2e-4, "float32 sums in another order, relative to each gradient's largest entry"),
    "bfloat16": (
        5e-2,
        "bfloat16 keeps 8 bits, and XLA may round at other places; relative to the largest entry",
    ),
}


def draw(rng: np.random.Generator, spec: Weight | Input) -> Any:
    if isinstance(spec, Input) and spec.below is not None:
        return rng.integers(0, spec.below, spec.shape).astype(np.int32)
    values = rng.standard_normal(spec.shape)
    if isinstance(spec, Input):
        return np.asarray(values, np.float32)
    fan_in = int(np.prod(spec.shape[:-1])) if len(spec.shape) > 1 else 2
    return np.asarray(values / np.sqrt(fan_in)).astype(jnp.dtype(spec.dtype))


def draw_all(specs: Any, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return jax.tree.map(partial(draw, rng), specs)


def axis_or_minus_one(spec: Input) -> int:
    """The example axis as a leaf of a pytree, which None is not."""
    return -1 if spec.axis is None else spec.axis


def lower(name: str, model: Model, parameters: Any, arguments: tuple[Any, ...]) -> str:
    """The gradient function's module as text, without this machine's folders."""
    # A library function traced before would keep the source lines of its first caller.
    jax.clear_caches()
    lowered = jax.jit(gradient_function(model), keep_unused=True).lower(parameters, *arguments)
    text = re.sub(r'loc\("[^"]*/([^"/]+\.py)":', r'loc("\1":', lowered.as_text(debug_info=True))
    assert len(text) < LARGEST_MODULE, f"{name}: the module has {len(text)} characters"
    return text


def path_names(root: str, tree: Any) -> list[str]:
    leaves = cast(list[tuple[Any, Any]], jax.tree_util.tree_leaves_with_path(tree))
    return [root + jax.tree_util.keystr(path) for path, _ in leaves]


def described_arguments(model: Model) -> list[dict[str, Any]]:
    """Name, shape, dtype and example axis of each flat argument, parameters first."""
    trees = {"params": model.parameters, **model.inputs}
    names = [name for root, tree in trees.items() for name in path_names(root, tree)]
    return [
        {
            "name": name,
            "shape": list(spec.shape),
            "dtype": spec.dtype
            if isinstance(spec, Weight)
            else "float32"
            if spec.below is None
            else "int32",
            "example_axis": spec.axis if isinstance(spec, Input) else None,
        }
        for name, spec in zip(names, jax.tree.leaves(list(trees.values())), strict=True)
    ]


def mixing_lines(model: Model) -> dict[str, Any] | None:
    """Where the examples meet: the function's file, and its first and last line."""
    if model.mixing is None:
        return None
    lines, first = inspect.getsourcelines(model.mixing)
    source = Path(inspect.getfile(model.mixing)).name
    return {
        "function": model.mixing.__name__,
        "file": source,
        "lines": [first, first + len(lines) - 1],
    }


def describe(model: Model) -> dict[str, Any]:
    tolerance, reason = TOLERANCES["bfloat16" if model.low_precision else "float32"]
    return {
        "structure": model.structure,
        "why": model.why,
        "verdict": model.verdict,
        "mixing": mixing_lines(model),
        "batch_size": EXAMPLES,
        "loss_reduction": model.loss_reduction,
        "tolerance": tolerance,
        "tolerance_reason": reason,
        "jax": jax.__version__,
        "arguments": described_arguments(model),
        "gradients": path_names("params", model.parameters),
    }


def as_json(meta: dict[str, Any]) -> str:
    """One line a key, but one line an entry of `arguments` and `gradients`."""

    def value(key: str) -> str:
        if key not in ("arguments", "gradients"):
            return json.dumps(meta[key])
        return "[\n" + ",\n".join(f"  {json.dumps(entry)}" for entry in meta[key]) + "\n ]"

    return "{\n" + ",\n".join(f" {json.dumps(key)}: {value(key)}" for key in meta) + "\n}\n"


def save_arrays(path: Path, **families: list[Any]) -> None:
    """Arrays name0, name1, ... of each family; bfloat16, which npz does not know, as float32."""

    def storable(array: Any) -> Any:
        return array.astype(np.float32) if array.dtype == jnp.bfloat16 else array

    arrays = {
        f"{name}{i}": storable(a) for name, family in families.items() for i, a in enumerate(family)
    }
    np.savez(path, **arrays)


def make(name: str, model: Model) -> str:
    """Write fixtures/NAME; the module's text."""
    seed = zlib.crc32(name.encode())
    parameters = draw_all(model.parameters, seed)
    specs = tuple(model.inputs.values())
    arguments, others = draw_all(specs, seed + 1), draw_all(specs, seed + 2)
    axes = jax.tree.map(axis_or_minus_one, specs)

    gradient = flat_gradient(jax.jit(gradient_function(model)), parameters, *arguments)
    examples = per_example_gradients(model, parameters, arguments, axes)
    difference = second_difference(model, parameters, arguments, others, axes)
    meta = describe(model)
    check_verdict(model, gradient, examples, difference, meta["tolerance"])

    text = lower(name, model, parameters, arguments)
    moments = [] if model.verdict == "not separable" else second_moments(examples)
    folder = FIXTURES / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "module.mlir").write_text(text)
    (folder / "meta.json").write_text(as_json(meta))
    save_arrays(folder / "inputs.npz", arg=jax.tree.leaves((parameters, arguments)))
    save_arrays(folder / "reference.npz", grad=gradient, second_moment=moments)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="fixtures to make; all without")
    names = parser.parse_args().names or list(MODELS)
    unknown = sorted(set(names) - set(MODELS))
    if unknown:
        parser.error(f"no model named {', '.join(unknown)}; there are {', '.join(MODELS)}")
    for name in names:
        text = make(name, MODELS[name])
        print(f"{name:26} {MODELS[name].verdict:22} {len(text) / 1000:6.1f} kB")


if __name__ == "__main__":
    main()
