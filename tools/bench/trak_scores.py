"""TRAK's scores by an index, beside those of its authors' package: the same numbers, and the time.

    pip install torch traker
    XLA_FLAGS=--xla_cpu_multi_thread_eigen=false \
        python -m tools.bench.trak_scores [--examples 1000] [--widths 64 256 256 10] [--rounds 3]

Both have the same parameters of one network with random weights, the same examples, the same dense
random signs, and the same damping. traker scales its inverse by its mean and its gradients by the
root of their length, so that its scores are compared after the scale that fits best. The last row
is of the index with signs by Kronecker factors, as many numbers an example: other scores. Seconds
are of CPU, with one thread each; traker has its signs in memory before, the index draws them.
"""

import argparse
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hlo_surgery as hs
from hlo_surgery.attribution import covariance, preconditioned, scores, write_index
from hlo_surgery.passes.measures.projections import BLOCKS, OUTPUTS, random_signs

K, DAMPING, BATCH, QUERIES = 256, 0.1, 100, 50
# As many elements have their signs drawn at once.
WIDTH = 1 << 14
Examples = tuple[np.ndarray, np.ndarray]


def network(widths: list[int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    found: dict[str, np.ndarray] = {}
    for i, (n, m) in enumerate(pairwise(widths)):
        found[f"bias{i}"] = np.zeros(m, np.float32)
        found[f"weight{i}"] = (rng.normal(size=(n, m)) / n**0.5).astype(np.float32)
    return found


def logits(params: Any, x: Any, relu: Callable[[Any], Any]) -> Any:
    """Of JAX's arrays or of PyTorch's."""
    last = len(params) // 2 - 1
    for i in range(last):
        x = relu(x @ params[f"weight{i}"] + params[f"bias{i}"])
    return x @ params[f"weight{last}"] + params[f"bias{last}"]


def margins(params: Any, x: Any, y: Any) -> jax.Array:
    """log(p / (1 - p)), [B]."""
    found = logits(params, x, jax.nn.relu)
    is_label = jnp.arange(found.shape[-1]) == y[:, None]
    others = jax.nn.logsumexp(jnp.where(is_label, -jnp.inf, found), -1)
    return jnp.sum(jnp.where(is_label, found, 0), -1) - others


def rows_by(statistic: Any, params: Any, strategy: Any) -> Callable[[Examples], Any]:
    gradients = jax.jit(
        hs.grad(
            lambda *args: margins(*args).mean(),
            batch_argnums=(1, 2),
            statistics=statistic,
            strategy=strategy,
        )
    )
    return lambda batch: gradients(params, *batch)[1]


def by_index(rows: Callable[[Examples], Any], params: Any, data: Examples) -> np.ndarray:
    """[Q, N]."""
    with tempfile.TemporaryDirectory() as folder:
        index = write_index(rows, data, folder, batch_size=BATCH)
        queries = rows(first(data))
        found = scores(index, preconditioned(queries, covariance(index, "global"), DAMPING))
    return found * np.asarray(jax.nn.sigmoid(-margins(params, *data)))


def first(data: Examples) -> Examples:
    return data[0][:QUERIES], data[1][:QUERIES]


def signs(params: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """[elements, k] by parameter: those of `hs.projected`."""
    found: dict[str, np.ndarray] = {}
    for place, (name, value) in enumerate(sorted(params.items())):
        width = min(WIDTH, value.size)
        blocks = range(-(-value.size // width))
        drawn = [np.asarray(random_signs(0, (BLOCKS, n), width, K)) for n in blocks]
        own = np.asarray(random_signs(0, (OUTPUTS, place), 1, K))
        found[name] = np.concatenate(drawn)[: value.size] * own / K**0.5
    return found


def by_traker(
    params: dict[str, np.ndarray], drawn: dict[str, np.ndarray], data: Examples, shift: float
) -> np.ndarray:
    """[Q, N], with `shift` added to the diagonal of Phi' Phi."""
    import torch  # pyright: ignore

    # Threads that wait for others count as CPU, and XLA's do not.
    torch.set_num_threads(1)
    from trak import TRAKer  # pyright: ignore
    from trak.projectors import AbstractProjector  # pyright: ignore

    class Network(torch.nn.Module):  # pyright: ignore
        def __init__(self) -> None:
            super().__init__()
            for name, value in params.items():
                self.register_parameter(name, torch.nn.Parameter(torch.from_numpy(value)))

        def forward(self, x: Any) -> Any:
            return logits(dict(self.named_parameters()), x, torch.relu)

    model = Network()
    size = sum(value.size for value in params.values())
    matrices = {name: torch.from_numpy(value) for name, value in drawn.items()}

    class Projector(AbstractProjector):  # pyright: ignore
        def __init__(self) -> None:
            super().__init__(size, K, 0, "rademacher", "cpu")

        def project(self, grads: Any, model_id: int) -> Any:
            return sum(grads[name].flatten(1) @ own for name, own in matrices.items())

    batches = [
        tuple(torch.from_numpy(part[start : start + BATCH]) for part in data)
        for start in range(0, len(data[0]), BATCH)
    ]
    asked = tuple(torch.from_numpy(part) for part in first(data))
    with tempfile.TemporaryDirectory() as folder:
        traker: Any = TRAKer(
            model=model,
            task="image_classification",
            train_set_size=len(data[0]),
            save_dir=folder,
            device="cpu",
            projector=Projector(),
            proj_dim=K,
            use_half_precision=False,
            lambda_reg=shift / size,
            logging_level=logging.ERROR,
        )
        traker.load_checkpoint(model.state_dict(), model_id=0)
        for batch in batches:
            traker.featurize(batch=batch, num_samples=len(batch[0]))
        traker.finalize_features()
        traker.start_scoring_checkpoint("q", model.state_dict(), model_id=0, num_targets=QUERIES)
        traker.score(batch=asked, num_samples=QUERIES)
        return np.array(traker.finalize_scores(exp_name="q")).T


def shift_of(rows: Callable[[Examples], Any], data: Examples) -> float:
    """What the same damping adds to the diagonal of Phi' Phi: N times that of its mean."""
    found = np.asarray(rows(data), np.float64)
    return DAMPING * float((found**2).sum()) / K


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 256, 256, 10])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    params, rng = network(options.widths), np.random.default_rng(1)
    x = rng.normal(size=(options.examples, options.widths[0])).astype(np.float32)
    data = x, rng.integers(0, options.widths[-1], options.examples)
    drawn = signs(params)
    # Signs are drawn once for a batch whose gradients are there at once, and else for each example.
    dense = rows_by(hs.projected(K, per="global", kind="dense"), params, "lift")
    factored = rows_by(hs.projected(round(K**0.5), per="global"), params, "auto")
    shift = shift_of(dense, data)
    ways = {
        "traker": lambda: by_traker(params, drawn, data, shift),
        "index, dense": lambda: by_index(dense, params, data),
        "index, Kronecker": lambda: by_index(factored, params, data),
    }
    report(ways, options.rounds)


def report(ways: dict[str, Callable[[], np.ndarray]], rounds: int) -> None:
    """A warm-up, then medians of interleaved rounds, beside the first way."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    found: dict[str, np.ndarray] = {}
    for number in range(rounds + 1):
        for name, way in ways.items():
            began = time.process_time()
            found[name] = way()
            if number:
                times[name].append(time.process_time() - began)
    reference = next(iter(found.values()))
    seconds = {name: statistics.median(spent) for name, spent in times.items()}
    for name, values in found.items():
        scale = np.vdot(values, reference) / np.vdot(values, values)
        apart = np.linalg.norm(scale * values - reference) / np.linalg.norm(reference)
        ratio = seconds[name] / seconds["traker"]
        print(f"{name:18} {seconds[name]:7.2f} s of CPU  x{ratio:.2f}  scores apart by {apart:.1e}")


if __name__ == "__main__":
    main()
