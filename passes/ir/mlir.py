"""The one door to `jaxlib.mlir`: its names, one context, and IR operations that passes share.

Closure: what is reached from some values by going on, each value once.
"""

import functools
import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar, cast

from jax.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import chlo, func
from jaxlib.mlir.dialects import sdy as _sdy
from jaxlib.mlir.dialects import stablehlo as _stablehlo

__all__ = [
    "Attributes",
    "Block",
    "Module",
    "Operation",
    "Operations",
    "Shape",
    "Value",
    "Values",
    "chlo",
    "func",
    "ir",
    "passmanager",
    "sdy",
    "stablehlo",
]

Operation: TypeAlias = ir.Operation
Value: TypeAlias = ir.Value[Any]
Values: TypeAlias = Sequence[Value]
Operations: TypeAlias = Sequence[Operation]
Attributes: TypeAlias = dict[str, ir.Attribute]
Shape: TypeAlias = tuple[int, ...]
Block: TypeAlias = ir.Block
Module: TypeAlias = ir.Module


# Their stubs lack most of what they have.
sdy: Any = _sdy
stablehlo: Any = _stablehlo
CONTROL_FLOW = frozenset(["stablehlo.while", "stablehlo.case", "stablehlo.if"])
BARRIER = "stablehlo.optimization_barrier"


@functools.cache
def context() -> ir.Context:
    """The context of all modules of the process, so that ops can move between modules."""
    made = jax_mlir.make_ir_context()
    with made:
        stablehlo.register_stablehlo_passes()
    return made


def parse(source: str | bytes) -> Module:
    """MLIR text, bytecode, or a StableHLO portable artifact, as a module. Raises ValueError with
    MLIR's message.
    """
    with context():
        if isinstance(source, bytes) and is_portable_artifact(source):
            return stablehlo.deserialize_portable_artifact(context(), source)
        try:
            return ir.Module.parse(source)
        except ir.MLIRError as error:
            raise ValueError(" ".join(str(error).split())) from None


@functools.cache
def _kernel_context() -> ir.Context:
    """A context of its own: what kernels are made of is no dialect of the modules around them."""
    from jaxlib.mosaic.python import tpu  # pyright: ignore

    made = ir.Context()
    made.allow_unregistered_dialects = True
    cast(Any, tpu).register_dialect(made)
    return made


def parse_kernel(body: bytes) -> Module | None:
    """The module of a Mosaic kernel, to be read only; None where it is none of this version's."""
    with _kernel_context(), ir.Location.unknown():
        try:
            return ir.Module.parse(body)
        except ir.MLIRError:
            return None


def is_bytecode(source: bytes) -> bool:
    """Whether these bytes begin as MLIR bytecode does; a portable artifact is one kind of it."""
    return source[:4] == b"ML\xefR"


def bytecode_producer(source: bytes) -> str:
    """The maker in bytecode, `MLIR19.0.0git` or `StableHLO_v1.2.3`, after its version; or ""."""
    name = source[5:64].split(b"\0")[0] if is_bytecode(source) else b""
    return name.decode(errors="replace")


def is_portable_artifact(source: bytes) -> bool:
    """Whether these bytes begin as a StableHLO portable artifact does."""
    return bytecode_producer(source).startswith("StableHLO_v")


def clone(module: Module) -> Module:
    """An independent copy of a module."""
    with context():
        return ir.Module.parse(to_bytecode(module))


def to_bytecode(module: Module) -> bytes:
    """The module in MLIR bytecode, source locations included."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def to_text(module: Module) -> str:
    """The module as text, source locations included."""
    return cast(str, module.operation.get_asm(enable_debug_info=True))


def run_passes(module: Module, *passes: str) -> None:
    """Run MLIR passes on the module, in order. It is verified where it is read and compiled."""
    if passes:
        with context(), ir.Location.unknown():
            manager = passmanager.PassManager.parse(f"builtin.module({','.join(passes)})")
            manager.enable_verifier(False)
            manager.run(module.operation)


def main_function(module: Module) -> func.FuncOp:
    """The module's entry: the function `main`, or the only public one."""
    functions = [op for op in module.body.operations if isinstance(op, func.FuncOp)]
    named = [f for f in functions if f.name.value == "main"]
    public = [
        f for f in functions if text_attribute(f.operation, "sym_visibility") in ("", "public")
    ]
    candidates = named or public
    if len(candidates) != 1:
        raise ValueError(
            f"the module has no function @main, but {len(candidates)} public functions; one is "
            "needed"
        )
    return candidates[0]


def body(function: func.FuncOp) -> Block:
    """The one block of a function of a StableHLO module."""
    return cast(Block, function.regions[0].blocks[0])


def blocks(op: Operation) -> list[Block]:
    """The block of each region of an op of a StableHLO module."""
    return [region.blocks[0] for region in op.regions]


def operations(block: Block) -> list[Operation]:
    """The block's ops as plain operations, the terminator last."""
    return [op.operation for op in block.operations]


def nested_operations(op: Operation) -> list[Operation]:
    """All ops inside the regions of an op, outermost first. They do not keep their module alive."""
    found: Operations = []
    # Looked up once, and not for each of many thousands of ops.
    add, onwards = found.append, ir.WalkResult.ADVANCE

    def met(each: Operation) -> ir.WalkResult:
        add(each)
        return onwards

    op.walk(met, ir.WalkOrder.PRE_ORDER)
    return found[1:]


def operations_within(block: Block) -> list[Operation]:
    """All ops of a function's one block, and those inside their regions, outermost first."""
    owner: Any = block.owner
    return nested_operations(owner.operation)


def all_operations(module: Module) -> list[Operation]:
    """All ops of a module, outermost first."""
    return nested_operations(module.operation)


def op_names(module: Module) -> set[str]:
    """The names of all ops of a module."""
    return {op.name for op in all_operations(module)}


def replace(op: Operation, values: Values) -> None:
    """Use other values in place of an op's results, and erase it."""
    for result, value in zip(op.results, values, strict=True):
        result.replace_all_uses_with(value)
    op.erase()


def rename(op: Operation, name: str, attributes: Attributes) -> Operation:
    """An op of another name with the same operands and types of results, in its place."""
    with context(), op.location, ir.InsertionPoint(op):
        kinds = [result.type for result in op.results]
        made = ir.Operation.create(name, kinds, operands(op), attributes)
    replace(op, results(made))
    return made


def enclosing_loops(op: Operation) -> list[Operation]:
    """The loops around an op, innermost first."""
    found: Operations = []
    around = cast(Any, op).parent
    while around is not None:
        found += [around.operation] if around.operation.name == "stablehlo.while" else []
        around = around.operation.parent
    return found


def loops_around(value: Value) -> list[Operation]:
    """The loops that a value is made or carried in, innermost first."""
    op = defining_operation(value)
    if op is not None:
        return enclosing_loops(op)
    # The terminator lies where the arguments do.
    return enclosing_loops(return_operation(cast(Block, value.owner)))


def defining_operation(value: Value) -> Operation | None:
    """The op that makes this value, or None for a block argument."""
    owner: Any = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def made_by(value: Value, *names: str) -> Operation | None:
    """The op that makes this value, if it is of one of these names."""
    op = defining_operation(value)
    return op if op is not None and op.name in names else None


def operands(op: Operation) -> list[Value]:
    """The op's operands."""
    return list(op.operands)


def results(op: Operation) -> list[Value]:
    """The op's results."""
    return list(op.results)


def users(value: Value) -> list[Operation]:
    """The ops that take a value, one of them for each time it does."""
    return [cast(Any, use.owner).operation for use in value.uses]


def captured(op: Operation) -> Values:
    """Values from outside that the op's regions use: like operands, but not listed among them."""
    if not len(op.regions):
        return []
    ops = nested_operations(op)
    inside = set(_made_in(op, ops))
    used = dict.fromkeys(v for each in ops for v in each.operands)
    return [v for v in used if v not in inside]


def taken(op: Operation) -> Values:
    """The op's operands, and what its regions use from outside."""
    return [*op.operands, *captured(op)]


def made_of(value: Value) -> Values:
    """What the op that makes a value takes; nothing, of a block's argument."""
    op = defining_operation(value)
    return [] if op is None else taken(op)


def values_within(op: Operation) -> Values:
    """The arguments of all blocks in an op's regions, and what their ops result in."""
    return _made_in(op, nested_operations(op))


def _made_in(op: Operation, ops: Operations) -> Values:
    blocks = [b for each in (op, *ops) for region in each.regions for b in region.blocks]
    arguments = [argument for b in blocks for argument in b.arguments]
    return [*arguments, *(result for each in ops for result in each.results)]


def shape(value: Value) -> Shape:
    """The sizes of a ranked tensor value; () for anything else (tokens, tuples)."""
    kind = value.type
    return tuple(kind.shape) if isinstance(kind, ir.RankedTensorType) else ()


def is_token(value: Value) -> bool:
    """Whether the value is no array, but orders the effects of the ops that take and return it."""
    with context():
        return value.type == stablehlo.TokenType.get()


def element_type(value: Value) -> ir.Type | None:
    """The element type of a tensor value."""
    kind = value.type
    return kind.element_type if isinstance(kind, ir.RankedTensorType) else None


def is_inexact(value: Value) -> bool:
    """Whether it holds floats or complex numbers: where sums are sums, not counts or bits."""
    return _holds_inexact(value.type)


# Asked of many thousands of values, of a few types.
@functools.cache
def _holds_inexact(kind: ir.Type) -> bool:
    inexact = ir.FloatType | ir.ComplexType
    return isinstance(kind, ir.RankedTensorType) and isinstance(kind.element_type, inexact)


def is_complex(value: Value) -> bool:
    """Whether the value holds complex numbers."""
    return isinstance(element_type(value), ir.ComplexType)


def is_at_least_float32(value: Value) -> bool:
    """Whether sums of this value's elements are precise enough in its own element type."""
    return isinstance(element_type(value), ir.F32Type | ir.F64Type)


def attribute_names(op: Operation) -> list[str]:
    """The names of the op's attributes."""
    return [getattr(entry, "name", entry) for entry in cast(Any, op.attributes)]


def attributes(op: Operation) -> Attributes:
    """The op's attributes by name. Raises TypeError of a constant of complex numbers, which the
    bindings cannot hold.
    """
    found = cast(Any, op.attributes)
    return {name: found[name] for name in attribute_names(op)}


def drop_attributes(op: Operation, names: Iterable[str]) -> None:
    """Drop those of these attributes that an op has."""
    held = op.attributes
    # Half of all ops have none.
    for name in names if len(held) else ():
        if name in held:
            del held[name]


def tensor_type(value: Value, shape: Sequence[int]) -> ir.Type:
    """The type of a tensor of a value's elements, of another shape."""
    return ir.RankedTensorType.get(shape, cast(ir.Type, element_type(value)))


def text_attribute(op: Operation, name: str) -> str:
    """A string attribute of an op, or "" where it has none."""
    return str(cast(Any, op.attributes[name]).value) if name in op.attributes else ""


def entries(op: Operation, name: str) -> list[Any]:
    """The entries of an array attribute of an op; none where it has none."""
    return list(cast(Any, op.attributes[name])) if name in op.attributes else []


def return_operation(block: Block) -> Operation:
    """The block's terminator."""
    found: Any = block.operations
    return found[len(found) - 1].operation


def returned(block: Block) -> list[Value]:
    """What the block's terminator takes."""
    return operands(return_operation(block))


def enclosing_function(op: Operation) -> func.FuncOp:
    """The function that an op is in, however deep."""
    found = cast(Any, op)
    while found.operation.name != "func.func":
        found = found.operation.parent
    return cast(func.FuncOp, found.operation.opview)


Node = TypeVar("Node")


def closure(starts: Iterable[Node], following: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """The starts and all that follows them, step by step.

    >>> sorted(closure([6], lambda n: [n // 2] if n else []))
    [0, 1, 3, 6]
    """
    pending = list(starts)
    found = set(pending)
    while pending:
        new = [v for v in dict.fromkeys(following(pending.pop())) if v not in found]
        found.update(new)
        pending += new
    return found
