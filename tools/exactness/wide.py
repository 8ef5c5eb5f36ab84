"""A dumped program with float64 in place of every narrower float."""

import re
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from tools.exactness.cases import Array, Case

FLOATS: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(jnp.bfloat16),
    "f32": np.dtype(np.float32),
}
_NAMES = "|".join(FLOATS)
_TYPE = re.compile(rf"(?:\b|(?<=x))(?:{_NAMES})\b")
# One number by its bits, as inf and NaN are; and all numbers of a constant by their bytes.
_BITS = re.compile(rf"dense<0x([0-9A-F]+)>(?= : tensor<(?:\d+x)*({_NAMES})>)")
_BYTES = re.compile(rf'dense<"0x([0-9A-F]+)">(?= : tensor<(?:\d+x)*({_NAMES})>)')


def in_float64(case: Case) -> Case:
    """The same program without the rounding of its types: constants and arguments stay.

    Raises ValueError where a call is for one type.
    """
    if "stablehlo.custom_call" in case.text:
        raise ValueError("a call for one type has no form for float64")
    text = _BITS.sub(_of_bits, case.text)
    text = _BYTES.sub(_of_bytes, text)
    return replace(case, text=_TYPE.sub("f64", text), arrays=[_wide(x) for x in case.arrays])


def _of_bits(found: re.Match[str]) -> str:
    """The most significant byte comes first."""
    bits = bytes.fromhex(found[1])[::-1]
    return f"dense<0x{_numbers(bits, found[2])[::-1].hex().upper()}>"


def _of_bytes(found: re.Match[str]) -> str:
    return f'dense<"0x{_numbers(bytes.fromhex(found[1]), found[2]).hex().upper()}">'


def _numbers(held: bytes, kind: str) -> bytes:
    return np.frombuffer(held, FLOATS[kind]).astype(np.float64).tobytes()


def _wide(x: Array) -> Array:
    return x.astype(np.float64) if x.dtype in FLOATS.values() else x
