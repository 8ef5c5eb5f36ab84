"""A dumped module in a build pipeline: rewritten, verified, held to a budget, shipped.

    pip install . && python build_pipeline.py

Training code dumps its gradient once. A build step that has neither that code nor its Python
dependencies rewrites the dump, verifies the statistics on numbers, compares what it costs with what
is allowed, and writes an artifact that any JAX runs, without hlo-surgery. The commands
`hlo-surgery rewrite`, `verify` and `cost` do the same from a shell.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, export

import hlo_surgery as hs

# Of what the plain gradient takes at its peak.
MEMORY_ALLOWED = 2.0


def dump(file: Path, batch: int) -> None:
    """What the training code does: lower the gradient, and write it with its source lines."""

    def loss(params: Any, x: Array, y: Array) -> Array:
        hidden = jnp.tanh(x @ params["w1"] + params["b1"])
        return jnp.mean((hidden @ params["w2"] - y) ** 2)

    shapes = {"w1": (32, 64), "b1": (64,), "w2": (64, 8)}
    params = {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in shapes.items()}
    x, y = (jax.ShapeDtypeStruct((batch, size), "float32") for size in (32, 8))
    text = jax.jit(jax.grad(loss)).lower(params, x, y).as_text(debug_info=True)
    file.write_text(text)


def build(dumped: Path, artifact: Path) -> float:
    """The build step. Returns the peak of memory, of that of the plain gradient.

    Raises `hs.Refusal` where the statistics are not defined, naming the line of the training code,
    and SystemExit where they are not verified or take too much.
    """
    original = hs.modules.load(dumped)
    asked: Any = {"batch": ["x", "y"], "statistics": {"norms": hs.norms()}}
    rewritten = hs.modules.rewrite_module(original, **asked)
    verdict = hs.verify(original, **asked)
    if verdict.verdict != "equivalent":
        raise SystemExit(f"not verified: {verdict.verdict}")
    costs = [hs.targets.cost(module, "cpu").peak_bytes for module in (rewritten, original)]
    ratio = costs[0] / costs[1]
    if ratio > MEMORY_ALLOWED:
        raise SystemExit(f"the peak is {ratio:.2f} of the gradient's; {MEMORY_ALLOWED} is allowed")
    rewritten.save(artifact)
    return ratio


def run(artifact: Path, batch: int) -> list[Array]:
    """What a consumer does: JAX alone, flat arguments in, the gradients and then the norms out."""
    exported: Any = export.deserialize(bytearray(artifact.read_bytes()))
    keys = jax.random.split(jax.random.key(0), len(exported.in_avals))
    arrays = [jax.random.normal(k, a.shape) for k, a in zip(keys, exported.in_avals, strict=True)]
    return list(exported.call(*arrays))


def main() -> None:
    """Dump, build, run."""
    parser = argparse.ArgumentParser(description="A dumped module in a build pipeline.")
    parser.add_argument("--batch", type=int, default=32)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        dumped, artifact = Path(folder) / "gradient.mlir", Path(folder) / "norms.jax_export"
        dump(dumped, given.batch)
        ratio = build(dumped, artifact)
        size = artifact.stat().st_size
        *gradients, norms = run(artifact, given.batch)
    print(f"verified; peak {ratio:.2f} of the plain gradient's; artifact of {size} bytes")
    print(f"{len(gradients)} gradients and norms of shape {norms.shape}")


if __name__ == "__main__":
    main()
