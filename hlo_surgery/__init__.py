"""Exact statistics of per-example gradients, by rewriting a minibatch gradient's StableHLO."""

from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

# In a checkout the compiler lies beside the product: Python finds it there, too, when it is run at
# the top of one and so takes this folder for what is installed.
if not (Path(__file__).parent / "passes").exists():
    __path__.append(str(Path(__file__).parents[1]))

from hlo_surgery.required_jax import require_jax

# Before anything imports a JAX that is too old.
require_jax()

# What this package gives, by the module that has it. Each is imported when it is first asked for: a
# command's help needs no JAX.
_NAMES = {
    "api": (
        "explain",
        "fold_squared_sums",
        "grad",
        "optimize",
        "rewrite",
        "value_and_grad",
    ),
    "curvature": (
        "eigenbases",
        "gauss_newton_score",
        "sampled_labels",
    ),
    "declaring": (
        "constant",
        "per_example_call",
    ),
    "module": (
        "Module",
        "load",
    ),
    "passes.ir.errors": ("Refusal",),
    "passes.measures.kronecker": (
        "Eigenbases",
        "KroneckerFactors",
    ),
    "rewriting.diagnostics": ("BatchConstantWarning",),
    "rewriting.pipeline": ("rewrite_module",),
    "statistics.directions": (
        "sum_of",
        "top_directions",
    ),
    "statistics.elementwise": (
        "linear_combination",
        "mean_abs",
        "mean_clipped",
        "mean_of",
        "mean_power",
        "mean_sign",
        "per_example",
        "per_example_losses",
        "per_token_second_moment",
        "polynomial",
        "second_moment",
    ),
    "statistics.kronecker": (
        "kronecker_factors",
        "projected",
        "second_moment_in",
    ),
    "statistics.norms": (
        "gram",
        "inner_products",
        "noise_scale",
        "norms",
        "token_norms",
    ),
    "statistics.spreads": (
        "histogram",
        "snr",
        "variance",
    ),
    "statistics.weighted": (
        "clipped_mean",
        "clipped_second_moment",
        "clipped_sum",
        "weighted_mean",
        "weighted_second_moment",
    ),
    "targets.costs": (
        "cost",
        "cost_of",
    ),
    "targets.target": (
        "compile_for",
        "find_target",
        "without_tpu",
    ),
    "training": ("train_step",),
    "verification.verify": ("verify",),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}
__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """A name of this package, or a room of it, imported when it is first asked for."""
    if name in _HOMES:
        found = getattr(import_module(f"hlo_surgery.{_HOMES[name]}"), name)
        globals()[name] = found
        return found
    if not name.startswith("_") and find_spec(f"hlo_surgery.{name}"):
        return import_module(f"hlo_surgery.{name}")
    close = get_close_matches(name, _HOMES, n=1, cutoff=0.75)
    meant = f"; did you mean {close[0]}?" if close else ""
    raise AttributeError(f"module 'hlo_surgery' has no attribute {name!r}{meant}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
