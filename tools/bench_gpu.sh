#!/usr/bin/env bash
# Everything that is measured on a GPU, in under 35 minutes on one, in the order of its worth:
#   tools/bench_gpu.sh OUT [full|small [PART ...]]
# The tables compiled for GPUs that are not here come last, and need no GPU. `small` is a check of the
# script itself, on CPU too. A part that fails or takes too long leaves its .err, and the rest goes on.
# Where there is less time: only the parts that are named, such as `agreement measured sites`.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$1 size=${2:-full} parts=("${@:3}") python=${PYTHON:-python}
export PYTHONPATH="$PWD"
mkdir -p "$out"
{
  git rev-parse HEAD 2>/dev/null || echo "not a checkout"
  "$python" -c 'import jax; print("jax", jax.__version__, jax.devices())'
  nvidia-smi 2>/dev/null || echo "no GPU"
} | tee "$out/where.txt"

# A name, the most minutes, a module and its options.
run() {
  local name=$1 minutes=$2
  shift 2
  [ ${#parts[@]} = 0 ] || [[ " ${parts[*]} " = *" $name "* ]] || return 0
  echo "== $name: $*" | tee "$out/$name.txt"
  timeout "${minutes}m" "$python" -m "$@" >>"$out/$name.txt" 2>"$out/$name.err" ||
    echo "failed, or took more than $minutes minutes: see $out/$name.err" | tee -a "$out/$name.txt"
}

small=() rounds=21 moments=(--seeds 1 --batch-sizes 16 64)
if [ "$size" = small ]; then
  small=(--small) rounds=1 moments=()
fi

run agreement 5 tools.bench.gpu.agreement "${small[@]}"
run measured 8 tools.bench.gpu.measured --rounds "$rounds" "${small[@]}"
run sites 3 tools.bench.gpu.dense_sites "${small[@]}"
[ "$size" = small ] || run curves 8 tools.experiments.moments --out "$out/curves" "${moments[@]}"
run ahead 9 tools.bench.gpu.table "${small[@]}"
