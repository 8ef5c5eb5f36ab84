"""Unreadable sources: what is there instead of a StableHLO module, and how to dump one."""

import re

from hlo_surgery.passes.ir import mlir

DUMPING = (
    "dump one with jax.jit(f).lower(...).as_text(debug_info=True) or "
    "jax.export.export(...)(...).serialize()"
)
# Other texts, by what they begin with.
OTHERS = {
    r"HloModule\b": "it is HLO text, as compile().as_text() prints it",
    r"\{\s*lambda\b": "it is a jaxpr",
}


def no_file(text: str) -> str:
    """Of a line that is no module and names no file."""
    start = text if len(text) <= 80 else f"{text[:80]}..."
    return (
        f"there is no file {start!r}, and it is no MLIR text either; pass pathlib.Path(...) for a "
        "file"
    )


def unreadable_text(text: str, problem: str) -> str:
    """Of text that MLIR does not read, with its own words where nothing else can be told."""
    named = (what for begin, what in OTHERS.items() if re.match(rf"\s*{begin}", text))
    # MLIR goes on to list all the dialects there are.
    said = problem.split(" note: ")[0] or "not MLIR"
    cut = ", so that it may be cut short" if _ends_at(text, said) else ""
    return f"this is no StableHLO module: {next(named, said + cut)}; {DUMPING}"


def _ends_at(text: str, problem: str) -> bool:
    """Whether the problem is in the last of several lines."""
    lines = len(text.splitlines())
    return lines > 1 and f'"-":{lines}:' in problem


def unreadable_bytes() -> str:
    """Of what is neither text nor bytecode."""
    return (
        "this is no StableHLO module: neither text nor bytecode, nor a whole jax.export artifact; "
        f"perhaps it is cut short: {DUMPING}"
    )


def unreadable_bytecode(data: bytes) -> str:
    """MLIR promises nothing of bytecode across versions, and names internals in its errors."""
    producer = mlir.bytecode_producer(data)
    if mlir.is_portable_artifact(data):
        why = f"the portable artifact by {producer} is damaged or newer than this jaxlib"
    else:
        why = (
            f"this jaxlib cannot read the bytecode by {producer}, which differs between "
            "versions of MLIR, or the file is damaged or cut short"
        )
    return (
        f"this is no StableHLO module: {why}; dump text, a portable artifact or a jax.export "
        "artifact"
    )
