"""Terms: owners as values of the program, int32, made of ids by what ops do to the elements.

    %x : [N, D], %ids : [N]              term of %x        [N, 1]    ids
    %y = gather %x, %senders             term of %y        [M, 1]    ids[senders]

A dimension along which the owner does not change has size 1. NONE stands for nobody. Where several
owners meet in one element, a term holds one of them, and a check says whose examples are met.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Union

import jax
import jax.numpy as jnp
import numpy as np

from hlo_surgery.passes.ir.mlir import Value

NONE = -1
Array = jax.Array
Inputs = tuple[Union["Term", Value], ...]


@dataclass(frozen=True, eq=False)
class Term:
    """`made` of its inputs, terms or values of the module that no loop or branch is around.

    `shape`: 1 for the dimensions along which it is the same.
    """

    shape: tuple[int, ...]
    inputs: Inputs
    made: Callable[..., Array]

    @property
    def varying(self) -> frozenset[int]:
        """The dimensions along which the owner depends on the place."""
        return frozenset(dim for dim, size in enumerate(self.shape) if size != 1)


@dataclass(frozen=True, eq=False)
class Weighed:
    """What is asked of values, wherever they lie, as the program runs: `found` of these, and then
    of the terms, says whose examples are met, [B].
    """

    values: tuple[Value, ...]
    terms: tuple[Term, ...]
    found: Callable[..., Array]


@dataclass
class Following:
    """What is known of the owners of a module's values where ids give them.

    `size`: B. `terms`: each once, by how it is made. `checks`: by the first result of an op and a
    word, terms [B] of whose examples are met there. `weighed`: by the first result of an op, what
    is to be asked of its operands. `sites`: of an op that sums over examples, by its first result,
    whose the elements of each operand are. `sums`: groups of rows that are only added up.
    `carried`: of what loops carry, and branches return.
    """

    size: int
    terms: dict[Any, Term] = field(default_factory=dict[Any, Term])
    checks: dict[Value, dict[Any, Term]] = field(default_factory=dict[Value, dict[Any, Term]])
    weighed: dict[Value, Weighed] = field(default_factory=dict[Value, Weighed])
    sites: dict[Value, tuple[Term | None, ...]] = field(
        default_factory=dict[Value, tuple[Term | None, ...]]
    )
    sums: set[Value] = field(default_factory=set[Value])
    carried: dict[Any, Term] = field(default_factory=dict[Any, Term])

    def term(
        self,
        how: Any,
        shape: Sequence[int],
        inputs: Sequence[Term | Value],
        made: Callable[..., Any],
    ) -> Term:
        """The one term of these inputs that is made so; `how` tells functions apart."""
        key = (how, tuple(shape), tuple(inputs))
        if key not in self.terms:
            self.terms[key] = Term(tuple(shape), tuple(inputs), made)
        return self.terms[key]

    def check(self, result: Value, word: Any, found: Term) -> None:
        """Note that an op's result holds good if no example is found met."""
        self.checks.setdefault(result, {})[word] = found

    def forget(self, result: Value) -> None:
        """Forget what was found of an op, which is looked at anew."""
        self.checks.pop(result, None)
        self.weighed.pop(result, None)
        self.sites.pop(result, None)

    def of_ids(self, ids: Value, rank: int, axis: int, sizes: Sequence[int]) -> Term:
        """Owners of rows: ids that are no number of an example are nobody's."""
        shape = [1] * rank
        shape[axis : axis + len(sizes)] = sizes

        def made(ids: Array) -> Array:
            is_one = (ids >= 0) & (ids < self.size)
            return jnp.where(is_one, ids, NONE).astype(jnp.int32).reshape(shape)

        return self.term(("ids", axis), shape, [ids], made)

    def of_numbers(self, owners: np.ndarray[Any, Any]) -> Term:
        """Owners that are known already, with a dimension for each of the value."""
        how = ("numbers", owners.tobytes())
        return self.term(how, owners.shape, [], lambda: jnp.asarray(owners, jnp.int32))

    def moved(self, how: Any, term: Term, shape: Sequence[int], made: Callable[..., Any]) -> Term:
        """A term put elsewhere."""
        return self.term(how, shape, [term], made)

    def joined(self, result: Value, word: Any, terms: Sequence[Term]) -> Term:
        """The joint owner of elements that lie alike; checked that there is one."""
        distinct = list(dict.fromkeys(terms))
        numbered = list(enumerate(distinct))
        return reduce(lambda a, b: (b[0], self._join(result, (word, b[0]), a[1], b[1])), numbered)[
            1
        ]

    def _join(self, result: Value, word: Any, one: Term, other: Term) -> Term:
        shape = np.broadcast_shapes(one.shape, other.shape)
        met = self.term("met", (self.size,), [one, other], self._met)
        self.check(result, word, met)
        return self.term("join", shape, [one, other], join)

    def _met(self, one: Array, other: Array) -> Array:
        clash = (one >= 0) & (other >= 0) & (one != other)
        return flagged(self.size, one, clash) | flagged(self.size, other, clash)

    def over(self, result: Value, word: Any, term: Term, axes: Sequence[int]) -> Term:
        """The joint owner of all elements along axes, which stay; checked that there is one."""
        along = tuple(axis for axis in axes if term.shape[axis] != 1)
        if not along:
            return term
        shape = [1 if axis in along else size for axis, size in enumerate(term.shape)]

        def met(x: Array) -> Array:
            return flagged(self.size, x, is_several(x, lambda y, of: of(y, along, keepdims=True)))

        self.check(result, word, self.term(("met over", along), (self.size,), [term], met))
        return self.term(("over", along), shape, [term], lambda x: jnp.max(x, along, keepdims=True))

    def within(self, result: Value, word: Any, term: Term, bound: Term) -> None:
        """Check that owners are those of another term wherever they are somebody's."""

        def met(x: Array, bound: Array) -> Array:
            clash = (x >= 0) & (x != bound)
            return flagged(self.size, x, clash) | flagged(self.size, bound, clash)

        if term is not bound:
            self.check(result, word, self.term("within", (self.size,), [term, bound], met))


def join(one: Array, other: Array) -> Array:
    """Whose an element made of two is: the first's owner, or, if that is nobody's, the other's."""
    return jnp.where(one == NONE, other, one)


def is_several(x: Array, over: Callable[..., Array]) -> Array:
    """Whether groups of elements have several owners; `over(x, max)` reduces each to one number."""
    low = over(jnp.where(x < 0, jnp.iinfo(jnp.int32).max, x), jnp.min)
    high = over(x, jnp.max)
    return (high >= 0) & (low != high)


def flagged(size: int, owners: Array, where: Array) -> Array:
    """[B]: the examples that own an element at one of these places."""
    # Scatters take their time by the element: one for all places that have the same owner.
    alike = [d for d in range(where.ndim) if owners.ndim == where.ndim and owners.shape[d] == 1]
    where = jnp.any(where, alike, keepdims=True)
    owners, where = jnp.broadcast_arrays(owners, where)
    numbers = jnp.where(where & (owners >= 0), owners, size)
    return jnp.zeros(size + 1, bool).at[numbers.ravel()].set(True)[:size]
