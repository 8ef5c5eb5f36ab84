"""How parameters and examples lie on eight devices, and functions compiled for that."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.meshes.mesh_models import BY_PARAMETER


@dataclass(frozen=True)
class Layout:
    """A mesh's axes, and the sharding of each parameter. The examples lie along "data"."""

    sizes: dict[str, int]
    parameters: Callable[[Any], dict[str, P]]
    kind: AxisType = AxisType.Auto

    @property
    def mesh(self):
        return jax.make_mesh(
            tuple(self.sizes.values()), tuple(self.sizes), axis_types=(self.kind,) * len(self.sizes)
        )

    def shardings(self, model):
        """Those of the parameters, and of the batch."""
        parameters = {
            name: NamedSharding(self.mesh, spec) for name, spec in self.parameters(model).items()
        }
        return parameters, NamedSharding(self.mesh, P("data"))

    def placed(self, model):
        """The arguments of the loss on the devices."""
        parameters, data = self.shardings(model)
        return jax.device_put(model.params, parameters), *jax.device_put(model.batch, data)

    def compiled(self, model, function, statistics=()):
        """A function that returns gradients, maybe statistics, compiled under `jax.set_mesh`."""
        parameters, data = self.shardings(model)
        found = {name: self._placed_like(name, parameters, data) for name in statistics}
        with jax.set_mesh(self.mesh):
            jitted = jax.jit(function, out_shardings=(parameters, found) if found else parameters)
            return jitted.lower(*self.placed(model)).compile()

    def _placed_like(self, name, parameters, data):
        if name in BY_PARAMETER:
            return parameters
        return data if name == "norms" else NamedSharding(self.mesh, P())


def replicated(model):
    return dict.fromkeys(model.params, P())


ROW, GRID = {"data": 8}, {"data": 4, "model": 2}
LAYOUTS = {
    "data parallel": Layout(ROW, replicated),
    "fully sharded": Layout(ROW, lambda model: model.fully_sharded),
    "tensor parallel": Layout(GRID, lambda model: model.tensor),
    "explicit axes": Layout(ROW, replicated, AxisType.Explicit),
}
