"""Exact statistics of per-example gradients, by rewriting the StableHLO module of a minibatch gradient."""

from hlo_surgery.api import explain, grad, rewrite, value_and_grad
from hlo_surgery.errors import Refusal
from hlo_surgery.module import Module, load
from hlo_surgery.pipeline import rewrite_module
from hlo_surgery.statistics import mean_abs, mean_of, mean_power, mean_sign, per_example, second_moment

__all__ = [
    "Module",
    "Refusal",
    "explain",
    "grad",
    "load",
    "mean_abs",
    "mean_of",
    "mean_power",
    "mean_sign",
    "per_example",
    "rewrite",
    "rewrite_module",
    "second_moment",
    "value_and_grad",
]
