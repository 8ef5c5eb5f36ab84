"""Targets: modules compiled for a device, here or ahead of time; their memory and time there."""

from hlo_surgery.public_function import publish
from hlo_surgery.targets.costs import cost, cost_of
from hlo_surgery.targets.target import compile_for, find_target, without_tpu

__all__ = ["compile_for", "cost", "cost_of", "find_target", "without_tpu"]
publish(globals(), __all__)
