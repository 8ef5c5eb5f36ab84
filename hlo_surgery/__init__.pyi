"""What the package gives, as type checkers read it, and as `__init__.py` does, which imports each
name when it is asked for.
"""

from hlo_surgery import attribution as attribution
from hlo_surgery import curvature as curvature
from hlo_surgery import estimators as estimators
from hlo_surgery import modules as modules
from hlo_surgery import optimizers as optimizers
from hlo_surgery import targets as targets
from hlo_surgery import torch as torch
from hlo_surgery.api import explain, grad, rewrite, value_and_grad
from hlo_surgery.passes.ir.errors import Refusal
from hlo_surgery.requests.declaring import constant, per_example_call
from hlo_surgery.rewriting.diagnostics import BatchConstantWarning
from hlo_surgery.rewriting.pipeline import rewrite_module
from hlo_surgery.statistics.directions import sum_of, top_directions
from hlo_surgery.statistics.elementwise import (
    crossed,
    linear_combination,
    mean_abs,
    mean_of,
    mean_of_clipped_entries,
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
from hlo_surgery.training import train_step
from hlo_surgery.verification.verify import verify

__version__: str

__all__ = [
    "BatchConstantWarning",
    "Refusal",
    "clipped_mean",
    "clipped_second_moment",
    "clipped_sum",
    "constant",
    "crossed",
    "explain",
    "grad",
    "gram",
    "histogram",
    "inner_products",
    "kronecker_factors",
    "linear_combination",
    "mean_abs",
    "mean_of",
    "mean_of_clipped_entries",
    "mean_power",
    "mean_sign",
    "noise_scale",
    "norms",
    "per_example",
    "per_example_call",
    "per_example_losses",
    "per_token_second_moment",
    "polynomial",
    "projected",
    "rewrite",
    "rewrite_module",
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
]
