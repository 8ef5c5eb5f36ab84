"""MicroAdam by hand, as one writes it without this library: one example a device at a time.

Each round of a loop takes one example on every device along "data", has all their gradients by
`jax.vmap`, each on its own device, and adds up them and their squares; norms are stacked by round.
It is what the library's step is held against.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

import hlo_surgery.optimizers as ho
from examples.decoder import axes, model, run


def micro_adam_by_hand(settings: run.Settings, norms: bool = False) -> tuple[Any, Any]:
    """The step and its optimizer. `norms`: it returns those of each text's gradient, too, by group
    of parameters.
    """
    optimizer = ho.micro_adam(1e-3)
    layout = axes.LAYOUTS[settings.layout]
    within = {name: axis for name, axis in layout.items() if axis != "data"}
    one = jax.value_and_grad(partial(model.mean_loss, within))

    def moments(params: Any, tokens: Array) -> Any:
        """The mean loss, gradient and squared gradient of the examples, and their norms."""
        devices = jax.sharding.get_abstract_mesh().shape["data"]
        rounds = jnp.swapaxes(tokens.reshape(devices, -1, 1, tokens.shape[-1]), 0, 1)
        of_each = jax.vmap(one, (None, 0), spmd_axis_name="data")

        def add(sums: Any, part: Array) -> tuple[Any, Any]:
            losses, gradients = of_each(params, part)
            squares = jax.tree.map(jnp.square, gradients)
            means = jax.tree.map(lambda x: x.mean(0), (losses, gradients, squares))
            rows = norms_by_group(squares) if norms else None
            return jax.tree.map(jnp.add, sums, means), rows

        zeros = jax.tree.map(jnp.zeros_like, params)
        sums, rows = lax.scan(add, (jnp.zeros(()), zeros, zeros), rounds)
        in_order = jax.tree.map(lambda x: x.T.reshape(-1), rows)
        return *jax.tree.map(lambda x: x / len(rounds), sums), in_order

    def step(params: Any, state: Any, tokens: Array) -> tuple[Any, Any, Any]:
        loss, gradient, squares, rows = moments(params, tokens)
        given = {"second_moment": squares, "batch_size": settings.batch}
        updates, state = optimizer.update(gradient, state, params, **given)
        return optax.apply_updates(params, updates), state, (loss, rows) if norms else loss

    return jax.jit(step, donate_argnums=(0, 1)), optimizer


def norms_by_group(squares: Any) -> dict[str, Array]:
    """Each text's norm in each of `model.GROUPS`, from its gradient's squares, [texts, ...]."""
    sums: dict[str, Array] = {}
    for group, leaf in zip(jax.tree.leaves(model.GROUPS), jax.tree.leaves(squares), strict=True):
        own = leaf.reshape(len(leaf), -1).sum(1)
        sums[group] = sums[group] + own if group in sums else own
    return {group: jnp.sqrt(total) for group, total in sums.items()}
