"""Kronecker factors beside kfac-jax, of its own examples and others: the same numbers, and times.

pip install kfac-jax; python -m tools.bench.curvature.beside_kfac_jax [--rounds 9]

Both take the labels that are there. kfac-jax appends a one to what a layer takes, for its bias, so
that of its left factors the first rows and columns are a kernel's; of convolutions it divides both
factors by the number of places, and multiplies their product by it; and, as its documentation says,
in its mode "fisher_empirical" it divides by the batch's size once more, which is undone here.
Milliseconds are of CPU, all threads together.
"""

import argparse
import importlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

import hlo_surgery as hs
from hlo_surgery.targets.costs import cost_of
from tools.bench.curvature.peer_models import Model, autoencoder, classifiers, loss
from tools.bench.side_by_side import compile_all, median_seconds, print_table


def by_surgery(model: Model) -> Callable[..., Any]:
    """{layer: (left, right)} of the kernels, with the gradient."""
    f = hs.grad(loss(model), batch_argnums=(1, 2), statistics=hs.kronecker_factors())

    def found(p: Any, x: Array, y: Array) -> Any:
        gradient, factors = f(p, x, y)
        return gradient, {name: tuple(factors[name]["w"]) for name in model.layers}

    return found


def imported() -> Any:
    """kfac-jax 0.0.8, told how JAX 0.10 applies an equation."""
    matcher: Any = importlib.import_module("kfac_jax._src.tag_graph_matcher")

    def applied(equation: Any, values: Sequence[Any]) -> list[Any]:
        primitive = equation.primitive
        made = primitive.bind(*values, **primitive.get_bind_params(equation.params))
        return list(made) if primitive.multiple_results else [made]

    matcher.eval_jaxpr_eqn = applied
    return importlib.import_module("kfac_jax")


def by_kfac_jax(model: Model) -> Callable[..., Any]:
    kfac_jax = imported()

    def registered(p: Any, batch: Sequence[Array]) -> Array:
        x, y = batch
        logits = model.logits(p, x)
        if model.bernoulli:
            kfac_jax.register_multi_bernoulli_predictive_distribution(logits, y)
        else:
            kfac_jax.register_softmax_cross_entropy_loss(logits, y)
        return loss(model)(p, x, y)

    mode = {"default_estimation_mode": "fisher_empirical"}
    estimator = kfac_jax.BlockDiagonalCurvature(registered, **mode)
    args = (model.params, (model.x, model.y))
    estimator.finalize(args)
    start = estimator.init(jax.random.key(0), args, set(), set(), False)
    order = names_of_blocks(estimator, model)

    def found(p: Any, x: Array, y: Array) -> Any:
        how = {"ema_old": 0.0, "ema_new": 1.0, "identity_weight": 0.0, "rng": jax.random.key(0)}
        state = estimator.update_curvature_matrix_estimate(
            start, batch_size=len(x), func_args=(p, (x, y)), **how
        )
        blocks = zip(order, state.blocks_states, strict=True)
        sides = {name: [factor.value for factor in block.factors] for name, block in blocks}
        gradient = jax.grad(loss(model))(p, x, y)
        return gradient, {
            name: (left[:-1, :-1] * model.layers[name], right * len(x))
            for name, (left, right) in sides.items()
        }

    return found


def names_of_blocks(estimator: Any, model: Model) -> list[str]:
    """The layer of each of kfac-jax's blocks, by its kernel's shape."""
    by_shape = {model.params[name]["w"].shape: name for name in model.layers}
    shapes = [block.parameters_shapes for block in estimator.blocks]
    return [next(by_shape[s] for s in of_block if s in by_shape) for of_block in shapes]


def compare(model: Model, rounds: int) -> None:
    args = model.params, model.x, model.y
    plain = jax.grad(loss(model))
    functions = {"plain": plain, "surgery": by_surgery(model), "kfac-jax": by_kfac_jax(model)}
    compiled = compile_all(functions, args)
    ours, theirs = (compiled[name](*args)[1] for name in ("surgery", "kfac-jax"))
    for name in model.layers:
        pairs = zip(ours[name], theirs[name], strict=True)
        apart = [float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs]
        shapes = [side.shape for side in ours[name]]
        print(f"  {model.name} {name}: {shapes} differ by {apart[0]:.1e}, {apart[1]:.1e}")
    seconds = median_seconds(compiled, args, rounds, time.process_time)
    print_table(f"{model.name}, batch {len(model.x)}", compiled, seconds)
    target = hs.targets.find_target("cpu")
    counts = [f"{name} {(cost_of(c, target).flops or 0) / 1e9:.3f}" for name, c in compiled.items()]
    print(f"  GFLOP: {', '.join(counts)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    for model in (autoencoder(options.batch), *classifiers(options.batch)):
        compare(model, options.rounds)


if __name__ == "__main__":
    main()
