"""Verification holds statistics to their definitions: claims by numpy pass, wrong ones do not."""

import re
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.requests.request import make_request
from hlo_surgery.verification.verify import verify_rewritten
from tests.by_definition import flat, length, noise_scale, weighted

EDGES = [-0.5, -0.03, 0.03, 0.5]


@dataclass
class Claimed:
    """What stands in for a rewritten module that returns these arrays."""

    outputs: list[Any]
    plan: None = None

    def call(self, *arrays):
        return self.outputs


def losses(p, x):
    return jnp.sum(jnp.tanh(x @ p["w"] + p["b"]) ** 2, -1)


P = {
    "b": np.linspace(-0.2, 0.3, 4, dtype=np.float32),
    "w": np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32),
}
NAMED = {f"[1]['{name}']": array for name, array in P.items()}
X = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)
SIZE, OWN = len(X), 3


def lowered(fun, *arrays):
    return hs.modules.load(jax.jit(fun).lower(*arrays).as_text(debug_info=True))


def module(reduce=jnp.mean):
    return lowered(jax.value_and_grad(lambda p, x: reduce(losses(p, x))), P, X)


def truth():
    """The loss, its gradients, and those of each example, in double precision."""
    with jax.enable_x64(True):
        p, x = jax.tree.map(np.float64, (P, X))
        each = jax.vmap(jax.grad(lambda p, x: losses(p, x)), (None, 0))(p, x)
        return [np.asarray(a) for a in (losses(p, x), each["b"], each["w"])]


def clip(limit, tree):
    return weighted(np.minimum(1, limit / length(tree)), tree)


def inner(*each):
    return sum(np.tensordot(g, g.mean(0), g.ndim - 1) for g in each)


def gram(*each):
    return flat(each) @ flat(each).T


def snr(g):
    return np.abs(g.mean(0)) / g.std(0, ddof=1)


def both(f):
    """A claim on both gradients, each alone."""
    return lambda b, w: [f(b), f(w)]


CLAIMS = {
    "second_moment": (hs.second_moment(), both(lambda g: (g**2).mean(0))),
    "mean_of_clipped_entries": (
        hs.mean_of_clipped_entries(0.1),
        both(lambda g: g.clip(-0.1, 0.1).mean(0)),
    ),
    "polynomial": (hs.polynomial([1, -2, 3]), both(lambda g: (1 - 2 * g + 3 * g**2).mean(0))),
    "combination": (
        hs.linear_combination([(0.5, hs.mean_sign()), (2, hs.mean_abs())]),
        both(lambda g: (0.5 * np.sign(g) + 2 * np.abs(g)).mean(0)),
    ),
    "variance": (hs.variance(), both(lambda g: g.var(0, ddof=1))),
    "biased": (hs.variance(unbiased=False), both(lambda g: g.var(0))),
    "snr": (hs.snr(), both(snr)),
    "norms": (hs.norms(), lambda b, w: [length((b, w))]),
    "norms of each": (hs.norms("parameter", ord=1), both(lambda g: length(g, 1))),
    "norms of groups": (
        hs.norms({"w": [2], "b": ["[1]['b']"]}, ord=3),
        lambda b, w: [length(w, 3), length(b, 3)],
    ),
    "clipped": (hs.clipped_mean(0.8), lambda b, w: clip(0.8, [b, w])),
    "clipped each": (
        hs.clipped_mean(0.8, "parameter", nan_safe=True),
        both(lambda g: clip(0.8, g)),
    ),
    "auto_s": (
        hs.weighted_mean(lambda n: 1 / (n + 0.01)),
        lambda b, w: weighted(1 / (length((b, w)) + 0.01), [b, w]),
    ),
    "gram": (hs.gram(), lambda b, w: [gram(b, w)]),
    "gram of each": (hs.gram("parameter"), both(gram)),
    "inner_products": (hs.inner_products(), lambda b, w: [inner(b, w)]),
    "direction": (hs.inner_products(NAMED), lambda b, w: [b @ P["b"] + np.tensordot(w, P["w"], 2)]),
    "noise_scale": (hs.noise_scale(), lambda b, w: list(noise_scale((b, w)))),
    "histogram": (hs.histogram(EDGES), both(lambda g: np.histogram(g, EDGES)[0])),
    "per_example": (hs.per_example(), lambda b, w: [b, w]),
}


def claimed(names):
    own, b, w = truth()
    made = [a for name in names for a in CLAIMS[name][1](b, w)]
    return [own.mean(), b.mean(0), w.mean(0), *made]


def judge(names, outputs):
    original = module()
    statistics = {name: CLAIMS[name][0] for name in names}
    request = make_request(original, [2], statistics, None, "mean", "refuse", {})
    return verify_rewritten(original, Claimed(outputs), request, [P["b"], P["w"], X])


def test_claims_made_by_numpy_are_equivalent():
    verdict = judge(CLAIMS, claimed(CLAIMS))
    assert verdict.verdict == "equivalent", verdict
    held = [c.name for c in verdict.comparisons if c.kind == "statistic"]
    assert len(held) == len(claimed(CLAIMS)) - OWN
    # Outputs are named after the statistic, and its parts by what they are of, or are.
    assert {re.split(r"[/.]", name)[0] for name in held} == set(CLAIMS)


@pytest.mark.parametrize("name", CLAIMS)
def test_one_entry_off_by_a_thousandth_is_caught(name):
    outputs = claimed([name])
    for number in range(OWN, len(outputs)):
        wrong = [np.array(a) for a in outputs]
        flat = wrong[number].reshape(-1)
        worst = np.argmax(np.abs(flat))
        flat[worst] = flat[worst] + 1 if name == "histogram" else flat[worst] * 1.001
        verdict = judge([name], wrong)
        assert verdict.verdict == "not equivalent"
        assert verdict.why.startswith(name)
