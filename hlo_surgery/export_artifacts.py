"""The module in a `jax.export` artifact of any age. JAX itself reads those of its last half year
only.

An artifact is a flatbuffer, to whose table JAX adds fields at the end alone; the module in it is a
StableHLO portable artifact, which stays readable for years.
"""

from typing import Any, cast

import jax
from flatbuffers import encode, number_types, table  # pyright: ignore[reportMissingTypeStubs]
from jax import export

# Places in JAX's table `Exported`.
VERSION_FIELD, MODULE_FIELD = 0, 13


def module_in_artifact(data: bytes) -> bytes | None:
    """The bytes of the module, or None where `data` is no such artifact, or a damaged one."""
    try:
        return export.deserialize(bytearray(data)).mlir_module_serialized
    except Exception:  # the reader of flatbuffers fails in its own ways on other files
        return _module_in_older(data)


def _module_in_older(data: bytes) -> bytes | None:
    present = export.export(jax.jit(lambda: 0), platforms=["cpu"])().serialize()
    try:
        if _version(data) >= _version(bytes(present)):
            return None
        exported = _table(data)
        offset = _offset(exported, MODULE_FIELD)
        first, length = exported.Vector(offset), exported.VectorLen(offset)
    except Exception:
        return None
    return data[first : first + length] if offset else None


def _version(data: bytes) -> int:
    exported = _table(data)
    offset = _offset(exported, VERSION_FIELD)
    return int(exported.Get(number_types.Uint16Flags, exported.Pos + offset)) if offset else 0


def _table(data: bytes) -> Any:
    return cast(Any, table.Table(data, encode.Get(number_types.UOffsetTFlags.packer_type, data, 0)))


def _offset(exported: Any, field: int) -> int:
    return int(exported.Offset(4 + 2 * field))
