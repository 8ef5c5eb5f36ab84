"""Exact statistics of per-example gradients, by rewriting a minibatch gradient's StableHLO."""

from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

# In a checkout the compiler lies beside the product: Python finds it there, too, when it is run at
# the top of one and so takes this folder for what is installed.
if not (Path(__file__).parent / "passes").exists():
    __path__.append(str(Path(__file__).parents[1]))

from hlo_surgery.required_jax import require_jax

# Before the imports that need a JAX that is new enough.
require_jax()

from hlo_surgery.api import explain, grad, rewrite, value_and_grad
from hlo_surgery.constant import constant
from hlo_surgery.declaring import per_example_call
from hlo_surgery.module import Module, load
from hlo_surgery.optimize import fold_squared_sums, optimize
from hlo_surgery.passes.ir.errors import Refusal
from hlo_surgery.rewriting.pipeline import rewrite_module
from hlo_surgery.statistics.crossings import crossed
from hlo_surgery.statistics.elementwise import (
    linear_combination,
    mean_abs,
    mean_clipped,
    mean_of,
    mean_power,
    mean_sign,
    per_example,
    per_example_losses,
    per_token_second_moment,
    polynomial,
    second_moment,
    snr,
    variance,
)
from hlo_surgery.statistics.histograms import histogram
from hlo_surgery.statistics.norms import (
    clipped_mean,
    gram,
    inner_products,
    noise_scale,
    norms,
    token_norms,
    weighted_mean,
)
from hlo_surgery.statistics.projections import projected
from hlo_surgery.targets.costs import cost, cost_of
from hlo_surgery.targets.target import compile_for, find_target, without_tpu
from hlo_surgery.training import train_step

__all__ = [
    "Module",
    "Refusal",
    "clipped_mean",
    "compile_for",
    "constant",
    "cost",
    "cost_of",
    "crossed",
    "explain",
    "find_target",
    "fold_squared_sums",
    "grad",
    "gram",
    "histogram",
    "inner_products",
    "linear_combination",
    "load",
    "mean_abs",
    "mean_clipped",
    "mean_of",
    "mean_power",
    "mean_sign",
    "noise_scale",
    "norms",
    "optimize",
    "per_example",
    "per_example_call",
    "per_example_losses",
    "per_token_second_moment",
    "polynomial",
    "projected",
    "rewrite",
    "rewrite_module",
    "second_moment",
    "snr",
    "token_norms",
    "train_step",
    "value_and_grad",
    "variance",
    "weighted_mean",
    "without_tpu",
]


def __getattr__(name: str) -> Any:
    """`hlo_surgery.torch`, which is imported when it is asked for, as it needs PyTorch."""
    if name == "torch":
        return import_module("hlo_surgery.torch")
    raise AttributeError(f"module 'hlo_surgery' has no attribute {name!r}")
