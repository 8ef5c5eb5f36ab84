"""Example factors: the factors of an op's rule in which its operands hold the examples."""

from collections.abc import Sequence

from hlo_surgery.passes.dataflow import sharding_rules
from hlo_surgery.passes.dataflow.axis import PerExample
from hlo_surgery.passes.dataflow.sharding_rules import ExampleFactor, Rule
from hlo_surgery.passes.ir.mlir import Operation
from hlo_surgery.passes.terms.axes import Class, Split


def common_factor(
    op: Operation, rule: Rule, classes: Sequence[Class], size: int
) -> ExampleFactor | None:
    """The one factor of the rule that holds all operands' examples; None if they differ."""
    own = {
        sharding_rules.find_factor(rule, rule.operands[i], op.operands[i], c, size)
        for i, c in enumerate(classes)
        if isinstance(c, PerExample)
    }
    return own.pop() if len(own) == 1 else None


def split_factors(
    op: Operation, classes: Sequence[Class], size: int
) -> tuple[ExampleFactor, ExampleFactor] | None:
    """The factors with the major and minor digits of all operands that hold examples; None if they
    differ, or the digits do not lie in one each.
    """
    rule, found = sharding_rules.rule_of(op), set[tuple[ExampleFactor | None, ...]]()
    if rule is None or any(isinstance(c, PerExample) for c in classes):
        return None
    for known, dims, value in zip(classes, rule.operands, op.operands, strict=True):
        if isinstance(known, Split):
            digits = ((known.major, known.parts), (known.minor, size // known.parts))
            pairs = (sharding_rules.find_factor(rule, dims, value, a, n) for a, n in digits)
            found.add(tuple(pairs))
    outer, inner = found.pop() if len(found) == 1 else (None, None)
    return (outer, inner) if outer and inner else None
