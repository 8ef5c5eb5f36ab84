"""Float64 arrays with a bound of how far computing with roundoff `unit` may be from them.

Running error analysis (Higham, "Accuracy and Stability of Numerical Algorithms", section 3.3): an
operation passes on what its operands' errors make of its result, and adds one rounding of it. It is
rigorous but for underflow.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Rounded:
    value: np.ndarray
    error: np.ndarray
    unit: float

    def __add__(self, other):
        other = self._number(other)
        return self._made(self.value + other.value, self.error + other.error)

    def __sub__(self, other):
        other = self._number(other)
        return self._made(self.value - other.value, self.error + other.error)

    def __mul__(self, other):
        other = self._number(other)
        error = abs(self.value) * other.error + (abs(other.value) + other.error) * self.error
        return self._made(self.value * other.value, error)

    def __truediv__(self, other):
        """Of a denominator that its error may make zero nothing is known."""
        other = self._number(other)
        a, b = abs(self.value), abs(other.value)
        assert (b > other.error).all(), "a denominator may be zero"
        return self._made(
            self.value / other.value, (b * self.error + a * other.error) / (b * (b - other.error))
        )

    def __radd__(self, other):
        return self._number(other) + self

    def __rsub__(self, other):
        return self._number(other) - self

    def __rmul__(self, other):
        return self._number(other) * self

    def __rtruediv__(self, other):
        return self._number(other) / self

    def sum(self):
        added = (self.value.size - 1) * self.unit * (abs(self.value) + self.error).sum()
        return Rounded(self.value.sum(), self.error.sum() + added, self.unit)

    def sqrt(self):
        root = self._increasing(lambda x: np.sqrt(np.maximum(x, 0)))
        return self._made(root.value, root.error)

    def sign(self):
        return self._increasing(np.sign)

    def at_least(self, bound):
        return self._increasing(lambda x: np.maximum(x, bound))

    def at_most(self, bound):
        return self._increasing(lambda x: np.minimum(x, bound))

    def _increasing(self, function):
        """An increasing function, not rounded: how far it goes over all that the value may be."""
        lowest, value, highest = map(
            function, (self.value - self.error, self.value, self.value + self.error)
        )
        return Rounded(value, np.maximum(highest - value, value - lowest), self.unit)

    def _number(self, x):
        """Constants are rounded, too."""
        return x if isinstance(x, Rounded) else rounded(x, self.unit)

    def _made(self, value, error):
        return Rounded(value, error + self.unit * (abs(value) + error), self.unit)


def rounded(x, unit, roundings=1):
    """Numbers that have been rounded some times."""
    value = np.asarray(x, np.float64)
    return Rounded(value, roundings * unit * abs(value), unit)


def unit_of(dtype):
    """Half the distance from one to the next number."""
    return float(jnp.finfo(dtype).eps) / 2
