"""Traps: losses that mix examples, or look so, each with what must become of it.

    @mixes      examples meet: the gradient's mixed second difference shows it         refused
    @unshown    no difference shows it, but neither does the program whose is whose    refused
    @exact      example b's gradient is that of `own(w, x, b)`, by default of a batch of x[b]

`own` may hold the batch: row b along the example axis is example b's, whoever made it, and what no
parameter reaches is a constant. The oracle is JAX alone.
"""

import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

B, D = 4, 3
MIXED, UNSHOWN, EXACT = "mixed", "unshown", "exact"
TRAPS = {}


@dataclass(frozen=True)
class Trap:
    """`loss(w, x)`, of arrays of these shapes; `options` of `hs.grad`; `has_line`: whether the
    refusal names one; `holds_data`: whether a warning must say that data counts as a constant.
    """

    loss: Callable[..., Any]
    verdict: str
    w: Any = (D, D)
    x: tuple[int, ...] = (B, D)
    own: Callable[..., Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    rounding: float = 2e-5
    count: int = 0
    has_line: bool = True
    holds_data: bool = False

    @property
    def size(self):
        """How many examples there are."""
        return self.count or self.x[0]

    def lines(self):
        """The lines of the loss, and of what else of the tables it calls, as `file:number`."""
        pending, seen = [self.loss], []
        while pending:
            function = pending.pop()
            code = getattr(function, "__code__", None)
            if code is None or function in seen or "traps/of_" not in code.co_filename:
                continue
            seen.append(function)
            names = {n for each in codes(code) for n in each.co_names}
            pending += [function.__globals__[n] for n in names if n in function.__globals__]
        return {line for function in seen for line in lines_of(function)}

    def weights(self):
        return jax.tree.map(lambda s: drawn(s, 5), self.w, is_leaf=lambda s: isinstance(s, tuple))

    def alone(self, w, x, b):
        """The loss of example b: of a batch of one, unless the trap says more."""
        return self.own(w, x, b) if self.own else self.loss(w, x[b][None])


def codes(code):
    """The code of a function, and of those within it."""
    return [code, *(c for each in code.co_consts if inspect.iscode(each) for c in codes(each))]


def lines_of(function):
    lines, first = inspect.getsourcelines(function)
    return {f"{inspect.getsourcefile(function)}:{first + i}" for i in range(len(lines))}


def drawn(shape, seed):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def trap(verdict):
    """A decorator that puts a loss into the table, with what is said of it."""

    def plain_or_said(loss=None, /, **said):
        def put(loss):
            assert loss.__name__ not in TRAPS, "each trap has a name of its own"
            TRAPS[loss.__name__] = Trap(loss, verdict, **said)
            return loss

        return put(loss) if loss else put

    return plain_or_said


mixes, unshown, exact = trap(MIXED), trap(UNSHOWN), trap(EXACT)


def second_difference(trap):
    """The largest mixed second difference of the gradient, over pairs of examples, to its size."""
    with jax.enable_x64(True):
        w = jax.tree.map(np.float64, trap.weights())
        plain, other = (drawn(trap.x, seed).astype(float) for seed in (0, 1))
        gradient = jax.jit(jax.grad(trap.loss))

        def at(*examples):
            x, own = plain.copy(), list(examples)
            x.reshape(trap.size, -1)[own] = other.reshape(trap.size, -1)[own]
            return np.concatenate([np.ravel(g) for g in jax.tree.leaves(gradient(w, x))])

        pairs = list(itertools.combinations(range(trap.size), 2))
        none, each = at(), [at(b) for b in range(trap.size)]
        found = [np.abs(none - each[a] - each[b] + at(a, b)).max() for a, b in pairs]
    return max(found) / (1 + np.abs(none).max())


def expected(trap):
    """The gradient of each example's own loss, by `vmap`."""
    numbers = np.arange(trap.size)
    one = jax.vmap(jax.grad(trap.alone), (None, None, 0))
    return jax.jit(one)(trap.weights(), drawn(trap.x, 0), numbers)
