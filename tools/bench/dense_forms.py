"""A dense site with its update in five forms, on TPU: what the planner's roofline is fitted to.

python -m tools.bench.dense_forms [--batches 2 4 8] [--sizes 1024x4096 1024x1024]
    [--positions 2048] [--forms plain lift] [--target tpu:v5e]

Adam's plain contraction; lifted (all examples' gradients from one contraction); a loop of one
example a step; its steps written out; the fused kernel; each with the update. Compiled ahead of
time; cycles by bundles, and by the compiler's estimates.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from hlo_surgery.passes.emit.rebuild import counted_loop
from hlo_surgery.passes.strategies.einsums.mosaic import Products, summed_products
from hlo_surgery.targets.target import find_target, without_tpu
from tools.bench.bundles.program_time import compiled_with_bundles, dump_bundles
from tools.bench.side_by_side import known_cost
from tools.bench.train_step import adam
from tools.models.families.mixed_lm import HALF, LENGTH

Sums = tuple[jax.Array, jax.Array]


def contracted(spec: str, a: jax.Array, d: jax.Array) -> jax.Array:
    return jnp.einsum(spec, a, d, preferred_element_type=jnp.float32)


def plain(a: jax.Array, d: jax.Array) -> Sums:
    gradient = contracted("bld,blf->df", a, d)
    return gradient, gradient**2


def lift(a: jax.Array, d: jax.Array) -> Sums:
    each = contracted("bld,blf->bdf", a, d)
    return each.sum(0), jnp.sum(each * each, 0)


def loop(a: jax.Array, d: jax.Array, written_out: bool = False) -> Sums:
    def step(sums: Sums, number: jax.Array) -> tuple[Sums, tuple[()]]:
        def take(x: jax.Array) -> jax.Array:
            return jax.lax.dynamic_index_in_dim(
                x, number, keepdims=False, allow_negative_indices=False
            )

        own = contracted("ld,lf->df", take(a), take(d))
        return (sums[0] + own, sums[1] + own * own), ()

    zeros = jnp.zeros((a.shape[2], d.shape[2]))
    return counted_loop(step, (zeros, zeros), a.shape[0], written_out)[0]


def fused(a: jax.Array, d: jax.Array) -> Sums:
    def take(own: jax.Array, _: Sequence[jax.Array]) -> list[jax.Array]:
        return [own, own * own]

    products = Products(a, d, jnp.ones((a.shape[0], 1)), take, 2)
    gradient, squares = summed_products(products, interpret=False)
    return gradient, squares


FORMS: dict[str, Callable[..., Sums]] = {
    "plain": plain,
    "lift": lift,
    "loop": loop,
    "written out": lambda a, d: loop(a, d, written_out=True),
    "fused": fused,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--sizes", nargs="+", default=["1024x4096", "1024x1024"])
    parser.add_argument("--positions", type=int, default=LENGTH, help="of an example")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--target", default="tpu:v5e")
    options = parser.parse_args()
    folder = dump_bundles()
    without_tpu()
    target = find_target(options.target)
    sharding = jax.sharding.SingleDeviceSharding(target.devices[0])

    def of(*shape: int, dtype: Any = jnp.float32) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    for size in options.sizes:
        wide, high = map(int, size.split("x"))
        for batch in options.batches:
            w, a, d = (
                of(wide, high),
                of(batch, options.positions, wide, dtype=HALF),
                of(batch, options.positions, high, dtype=HALF),
            )
            first: Any = None
            for name in options.forms:
                form = FORMS[name]
                step = jax.jit(
                    lambda p, m, v, a, d, form=form: adam(p, m, v, *form(a, d)),
                    donate_argnums=(0, 1, 2),
                )
                executable, bundles = compiled_with_bundles(
                    step.lower(w, w, w, a, d).compile, folder, target
                )
                estimate = known_cost(executable, target).estimated_cycles or 0
                first = first or (bundles.cycles, estimate)
                cells = [
                    f"{n / 1e6:.3f} M x{n / one:.3f}"
                    for n, one in zip((bundles.cycles, estimate), first, strict=True)
                ]
                said = (
                    f"bundles {cells[0]}, estimate {cells[1]}, fusions move "
                    f"{bundles.bytes / 1e6:.0f} MB"
                )
                print(
                    f"{size} batch {batch} {name:12} {said}, without bundles "
                    f"{bundles.without_bundles}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
