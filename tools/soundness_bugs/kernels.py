"""Bugs in what shows of a kernel which examples it keeps apart, and in what is declared of one."""

from tools.soundness_bugs.bug import Bug

FILE = "dataflow/mosaic_kernels.py"
ATTENTION = "dataflow/fused_attention.py"

KERNELS = [
    Bug(
        "normalise/devices/varying.py",
        "or is_known_kernel(op)",
        'or mlir.text_attribute(op, "call_target_name") == "tpu_custom_call"',
        "a kernel that may talk to other devices, called for all of them",
    ),
    Bug(
        FILE,
        "(parallel[g] or _is_new(g, held))",
        "True",
        "a grid that goes on from example to example",
    ),
    Bug(
        FILE,
        "if not scratch else None",
        "",
        "a grid whose iterations take what others kept in scratch memory",
    ),
    Bug(
        FILE,
        "return all(user.name in LOADS for window in stays for user in mlir.users(window))",
        "return all(user.name for window in stays for user in mlir.users(window))",
        "a grid whose iterations take what others left in a window that stays",
    ),
    Bug(
        FILE,
        "if _is_own(g, known) and (",
        "if (",
        "blocks that rest on an example's number otherwise",
    ),
    Bug(
        FILE,
        "return once and not any(index in places for places in rest)",
        "return once",
        "blocks of another order than the grid's",
    ),
    Bug(
        FILE,
        "return once and not any(",
        "return not any(",
        "an example's place along two dimensions",
    ),
    Bug(
        FILE,
        "return (index if bound == 1 else None), reached",
        "return index, reached",
        "windows of several examples",
    ),
    Bug(
        FILE,
        'if set(said) != {"custom_call_config"} or not KNOWN.issuperset(call):',
        'if set(said) != {"custom_call_config"}:',
        "a kernel that may talk to other devices",
    ),
    Bug(
        FILE,
        "if any(i is not None and kernel.grid[i] != size for i, size in pairs):",
        "if not pairs:",
        "a grid that takes a part of the examples",
    ),
    Bug(
        FILE,
        "blocked = frozenset(range(len(sizes))) - frozenset(numbers.values())",
        "blocked = frozenset()",
        "examples along what a kernel takes as a whole",
    ),
    Bug(
        "dataflow/sharding_rules.py",
        "frozenset(range(len(along), len(sizes)))",
        "frozenset()",
        "dimensions of which nothing was declared",
    ),
    Bug(
        "dataflow/sharding_rules.py",
        "if axes[number] == dim), len(sizes))",
        "if dim == 0), len(sizes))",
        "an operand or result of which it is declared that it has no examples' axis",
    ),
    Bug(
        ATTENTION,
        "return 0 if batch and shape[:1] == batch else None",
        "return 0",
        "a bias's gradient, that is summed over the batch",
    ),
    Bug(
        ATTENTION,
        "return config if rest <= KNOWN else None",
        "return config",
        "attention of which something is said that is not known",
    ),
    Bug(
        ATTENTION,
        "return bool(products) and batched and not packed",
        "return bool(products) and not packed",
        "attention with a product across the batch",
    ),
    Bug(
        ATTENTION,
        "return bool(products) and batched and not packed",
        "return bool(products) and batched",
        "attention over examples packed into a row",
    ),
    Bug(
        ATTENTION,
        "if lengths is None or given != count + lengths or not has_batch:",
        "if lengths is None or not has_batch:",
        "attention that takes more than is known",
    ),
    Bug(
        ATTENTION,
        "if lengths is None or given != count + lengths or not has_batch:",
        "if lengths is None or given != count + lengths:",
        "attention of keys of another batch than the queries'",
    ),
]
