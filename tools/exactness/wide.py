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
# One number by its bits, as inf and NaN are; in quotes all numbers of a constant, by their bytes.
_HELD = re.compile(rf'dense<("?)0x([0-9A-F]+)"?>(?= : tensor<(?:\d+x)*({_NAMES})>)')


def in_float64(case: Case) -> Case:
    """The same program without the rounding of its types: constants and arguments stay.

    Raises ValueError where a call is for one type.
    """
    if "stablehlo.custom_call" in case.text:
        raise ValueError("a call for one type has no form for float64")
    text = _HELD.sub(_held_wide, case.text)
    return replace(case, text=_TYPE.sub("f64", text), arrays=[_wide(x) for x in case.arrays])


def _held_wide(found: re.Match[str]) -> str:
    """Of a number's bits the most significant byte comes first, of bytes the least."""
    quote, digits, kind = found.groups()
    order = 1 if quote else -1
    narrow = np.frombuffer(bytes.fromhex(digits)[::order], FLOATS[kind])
    held = narrow.astype(np.float64).tobytes()[::order]
    return f"dense<{quote}0x{held.hex().upper()}{quote}>"


def _wide(x: Array) -> Array:
    return x.astype(np.float64) if x.dtype in FLOATS.values() else x
