"""The table of random programs' layers, and what they share: one function each, for any axes.

A layer takes (scope, x, axes), where `axes` names x's dimensions by letters: N the examples, L or H
and W positions, C features. It returns the new x and its axes. To add a layer: write the function
and decorate it with the axes it accepts ("C" features, "LC" tokens, "HWC" images), and with those
it `gives` where it changes them, or give several of one line to `layers`; `kinked=True` keeps it
from low precision, where two correct evaluations may take different sides of the kink.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

ANY = "C LC HWC"
LAYERS = {}


@dataclass(frozen=True)
class Layer:
    apply: object
    accepts: tuple
    gives: str
    kinked: bool


def layer(accepts=ANY, gives="", kinked=False):
    def register(function):
        LAYERS[function.__name__] = Layer(function, tuple(accepts.split()), gives, kinked)
        return function

    return register


def layers(functions, accepts=ANY, kinked=False):
    """By name, functions of (scope, x, axes) that keep the axes and return x alone."""
    for name, function in functions.items():
        kept = lambda s, x, axes, function=function: (function(s, x, axes), axes)  # noqa: E731
        LAYERS[name] = Layer(kept, tuple(accepts.split()), "", kinked)


def features_last(axes):
    """The permutation that moves C last, and the one that moves it back."""
    there = [i for i, a in enumerate(axes) if a != "C"] + [axes.index("C")]
    return there, list(np.argsort(there))


def width(x, axes):
    return x.shape[axes.index("C")]


def per_feature(vector, axes):
    """A vector of features, shaped to broadcast along its axis."""
    return vector.reshape([-1 if a == "C" else 1 for a in axes])


def times(x, w, axes):
    """Contract the features with w [C, D], in place."""
    return jnp.einsum(f"{axes},CD->{axes.replace('C', 'D')}", x, w)
