"""Flags with which XLA on CPU compiles in a fifth of the time: a test's program runs once."""

from importlib.metadata import version

# Kernels by way of MLIR take the longest, and what LLVM does beyond the necessary; how a module is
# partitioned is decided before. Later releases have no other kernels (an unknown flag ends the
# process), and unoptimised these round otherwise than what they are compared to. A program's code
# is not split over threads: the parts take up to twice the time of the whole.
HAS_OTHERS = tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11)
UNOPTIMISED = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
OTHERS = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
FAST_COMPILES = f"{UNOPTIMISED} {OTHERS}" if HAS_OTHERS else ""
