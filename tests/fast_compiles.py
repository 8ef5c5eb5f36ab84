"""Flags with which XLA on CPU compiles in a quarter of the time: a test's program runs once."""

from importlib.metadata import version

# Kernels by way of MLIR take the longest, and what LLVM does beyond the necessary; how a module is
# partitioned is decided before. Later releases have no other kernels (an unknown flag ends the
# process), and unoptimised these round otherwise than what they are compared to.
HAS_OTHERS = tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11)
UNOPTIMISED = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
FAST_COMPILES = f"{UNOPTIMISED} --xla_cpu_use_fusion_emitters=false" if HAS_OTHERS else ""
