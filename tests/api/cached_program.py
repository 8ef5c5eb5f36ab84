"""A program that asks for statistics, to be run more than once."""

import jax.numpy as jnp

import hlo_surgery as hs

if __name__ == "__main__":
    statistics = {"norms": hs.norms(), "clipped": hs.clipped_mean(1.0)}
    gradient = hs.grad(lambda w, x: jnp.mean((x @ w) ** 2), batch_argnums=1, statistics=statistics)
    gradient(jnp.ones((3, 2)), jnp.ones((4, 3)))
