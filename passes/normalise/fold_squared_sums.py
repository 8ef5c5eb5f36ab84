"""Fold squared sums: given a sum of squared outer products, the contraction of squared operands.

    %o = dot_general %h[b, d], %l[b, f] batching b      %hh = multiply %h, %h
    %s = multiply %o, %o                            =>  %ll = multiply %l, %l
    %g = reduce add %s across b                         %g = dot_general %hh, %ll contracting b

This is what `jax.vmap(jax.grad(loss))` with a mean of squares lowers to, for dense layers. The
product, with a slice for every example, is no longer made. So too for what else factors (see
factoring.py), and for whatever is summed over: over all dimensions but b, it becomes the product of
two norms.
"""

from collections.abc import Sequence
from functools import partial

import jax

from hlo_surgery.passes.emit.splice import splice
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.attributes import integers
from hlo_surgery.passes.ir.constants import is_splat
from hlo_surgery.passes.ir.element_types import dtype_of
from hlo_surgery.passes.ir.inlining import inline_calls
from hlo_surgery.passes.ir.linearity import added_results
from hlo_surgery.passes.ir.mlir import Module, Operation, Value
from hlo_surgery.passes.terms.monomials.contract_monomials import Contraction, contract, contraction
from hlo_surgery.passes.terms.monomials.factoring import RULES, factored
from hlo_surgery.passes.terms.monomials.outer_products import dot_product, is_precise

# What may have made a product, and goes with it if nothing else uses it.
ERASED = frozenset([*RULES, "stablehlo.constant", "stablehlo.imag", "stablehlo.negate"])


def fold_squared_sums(module: Module) -> int:
    """Flatten the module and fold every such sum in it, in place; how many there were."""
    mlir.run_passes(module, "func.func(stablehlo-legalize-composite-to-call)")
    inline_calls(module)
    sums = [op for op in mlir.all_operations(module) if op.name in SUMS]
    folded = [op for op in sums if _fold(op)]
    mlir.run_passes(module, "cse")
    return len(folded)


def _fold(op: Operation) -> bool:
    """Fold one sum, if it can be. Factoring starts anew for each: nothing erased for an earlier one
    is remembered.
    """
    found = SUMS[op.name](op)
    if found is None:
        return False
    result, operands = op.results[0], mlir.operands(op)
    (made,) = splice(found.values, partial(_computed, found, result), op)
    result.replace_all_uses_with(made)
    op.erase()
    erase_unused(operands)
    return True


def folded_reduce(op: Operation) -> Contraction | None:
    """The contraction that a reduce can be; None if no sum from zero, or of no outer product."""
    if len(op.results) != 1 or not all(added_results(op)) or not is_splat(op.operands[1], 0):
        return None
    if not _can_be_summed([op.operands[0], *op.results]):
        return None
    monomial = factored(op.operands[0])
    summed = tuple(atom for d in integers(op, "dimensions") for atom in monomial.dims[d])
    return contraction(monomial, summed) if monomial.is_outer else None


def folded_dot_general(op: Operation) -> Contraction | None:
    """The contraction that another can be, one of whose operands is made of an outer product."""
    if not _can_be_summed([*op.operands, *op.results]):
        return None
    lhs, rhs = map(factored, op.operands)
    found = dot_product(op, lhs, rhs) if lhs.is_outer or rhs.is_outer else None
    return found and contraction(*found)


def _can_be_summed(values: Sequence[Value]) -> bool:
    return all(is_precise(value) and 0 not in mlir.shape(value) for value in values)


def _computed(found: Contraction, result: Value, *operands: jax.Array) -> list[jax.Array]:
    return [contract(found, operands, dtype_of(result)).reshape(mlir.shape(result))]


def erase_unused(values: Sequence[Value]) -> None:
    """Erase what made the values as far as nothing uses it."""
    pending = list(dict.fromkeys(values))
    while pending:
        op = mlir.defining_operation(pending.pop())
        if op is None or op.name not in ERASED or any(list(result.uses) for result in op.results):
            continue
        operands = mlir.operands(op)
        op.erase()
        pending += [v for v in dict.fromkeys(operands) if v not in pending]


SUMS = {"stablehlo.reduce": folded_reduce, "stablehlo.dot_general": folded_dot_general}
