"""Flags with which XLA on CPU compiles in a quarter of the time: a test's program runs once."""

from importlib.metadata import version

# What LLVM does beyond the necessary; how a module is partitioned is decided before.
UNOPTIMISED = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
# Kernels by way of MLIR take the longest. Later releases have no others, and an unknown flag ends the process.
HAS_OTHERS = tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11)
FAST_COMPILES = f"{UNOPTIMISED} --xla_cpu_use_fusion_emitters=false" if HAS_OTHERS else UNOPTIMISED
