"""Curvature beside PyTorch's packages curvlinops and BackPACK: the same numbers, FLOPs and times.

pip install torch curvlinops-for-pytorch; python -m tools.bench.curvature.beside_torch [--rounds 9]

Of two nets of convolutions and an MLP, with the same weights, inputs and labels: Kronecker factors
and EK-FAC's second moments beside curvlinops, diagonals beside BackPACK, which comes with it, and
the gradient alone. The labels are drawn beforehand, so that both have the same Fisher matrix.
curvlinops has no diagonals but estimates: a column of its matrix for each of a few parameters says
whether the entry is the same, and what all would take. Its "expand" has the number of positions in
the other factor. FLOPs are of contractions and convolutions in PyTorch, and of all that XLA runs
here; seconds are of CPU. PyTorch has one thread; give XLA one, too:
XLA_FLAGS=--xla_cpu_multi_thread_eigen=false
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array

import hlo_surgery as hs
from hlo_surgery.targets.costs import cost_of
from tools.bench.curvature import by_torch
from tools.bench.curvature.peer_models import Model, classifiers, loss
from tools.bench.side_by_side import Compiled, median_seconds

CLASSES = 10
Found = dict[str, Any]
"""What is found of each layer's kernel."""


def asking(model: Model, statistic: Any) -> Callable[..., Any]:
    return hs.grad(loss(model), batch_argnums=(1, 2), statistics=statistic)


def kernels(model: Model, found: Any) -> Found:
    return {name: found[name]["w"] for name in model.layers}


def gradient(model: Model) -> Callable[[], Found]:
    return compiled(model, lambda p, x, y: kernels(model, jax.grad(loss(model))(p, x, y)))


def factors(model: Model, form: Any) -> Callable[[], Found]:
    f = asking(model, hs.kronecker_factors(form))
    return compiled(model, lambda p, x, y: kernels(model, f(p, x, y)[1]))


def fisher_diagonal(model: Model) -> Callable[[], Found]:
    f = asking(model, hs.second_moment())
    return compiled(model, lambda p, x, y: kernels(model, f(p, x, y)[1]))


def gauss_newton_diagonal(model: Model) -> Callable[[], Found]:
    """Exactly: the squares of each label's scores, added up."""

    def score(p: Any, x: Array, label: int) -> Array:
        return hs.curvature.gauss_newton_score(model.logits(p, x), label).mean()

    f = hs.grad(score, batch_argnums=1, statistics=hs.second_moment())

    def found(p: Any, x: Array, y: Array) -> Found:
        each = [f(p, x, label)[1] for label in range(CLASSES)]
        return kernels(model, jax.tree.map(lambda *squares: sum(squares), *each))

    return compiled(model, found)


def rotated_squares(model: Model, bases: Found) -> Callable[[], Found]:
    """Of the kernels' gradients, in curvlinops' eigenbases."""

    def of_kernels(kernels: Any, x: Array, y: Array) -> Array:
        params = {name: {**model.params[name], "w": kernels[name]} for name in model.layers}
        return loss(model)(params, x, y)

    asked = hs.second_moment_in(
        {name: hs.curvature.Eigenbases(*pair) for name, pair in bases.items()}
    )
    f = hs.grad(of_kernels, batch_argnums=(1, 2), statistics=asked)
    return compiled(model, lambda p, x, y: f(kernels(model, p), x, y)[1])


def compiled(model: Model, found: Callable[..., Found]) -> Compiled:
    """Called without arguments; `cost` is what XLA runs."""
    args = model.params, model.x, model.y
    program = jax.jit(found).lower(*args).compile()

    def call() -> Found:
        return program(*args)

    call.flops = cost_of(program, hs.targets.find_target("cpu")).flops  # pyright: ignore
    return call


def apart(ours: Any, theirs: Any) -> float:
    """The largest difference beside the largest entry, over all layers."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    both = [(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in pairs]
    return max(float(np.abs(a.reshape(b.shape) - b).max() / np.abs(b).max()) for a, b in both)


def compare(title: str, ours: Any, theirs: Any, name: str, rounds: int) -> None:
    off = apart(ours(), theirs())
    seconds = median_seconds({"ours": ours, name: theirs}, (), rounds, time.process_time)
    flops = ours.flops / 1e9, by_torch.flops(theirs) / 1e9
    print(
        f"  {title:24} {name:10} apart by {off:.1e}  "
        f"GFLOP {flops[0]:8.3f} {flops[1]:8.3f}  "
        f"ms of CPU {seconds['ours'] * 1e3:9.2f} {seconds[name] * 1e3:9.2f}  "
        f"x{seconds[name] / seconds['ours']:.2f}",
        flush=True,
    )


def compare_all(model: Model, rounds: int) -> None:
    print(f"{model.name}, batch {len(model.x)}: ours, theirs, and theirs over ours")
    compare("gradient alone", gradient(model), by_torch.gradient(model), "PyTorch", rounds)
    for form in ("expand", "reduce"):
        theirs = by_torch.factors(model, form)
        compare(f"factors, {form}", factors(model, form), theirs, "curvlinops", rounds)
    fisher, gauss_newton = fisher_diagonal(model), gauss_newton_diagonal(model)
    squares = by_torch.diagonal(model, "sum_grad_squared")
    compare("Fisher diagonal", fisher, squares, "BackPACK", rounds)
    exact = by_torch.diagonal(model, "diag_ggn_exact")
    compare("Gauss-Newton diagonal", gauss_newton, exact, "BackPACK", rounds)
    compare_columns("Fisher diagonal", model, fisher, "EFLinearOperator")
    compare_columns("Gauss-Newton diagonal", model, gauss_newton, "GGNLinearOperator")
    made = by_torch.rotated(model)
    ours = rotated_squares(model, by_torch.eigenbases(model, made))
    theirs = by_torch.rotated_squares(model, made)
    compare("EK-FAC's second moments", ours, theirs, "curvlinops", rounds)


def compare_columns(title: str, model: Model, ours: Any, operator: str) -> None:
    """A few entries of the diagonal by columns of curvlinops' matrix, and what all would take."""
    found = ours()
    began = time.process_time()
    entries = by_torch.some_entries(model, operator)
    spent = (time.process_time() - began) / len(entries)
    largest = {name: float(np.abs(found[name]).max()) for name in found}
    off = max(
        abs(float(found[name][place]) - entry) / largest[name] for name, place, entry in entries
    )
    count = sum(leaf.size for leaf in jax.tree.leaves(model.params))
    print(
        f"  {title:24} curvlinops apart by {off:.1e} in {len(entries)} entries, "
        f"{spent * 1e3:.1f} ms each: {count * spent:.0f} s for all {count}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    for model in classifiers(options.batch):
        compare_all(model, options.rounds)


if __name__ == "__main__":
    main()
