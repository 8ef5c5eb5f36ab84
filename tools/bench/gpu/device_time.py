"""Seconds that a GPU computes in a call, by JAX's profiler; elsewhere those until it is done."""

import gzip
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from tools.bench.side_by_side import Compiled, run_in_a_row


def device_seconds(compiled: Compiled, arguments: Sequence[Any], calls: int) -> float:
    """Of one call among as many in a row: all kernels and copies together, without gaps between
    them, in which a GPU waits for the host.
    """
    jax.block_until_ready(compiled(*arguments))
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        with jax.profiler.trace(folder):
            run_in_a_row(compiled, arguments, calls)
        passed = time.perf_counter() - start
        busy = sum(_kernels(next(Path(folder).rglob("*.trace.json.gz"))))
    return (busy or passed) / calls


def _kernels(trace: Path) -> list[float]:
    """Seconds of what ran on a GPU's streams."""
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    names = {
        (event["name"], event["pid"], event.get("tid")): event["args"].get("name", "")
        for event in events
        if event.get("ph") == "M" and "args" in event
    }
    gpus = {pid for (kind, pid, _), name in names.items() if _is_gpu(kind, name)}
    streams = {
        (pid, tid)
        for (kind, pid, tid), name in names.items()
        if kind == "thread_name" and pid in gpus and "Stream" in str(name)
    }
    ran = (event for event in events if event.get("ph") == "X")
    return [event["dur"] * 1e-6 for event in ran if (event["pid"], event["tid"]) in streams]


def _is_gpu(kind: str, name: Any) -> bool:
    return kind == "process_name" and "GPU" in str(name)
