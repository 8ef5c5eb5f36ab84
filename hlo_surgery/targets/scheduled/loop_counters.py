"""Loop counters: what decides how often a loop runs, and whether that only adds and subtracts."""

from collections.abc import Collection, Iterable

from hlo_surgery.targets.scheduled.program import Computation, Program

LINEAR = frozenset(
    [
        *(
            "parameter",
            "constant",
            "tuple",
            "get-tuple-element",
            "add",
            "subtract",
            "fusion",
            "compare",
        ),
        *("copy", "copy-start", "copy-done", "bitcast", "reshape", "opt-barrier"),
    ]
)


def deciding(condition: Computation, body: Computation) -> set[str]:
    """The names of all that the condition rests on, there and in the body, round after round."""
    names = _behind(condition, [condition.root.name])
    slots, done = _taken(condition, names), set[int]()
    if body.root.opcode != "tuple" or slots is None:
        return _all(condition, body)
    while slots - done:
        done |= slots
        names |= _behind(body, [body.root.operands[slot] for slot in done])
        if (more := _taken(body, names)) is None:
            return _all(condition, body)
        slots |= more
    return names | {body.root.name}


def _all(*computations: Computation) -> set[str]:
    return {each.name for computation in computations for each in computation.instructions}


def _behind(computation: Computation, names: Iterable[str]) -> set[str]:
    """The names with all that they are computed from."""
    needed = set(names)
    for each in reversed(computation.instructions):
        if each.name in needed:
            needed.update(each.operands)
    return needed


def _taken(computation: Computation, names: Collection[str]) -> set[int] | None:
    """The elements of what the loop carries that are used; None where all are."""
    (carried,) = computation.parameters
    users = [each for each in computation.users.get(carried.name, []) if each.name in names]
    if any(each.opcode != "get-tuple-element" for each in users):
        return None
    return {
        int(each.text.split("index=")[1].split(",")[0].split()[0])
        for each in users
        if "index=" in each.text
    }


def is_linear(program: Program, names: Collection[str], *computations: Computation) -> bool:
    """Whether what is named only adds, subtracts and, at last, compares."""
    each = [i for computation in computations for i in computation.instructions if i.name in names]
    inside = [
        program.computations[called] for i in each for role, called in i.calls if role == "calls"
    ]
    fused = all(is_linear(program, _all(computation), computation) for computation in inside)
    return fused and all(i.opcode in LINEAR for i in each)
