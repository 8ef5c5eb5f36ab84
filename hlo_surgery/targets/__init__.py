"""Targets: modules compiled for a device, here or ahead of time; their memory and time there.

target         the devices of a name, and a module compiled for them
gpus           GPUs that are not here
costs          what a compiled module takes
program        a scheduled module's text as instructions
trip_counts    how often each instruction runs
executed       FLOPs and bytes of one run of an instruction
times          kernels at peak rates, estimated cycles, collectives
live_memory    the bytes in use at each instruction
"""

from hlo_surgery.public_function import publish
from hlo_surgery.targets.costs import cost, cost_of
from hlo_surgery.targets.target import compile_for, find_target, without_tpu

__all__ = ["compile_for", "cost", "cost_of", "find_target", "without_tpu"]
publish(globals(), __all__)
