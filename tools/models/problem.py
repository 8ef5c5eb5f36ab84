"""What is measured: a loss, and how to make its arguments."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class Problem:
    """A loss of (params, *batch), a mean over the examples, along axis 0 of all batch arrays.

    `make` returns params and batch. `width` and `depth` are 0 where a family has none.
    """

    family: str
    loss: Callable[..., jax.Array]
    make: Callable[[], tuple[Any, ...]]
    batch: int
    width: int = 0
    depth: int = 0
    shape: str = ""

    @property
    def batch_argnums(self) -> tuple[int, ...]:
        return tuple(range(1, len(self.structs)))

    @property
    def structs(self) -> tuple[Any, ...]:
        """The arguments' shapes and dtypes."""
        return jax.eval_shape(self.make)

    def structs_on(self, device: Any) -> tuple[Any, ...]:
        """The same for arguments on a device, which need not be here."""
        sharding = jax.sharding.SingleDeviceSharding(device)

        def placed(struct: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(struct.shape, struct.dtype, sharding=sharding)

        return jax.tree.map(placed, self.structs)

    @property
    def title(self) -> str:
        sizes = {"width": self.width, "depth": self.depth}
        words = [
            self.shape,
            *(f"{name} {size}" for name, size in sizes.items() if size),
            f"batch {self.batch}",
        ]
        return " ".join([self.family, ", ".join(filter(None, words))])
