"""Bugs in what ops do to owners."""

from tools.soundness_bugs.bug import Bug

OPS = [
    Bug(
        "owners/analysis.py",
        "if not all(map(is_shared, outside)):",
        "if not outside and captured:",
        "a reduction whose body captures an example's value",
    ),
    Bug(
        "owners/analysis.py",
        "if len(outside) < len(captured):",
        "if len(outside) > len(captured):",
        "a reduction whose body captures a sum over the examples",
    ),
    Bug(
        "owners/analysis.py",
        "if not owners.trained.isdisjoint(sources):",
        "if not owners.trained.isdisjoint(op.operands):",
        "a trained value that only an op's body uses, as data",
    ),
    Bug(
        "owners/analysis.py",
        "positional_sums(owners, block) | step_sums(owners, block)",
        "positional_sums(owners, block)",
        "weights of the steps of a loop over the batch as a constant of all",
    ),
    Bug(
        "owners/analysis.py",
        "positional_sums(owners, block) | step_sums(owners, block)",
        "step_sums(owners, block)",
        "a sum of dropout masks as a constant of the batch",
    ),
    Bug(
        "owners/analysis.py",
        "if reason and (isinstance(known, Summed) or is_shared(known)):",
        "if reason and isinstance(known, Summed):",
        "a sum of one weight for each example as a constant of all",
    ),
    Bug(
        "owners/analysis.py",
        "if reason and (isinstance(known, Summed) or is_shared(known)):",
        "if reason and is_shared(known):",
        "weights of the examples added to a sum, as what all share",
    ),
    Bug(
        "owners/analysis.py",
        "owners.contributions and not known.unknown:",
        "owners.contributions:",
        "in contributions, what calls make of which nothing is known",
    ),
    Bug(
        "owners/analysis.py",
        "if _differentiates_batch(owners, block, gradients):",
        "if _differentiates_batch(owners, block, []):",
        "a mean of the batch that is differentiated, as data",
    ),
    Bug(
        "owners/owned_ops.py",
        "if not all(c.is_shared for c in captured):",
        "if captured and captured[0].is_shared:",
        "a reduction whose body captures examples, by its operands alone",
    ),
    Bug(
        "owners/owned_ops.py",
        "return all(labels is own[0] for labels in own) and own[0].shape == shape",
        "return own[0].shape == shape",
        "examples that lie along different dimensions, element by element",
    ),
    Bug(
        "owners/owned_ops.py",
        " or any(c.data for c in classes):\n        return False\n    shape",
        ":\n        return False\n    shape",
        "data rearranged over the examples, element by element",
    ),
    Bug(
        "owners/owned_ops.py",
        "if linearity.is_linear(op, own) and not _mixes_rows(owners, classes):",
        "if not _mixes_rows(owners, classes):",
        "what one example's index finds among others",
    ),
    Bug(
        "owners/owned_ops.py",
        "if linearity.is_linear(op, own) and not _mixes_rows(owners, classes):",
        "if linearity.is_linear(op, own):",
        "in contributions, rows that meet others, as a sum",
    ),
    Bug(
        "owners/owned_ops.py",
        "is_whole = not (kept.owners == NONE).any()",
        "is_whole = kept.owners.size > 0",
        "data of the batch in rows beside the examples' as no data",
    ),
    Bug(
        "owners/owned_ops.py",
        "    offset = has_offset(op, classes) if offset is None else offset\n",
        "    offset = bool(offset)\n",
        "a constant that is added to some examples' values",
    ),
    Bug(
        "owners/owned_ops.py",
        "return [Owned(labels, None, has_offset(op, classes))]",
        "return [Owned(labels)]",
        "a constant that is added to some examples' values, element by element",
    ),
    Bug(
        "owners/owned_ops.py",
        "(refused := refused_as_uneven(owners, op, classes))",
        "(refused := None)",
        "a sum of what has a constant for some examples",
    ),
    Bug(
        "owners/owned_ops.py",
        "return Summed(op, added_data(op, classes, own))",
        "return Summed(op)",
        "data of the batch that is summed beside the examples' terms",
    ),
    Bug(
        "owners/owned_ops.py",
        "            owners.part_loops[loop.op.results[0]] = loop.trips\n",
        "            owners.part_loops.pop(loop.op.results[0], None)\n",
        "weights of the steps of any loop over parts of the batch",
    ),
    Bug(
        "owners/owned_ops.py",
        "if labels.is_conflicting and not new.is_conflicting and linearity.sums(op, 0):",
        "if labels.is_conflicting and linearity.sums(op, 0):",
        "what one example puts at a place that another says",
    ),
    Bug(
        "owners/owned_ops.py",
        "if labels.is_conflicting and not new.is_conflicting and linearity.sums(op, 0):",
        "if labels.is_conflicting and not new.is_conflicting:",
        "the largest of what several examples put at one place",
    ),
    Bug(
        "owners/owned_ops.py",
        "data = differs_by_index(owners, op, classes, labels)",
        "data = None",
        "data that examples look up at numbers of their own",
    ),
    Bug(
        "owners/owned_ops.py",
        "data = data or differs_where_put(owners, op, classes, labels)",
        "data = data or None",
        "data that is put at the places of some examples",
    ),
    Bug(
        "owners/owned_ops.py",
        "return data or differs_by_step(owners, op, classes, labels.inside(owners.steps).owners)",
        "return data",
        "data of earlier steps that is put beside each step's example",
    ),
    Bug(
        "owners/owned_ops.py",
        "if owners.contributions is None and any(c.data for c in classes):",
        "if owners.contributions and any(c.data for c in classes):",
        "data rearranged over the examples, laid beside them",
    ),
    Bug(
        "owners/owned_ops.py",
        "    if labels.is_conflicting:\n        name = ",
        "    if not classes:\n        name = ",
        "calls of which nothing is known, of all examples at once",
    ),
    Bug(
        "owners/owned_ops.py",
        "data = None if owners.contributions else differs_by_place(op, classes, found)",
        "data = None",
        "data of which each example meets another place, by factors",
    ),
    Bug(
        "owners/owned_ops.py",
        "data = None if owners.contributions else differs_by_step(owners, op, classes, found.met)",
        "data = None",
        "data of which each step's example meets another state",
    ),
    Bug(
        "owners/owned_ops.py",
        "if data and not all(isinstance(c, Summed) for c in results):",
        "if data and not results:",
        "a running sum of data that each example meets",
    ),
    Bug(
        "owners/owned_ops.py",
        "if linearity.is_linear(op, own | held) else rearranged(op, data)",
        "if linearity.is_linear(op, own) else rearranged(op, data)",
        "a running sum of data times each example, as one more term",
    ),
    Bug(
        "owners/owned_ops.py",
        "return Summed(op, data) if",
        "return Summed(op) if",
        "a running sum of data as a term of the gradient",
    ),
    Bug(
        "owners/owned_ops.py",
        "if labels.is_conflicting and found.adds_up(number):",
        "if labels.is_conflicting:",
        "whatever several examples make as a sum",
    ),
    Bug(
        "owners/owned_ops.py",
        '    if op.name in ("stablehlo.scatter", "stablehlo.dynamic_update_slice"):\n'
        "        return [classes[0]]\n",
        "",
        "examples behind an update without elements, as nobody's",
    ),
    Bug(
        "owners/factors.py",
        "            owners = over(owners, labels.axes(dim))\n",
        "            own_axes = labels.axes(dim)\n"
        "            owners = owners[tuple(slice(0, 1) if a in own_axes else slice(None)\n"
        "                                  for a in range(owners.ndim))]\n",
        "the first example for all along a dimension that no factor counts",
    ),
    Bug(
        "owners/factors.py",
        "single = not (self.apart == MANY).any()",
        "single = not (self.apart != self.apart).any()",
        "products of examples that are summed over features",
    ),
    Bug(
        "owners/factors.py",
        "return single and varying <= self.rule.reduced and linearity.sums(self.op, index)",
        "return single and varying <= self.rule.reduced",
        "the largest of all examples as a sum",
    ),
    Bug(
        "owners/factors.py",
        "blocked = [axis for f in rule.blocked for axis in frame.axes[f]]",
        "blocked = [axis for f in rule.blocked - rule.blocked for axis in frame.axes[f]]",
        "sorted, reversed and cumulated examples",
    ),
    Bug(
        "owners/factors.py",
        "side = None if from_left is None else (lead + 1 if from_left else lead)",
        "side = None if from_left is None else (lead if from_left else lead + 1)",
        "a solve along the right-hand side's examples",
    ),
    Bug(
        "owners/factors.py",
        "key = (op.attributes[ATTRIBUTE], kinds, tuple(operands), steps, op.name)",
        "key = (op.attributes[ATTRIBUTE], kinds, len(operands), steps, op.name)",
        "what the first op of a kind does, whatever the examples of the next are",
    ),
]
