"""Fold squared sums: given a sum of squared outer products, the contraction of squared operands.

    %o = dot_general %h[b, d], %l[b, f] batching b      %hh = multiply %h, %h
    %s = multiply %o, %o                            =>  %ll = multiply %l, %l
    %g = reduce add %s across b                         %g = dot_general %hh, %ll contracting b

This is what `jax.vmap(jax.grad(loss))` with a mean of squares lowers to, for dense layers. The
product, with a slice for every example, is no longer made. So too for what else factors (see
monomials.py), and for whatever is summed over: over all dimensions but b, it becomes the product of
two norms.
"""

from functools import partial

from jax import Array

from hlo_surgery.passes.dataflow.ancestors import sums_from_zero
from hlo_surgery.passes.emit.splice import splice
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import Arrays, dtype_of
from hlo_surgery.passes.ir.mlir import Module, Operation, Value
from hlo_surgery.passes.ir.modules import inline_calls
from hlo_surgery.passes.ir.traits import added_results, integers
from hlo_surgery.passes.structure.digits import leaves
from hlo_surgery.passes.terms.contract_monomials import Contraction, contract
from hlo_surgery.passes.terms.monomials import factored, is_precise


def fold_squared_sums(module: Module) -> int:
    """Flatten the module and fold every such sum in it, in place; how many there were."""
    mlir.run_passes(module, "func.func(stablehlo-legalize-composite-to-call)")
    inline_calls(module)
    count = 0
    for op in mlir.all_operations(module):
        found = folded_reduce(op) if op.name == "stablehlo.reduce" else None
        if found is not None:
            mlir.replace(op, splice(found.values, partial(_computed, found, op.result), op))
            count += 1
    mlir.run_passes(module, "cse", "func.func(trivial-dce)")
    return count


def folded_reduce(op: Operation) -> Contraction | None:
    """The contraction that a reduce can be; None if no sum from zero, or of no outer product."""
    if not sums_from_zero(op) or not all(added_results(op)):
        return None
    if not is_precise(op.operands[0]) or not is_precise(op.result):
        return None
    monomial = factored(op.operands[0])
    if monomial is None or monomial.dot is None:
        return None
    summed = leaves(digit for d in integers(op, "dimensions") for digit in monomial.dims[d])
    return Contraction(monomial, monomial.dot, summed) if summed else None


def _computed(found: Contraction, result: Value, *operands: Array) -> Arrays:
    return [contract(found, operands, dtype_of(result)).reshape(mlir.shape(result))]
