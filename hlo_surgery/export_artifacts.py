"""The module in a `jax.export` artifact of any age. JAX itself reads those of its last half year only.

The artifact is a flatbuffer, to whose table fields are added at the end alone; the module in it is a StableHLO
portable artifact, which stays readable for years.
"""

from typing import Any, cast

from flatbuffers import encode, number_types, table  # pyright: ignore[reportMissingTypeStubs]

# The place of `mlir_module_serialized` among the fields of JAX's table `Exported`.
MODULE_FIELD = 13


def module_in_artifact(data: bytes) -> bytes | None:
    """The bytes of the module, or None where `data` is no such artifact."""
    try:
        start = encode.Get(number_types.UOffsetTFlags.packer_type, data, 0)
        exported = cast(Any, table.Table(data, start))
        offset = exported.Offset(4 + 2 * MODULE_FIELD)
        first = exported.Vector(offset)
        length = exported.VectorLen(offset)
    except Exception:  # the reader of flatbuffers fails in its own ways on other files
        return None
    return data[first : first + length] if offset else None
