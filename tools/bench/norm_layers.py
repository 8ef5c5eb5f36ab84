"""The noise scale of a language model's norm layers alone, beside that of all its parameters.

python -m tools.bench.norm_layers [--rounds 9]

Decoder LM of 4 layers of 256, 8 texts of 256 positions. FLOPs are counted in the compiled programs,
temporaries are what XLA plans, seconds are of CPU, medians of interleaved rounds; all as ratios to
the plain gradient.
"""

import argparse
import time
from typing import Any

import jax

import hlo_surgery as hs
from tools.bench.side_by_side import compile_all, median_seconds
from tools.models.families import lm


def norm_layers(gradient: Any) -> list[Any]:
    """Scales and biases of the norm layers, of a pytree like the parameters."""
    leaves = jax.tree.leaves_with_path(gradient)
    return [leaf for path, leaf in leaves if "norm" in jax.tree_util.keystr(path)]


def flops_and_bytes(compiled: Any) -> tuple[float, int]:
    """As often as loops run; of temporaries."""
    flops = hs.targets.cost_of(compiled).flops
    assert flops
    return flops, compiled.memory_analysis().temp_size_in_bytes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    problem = lm.problem(8, 256, 4, 256)
    args, plain = problem.make(), jax.grad(problem.loss)
    asked: Any = {"batch_argnums": problem.batch_argnums, "statistics": hs.noise_scale()}
    functions = {
        "plain": plain,
        "norm layers": hs.rewrite(plain, gradients=norm_layers, **asked),
        "all": hs.rewrite(plain, **asked),
    }
    compiled = compile_all(functions, args)
    seconds = median_seconds(compiled, args, parser.parse_args().rounds, time.process_time)
    plain_flops, plain_memory = flops_and_bytes(compiled["plain"])
    for name, own in compiled.items():
        flops, memory = flops_and_bytes(own)
        print(
            f"{name:12} {flops / 1e9:6.2f} GFLOP {flops / plain_flops:.3f} x"
            f"{memory / 1e6:8.1f} MB {memory / plain_memory:.2f} x"
            f"{seconds[name] * 1e3:7.0f} ms {seconds[name] / seconds['plain']:.2f} x"
        )


if __name__ == "__main__":
    main()
