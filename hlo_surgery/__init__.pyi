"""What the package gives, as type checkers read it; `__init__.py` imports each when asked."""

from hlo_surgery.api import (
    explain,
    fold_squared_sums,
    grad,
    optimize,
    rewrite,
    value_and_grad,
)
from hlo_surgery.curvature import eigenbases, gauss_newton_score, sampled_labels
from hlo_surgery.declaring import constant, per_example_call
from hlo_surgery.module import Module, load
from hlo_surgery.passes.ir.errors import Refusal
from hlo_surgery.passes.measures.kronecker import Eigenbases, KroneckerFactors
from hlo_surgery.rewriting.diagnostics import BatchConstantWarning
from hlo_surgery.rewriting.pipeline import rewrite_module
from hlo_surgery.statistics.directions import sum_of, top_directions
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
)
from hlo_surgery.statistics.kronecker import kronecker_factors, projected, second_moment_in
from hlo_surgery.statistics.norms import gram, inner_products, noise_scale, norms, token_norms
from hlo_surgery.statistics.spreads import histogram, snr, variance
from hlo_surgery.statistics.weighted import (
    clipped_mean,
    clipped_second_moment,
    clipped_sum,
    weighted_mean,
    weighted_second_moment,
)
from hlo_surgery.targets.costs import cost, cost_of
from hlo_surgery.targets.target import compile_for, find_target, without_tpu
from hlo_surgery.training import train_step
from hlo_surgery.verification.verify import verify

__version__: str

__all__ = [
    "BatchConstantWarning",
    "Eigenbases",
    "KroneckerFactors",
    "Module",
    "Refusal",
    "clipped_mean",
    "clipped_second_moment",
    "clipped_sum",
    "compile_for",
    "constant",
    "cost",
    "cost_of",
    "eigenbases",
    "explain",
    "find_target",
    "fold_squared_sums",
    "gauss_newton_score",
    "grad",
    "gram",
    "histogram",
    "inner_products",
    "kronecker_factors",
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
    "sampled_labels",
    "second_moment",
    "second_moment_in",
    "snr",
    "sum_of",
    "token_norms",
    "top_directions",
    "train_step",
    "value_and_grad",
    "variance",
    "verify",
    "weighted_mean",
    "weighted_second_moment",
    "without_tpu",
]
