"""Shapes in HLO text: tuples, and arrays with their layouts, and so their bytes and memory.

f32[4,250]{1,0:T(4,128)S(1)}   =>   Array("f32", (4, 250), 4096, 1)
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\](?:\{([^{}]*)\})?")


@dataclass(frozen=True)
class Array:
    """An array: element type, sizes, bytes with its tiles' padding, and the memory it lies in.

    Space 0 is the device's main memory, HBM on a TPU; the others are on the chip, or the host's.
    """

    dtype: str
    dims: tuple[int, ...]
    bytes: int
    space: int


Shape = Array | tuple["Shape", ...]


def parse_shape(text: str) -> Shape:
    """An array or a tuple of shapes.

    >>> parse_shape("bf16[3,100]{1,0:T(8,128)(2,1)S(1)}")
    Array(dtype='bf16', dims=(3, 100), bytes=2048, space=1)
    """
    text = re.sub(r"/\*.*?\*/", "", text).strip()
    if not text.startswith("("):
        return _array(text)
    return tuple(parse_shape(part) for part in _parts(text[1:-1]))


def _parts(text: str) -> Iterator[str]:
    """The elements of a tuple; commas also stand within brackets."""
    depth, start = 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            yield text[start:place]
            start = place + 1
    if text[start:].strip():
        yield text[start:]


def _array(text: str) -> Array:
    found = ARRAY.fullmatch(text)
    if found is None:
        return Array("token", (), 0, 0)
    dtype, sizes, layout = found[1], found[2], found[3] or ""
    dims = tuple(int(size.lstrip("<=")) for size in sizes.split(",") if size)
    order, _, memory = layout.partition(":")
    space = re.search(r"S\((\d+)\)", memory)
    bits = re.search(r"E\((\d+)\)", memory)
    elements = math.prod(_padded(dims, [int(d) for d in order.split(",") if d], memory))
    size = -(-elements * (int(bits[1]) if bits else _bits(dtype)) // 8)
    return Array(dtype, dims, size, int(space[1]) if space else 0)


def _padded(dims: Sequence[int], minor_to_major: Sequence[int], memory: str) -> list[int]:
    """The sizes, innermost rounded up to whole tiles: T(8,128) tiles the two innermost."""
    sizes = [dims[d] for d in minor_to_major] if minor_to_major else list(dims[::-1])
    found = re.search(r"T\(([\d,]+)\)", memory)
    tile = [int(size) for size in found[1].split(",")][::-1] if found else []
    sizes += [1] * (len(tile) - len(sizes))
    return [
        -(-size // tile[i]) * tile[i] if i < len(tile) else size for i, size in enumerate(sizes)
    ]


def arrays(shape: Shape) -> Iterator[Array]:
    """The arrays in a shape."""
    if isinstance(shape, Array):
        yield shape
    else:
        for part in shape:
            yield from arrays(part)


def _bits(dtype: str) -> int:
    if dtype in ("token", "opaque"):
        return 0
    found = re.match(r"(?:pred|[a-z]+?(\d+))", dtype)
    return int(found[1]) if found and found[1] else 8
