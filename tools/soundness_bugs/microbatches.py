"""Bugs in what proves the steps of a loop to be batches of their own."""

from tools.soundness_bugs.bug import Bug

FINDING = "loops/microbatches.py"
SUMS = "loops/loop_sums.py"
AXES = "loops/microbatch_axes.py"

MICROBATCHES = [
    Bug(
        FINDING,
        "if not alone or not all(_holds_examples_alone(axes, value) for value in reached):",
        "if not alone:",
        "constants and other steps' examples in what a step adds",
    ),
    Bug(
        FINDING,
        "if not alone or not all(",
        "if not all(",
        "a term without examples, beside those of the examples",
    ),
    Bug(
        FINDING,
        "whole = not known.offset and not",
        "whole = not",
        "a constant that is added to what a single example owns",
    ),
    Bug(
        FINDING,
        " and not isinstance(axes.of(value), Mixed)",
        "",
        "what a step adds of another step's example",
    ),
    Bug(
        SUMS,
        "if values is None or not starts:",
        "if values is None:",
        "a sum that starts at a constant",
    ),
    Bug(
        SUMS,
        "if goes_on and len(list(returned.uses)) == 1 else None",
        "if len(list(returned.uses)) == 1 else None",
        "a loop within that goes on from what is no sum",
    ),
    Bug(
        SUMS,
        "if goes_on and len(list(returned.uses)) == 1 else None",
        "if goes_on else None",
        "a sum that is handed on and looked at as well",
    ),
    Bug(
        FINDING,
        "if not nest or any(has_constant_part(owners, gradient) for gradient in summed):",
        "if not nest:",
        "a constant that is added in a step, or behind the loop",
    ),
    Bug(
        FINDING,
        "if members is None or not reached.isdisjoint(mlir.captured(loop)):",
        "if members is None:",
        "terms of the whole batch that each step takes",
    ),
    Bug(
        SUMS,
        "or not flat or not behind <= known:",
        "or not flat:",
        "terms of the whole batch before the loop",
    ),
    Bug(
        SUMS,
        "if not added.keys().isdisjoint(constants) or not all(",
        "if not all(",
        "a sum that is a constant as well",
    ),
    Bug(
        SUMS,
        "not in mlir.CONTROL_FLOW and alone and any(map(is_sum, known))",
        "not in mlir.CONTROL_FLOW",
        "terms of the whole batch behind the loop",
    ),
    Bug(
        FINDING,
        "return all(map(_is_whole, axes.at(op)))",
        "return True",
        "operands that hold other steps' examples",
    ),
    Bug(
        FINDING,
        "isinstance(axes.of(v), Summed) or is_splat(v, 0) for v in ties(value)",
        "True for v in ties(value)",
        "an inner loop that starts at a constant",
    ),
    Bug(
        FINDING,
        "return is_sum(known) or is_splat(value, 0)",
        "return True",
        "a constant added in each step",
    ),
    Bug(
        AXES,
        "members if np.array_equal(np.sort(members.ravel()), np.arange(size)) else None",
        "members",
        "examples that are in two steps",
    ),
    Bug(
        AXES,
        "if elsewhere.any() or (local != local[:1]).any():",
        "if elsewhere.any():",
        "examples that lie now in one way, now in another",
    ),
    Bug(
        "rewriting/by_microbatch.py",
        "uneven = asking.examples.real is not None and SPREADS in known",
        "uneven = False",
        "spreads of parts with unequal numbers of real examples",
    ),
    Bug(
        "rewriting/second_pass.py",
        "answers += of([weight[own] for weight in call.arrays], finite)",
        "answers += of([weight[: found.size] for weight in call.arrays], finite)",
        "weights of other steps' examples",
    ),
    Bug(
        "owners/shares/step_weights.py",
        "    enough = len(by_step) + 1",
        "    enough = 2",
        "constants that a step hands on to a later one",
    ),
    Bug(
        "owners/shares/step_weights.py",
        "        if not are_alike(brought, last):",
        "        if False:",
        "constants that steps bring in different parts",
    ),
    Bug(
        "owners/shares/step_weights.py",
        "    if counted_loop(owners, loop) is None:\n        return [None",
        "    if False:\n        return [None",
        "constants as often as a loop within a step runs",
    ),
    Bug(
        "owners/shares/step_weights.py",
        "    return None if varies(owners.varying, over, value) else {",
        "    return {",
        "constants that vary with the step",
    ),
    Bug(
        "owners/shares/step_weights.py",
        "    return not any(varies(owners.varying, over, v) for t",
        "    return True or any(varies(owners.varying, over, v) for t",
        "constants with a weight of each step",
    ),
    Bug(
        "owners/shares/step_weights.py",
        "        return [op.operands[0]]\n",
        "        return []\n",
        "constants that some steps bring by the choice of a branch",
    ),
    Bug(
        "owners/shares/weighted_terms.py",
        "return scaled(operands[1 - number], numbers if is_product else 1 / numbers)",
        "return operands[1 - number]",
        "constants of a sum that is scaled",
    ),
    Bug(
        "owners/shares/step_constants.py",
        "    return [sums[value]] if value in sums else next_terms(owners, value)",
        "    return [] if value in sums else next_terms(owners, value)",
        "constants of a sum that is handed on as it was before the step",
    ),
]
