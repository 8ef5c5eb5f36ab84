"""Module: StableHLO with named arguments and outputs, loaded from anywhere; it runs and saves."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from jax import export
from jax.core import Tracer

from hlo_surgery.dumps import DUMPING, module_in_artifact, no_file, unreadable, write_atomically
from hlo_surgery.passes.dataflow.ancestors import is_splat, sources
from hlo_surgery.passes.emit.export import anywhere, carry, in_clean_config
from hlo_surgery.passes.emit.splice import STATISTIC
from hlo_surgery.passes.ir import mlir
from hlo_surgery.passes.ir.constants import kinds_of
from hlo_surgery.passes.ir.mlir import Value, ir
from hlo_surgery.passes.ir.modules import called
from hlo_surgery.passes.normalise.out_of_scope import HELP as SHAPES_HELP
from hlo_surgery.passes.normalise.out_of_scope import is_static, refuse_effects
from hlo_surgery.plan import Plan
from hlo_surgery.wording import counted

# XLA and MLIR recurse over nested regions on a stack of fixed size.
DEEPEST = 200
# MLIR writes each byte of a string that is not ASCII as two digits; `\\` is a backslash.
# What a call holds of a GPU's kernel is code, and no name.
CODE = re.compile(r'\b(?:ir|opaque) = "[^"]*"')
NOT_ASCII = re.compile(r"\\\\|((?:\\[89A-Fa-f][0-9A-Fa-f])+)")


@dataclass(frozen=True)
class Port:
    """An argument or an output: its name, or its position where it has none; shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def kind(self) -> str:
        """Dtype and shape: "float32[3, 5]"."""
        return f"{self.dtype}{list(self.shape)}"


class Module:
    """A StableHLO module. `plan` says how a rewritten one came about; it is None for any other.

    `arguments` and `outputs` are its ports, each with `name`, `shape` and `dtype`, in the order of
    `call`. `platform`: what it runs on, as JAX calls it; None is JAX's default. Made by `load` and
    `rewrite_module`.

    >>> text = "func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> { return %x : tensor<3xf32> }"
    >>> module = load(text)
    >>> module.call(np.ones(3, np.float32))[0].tolist()
    [1.0, 1.0, 1.0]
    """

    def __init__(
        self, code: mlir.Module, plan: Plan | None = None, platform: str | None = None
    ) -> None:
        self.code, self.plan, self.platform = code, plan, platform
        main = mlir.main_function(code)
        block = mlir.body(main)
        arguments: list[Value] = list(block.arguments)
        names = _told_apart([_argument_name(main, v, i) for i, v in enumerate(arguments)])
        outputs = mlir.returned(block)
        names += [_output_name(main, i) for i in range(len(outputs))]
        kinds = kinds_of([*arguments, *outputs])
        ports = [Port(name, *kind) for name, kind in zip(names, kinds, strict=True)]
        self.arguments = tuple(ports[: len(arguments)])
        self.outputs = tuple(ports[len(arguments) :])

    @cached_property
    def exported(self) -> export.Exported:
        """The module as a `jax.export.Exported` for its platform; its `call` composes with `jit`.

        Raises Refusal where the module calls its host back: only the process that lowered it could
        answer.
        """
        refuse_effects(self.code)
        return self._carried(on_mesh=False)

    def _carried(self, on_mesh: bool) -> export.Exported:
        platform = self.platform or jax.default_backend()
        return carry(self.code, self.arguments, self.outputs, platform, on_mesh=on_mesh)

    def _jitted(self, exported: export.Exported) -> Any:
        return jax.jit((anywhere(exported) if self.platform is None else exported).call)

    def call(self, *arrays: Any) -> list[jax.Array]:
        """Run the module on its flat arguments. Raises ValueError where their number, shapes or
        dtypes differ, TypeError inside of `jax.jit`.
        """
        self._check(arrays)
        return in_clean_config(lambda: list(self.jitted(*arrays)))

    @cached_property
    def jitted(self) -> Any:
        """The module, jitted, of its flat arguments, in the caller's own JAX configuration.

        Where it is for no platform in particular, it can be lowered for another than runs here.
        """
        return self._jitted(self.exported)

    @cached_property
    def on_mesh(self) -> Any:
        """`jitted`, its sharding constraints kept: for the devices of the mesh that they name."""
        return self._jitted(self._carried(on_mesh=True))

    def _check(self, arrays: Sequence[Any]) -> None:
        if len(arrays) != len(self.arguments):
            raise ValueError(
                f"the module takes {counted(len(self.arguments), 'argument')}, and {len(arrays)} "
                "were given"
            )
        if any(isinstance(array, Tracer) for array in arrays):
            raise TypeError(
                "a module's call takes arrays; inside of jax.jit use module.exported.call, which "
                "takes and returns what is traced"
            )
        for port, array in zip(self.arguments, arrays, strict=True):
            kind = f"{getattr(array, 'dtype', port.dtype)}{list(np.shape(array))}"
            if kind != port.kind:
                raise ValueError(f"argument {port.name} is {kind}; the module takes {port.kind}")

    def returns_zero(self, output: int) -> bool:
        """Whether an output is a constant zero, as the gradient of an unused parameter is."""
        return is_splat(mlir.returned(mlir.body(mlir.main_function(self.code)))[output], 0)

    @cached_property
    def statistics(self) -> tuple[int, ...]:
        """The outputs that an earlier rewriting has added, also of a file that it has written."""
        main, numbers = mlir.main_function(self.code), range(len(self.outputs))
        return tuple(i for i in numbers if _port_attribute(main, "res_attrs", i, STATISTIC))

    def sources(self) -> list[set[int]]:
        """The arguments that act on each output, or may."""
        block = mlir.body(mlir.main_function(self.code))
        found = sources(block)
        return [
            {i for i in range(len(self.arguments)) if found[v] >> i & 1}
            for v in mlir.returned(block)
        ]

    def text(self) -> str:
        """The module as MLIR text with source locations."""
        return mlir.to_text(self.code)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the module: text (`.mlir`), a `jax.export` artifact (`.jax_export`), else bytecode.

        The file is written under a temporary name and renamed, so that no half-written one is left
        behind.
        """
        write_atomically(Path(path), self._as_bytes(Path(path).suffix))

    def _as_bytes(self, suffix: str) -> bytes:
        if suffix in (".mlir", ".txt"):
            return self.text().encode()
        if suffix == ".jax_export":
            return bytes(self.exported.serialize())
        return mlir.to_bytecode(self.code)


Bytes = bytes | bytearray | memoryview
Source = Module | str | Bytes | os.PathLike[str]


def load(source: Source) -> Module:
    """A module from MLIR text or bytecode, a StableHLO portable artifact, a `jax.export` artifact,
    or a file of these.

    Raises ValueError with the reason where it is none of them, TypeError for any other object;
    Refusal where it runs on its host's effects in order.

    >>> text = "func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> { return %x : tensor<3xf32> }"
    >>> module = load(text)
    >>> module.arguments[0].shape
    (3,)
    """
    if isinstance(source, Module):
        return source
    if isinstance(source, os.PathLike):
        return _from_bytes(Path(source).read_bytes())
    if isinstance(source, str):
        return _from_bytes(source.encode() if _is_text(source) else Path(source).read_bytes())
    if not isinstance(source, Bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"a module is MLIR text, bytes, a path or a Module, not {type(source).__name__}; "
            f"{DUMPING}"
        )
    return _from_bytes(bytes(source))


def _is_text(source: str) -> bool:
    """Whether it is a module itself, and names no file. Raises ValueError where it is neither."""
    if "\n" in source or not source.strip():
        return True
    if os.path.isfile(source):
        return False
    # The main function of a module has braces around it.
    if "{" not in source:
        raise ValueError(no_file(source))
    return True


def _from_bytes(data: bytes) -> Module:
    if not data.strip():
        raise ValueError(
            "the module is empty; pass MLIR text, bytecode, a portable artifact or a jax.export "
            "artifact"
        )
    try:
        code = mlir.parse(data if mlir.is_bytecode(data) else _checked_text(data.decode()))
    except (ValueError, UnicodeDecodeError) as problem:
        code = _from_export(data, problem)
    _verify(code)
    _check_structure(code)
    return _checked(Module(code))


def _checked_text(text: str) -> str:
    """Raises ValueError where a string in a module's text, other than code, is no UTF-8."""
    for found in NOT_ASCII.finditer(CODE.sub("", text)):
        try:
            bytes.fromhex((found[1] or "").replace("\\", "")).decode()
        except UnicodeDecodeError:
            raise ValueError(
                f"the module holds a name that is no UTF-8: {found[0]}; dump it with other names"
            ) from None
    return text


def _check_structure(code: mlir.Module) -> None:
    """Raises ValueError where main has no body, calls end nowhere or in themselves, or regions nest
    too deep.
    """
    _checked_text(
        cast(str, code.operation.get_asm(enable_debug_info=True, large_elements_limit=16))
    )
    if _deepest_region(code.operation) > DEEPEST:
        raise ValueError(
            f"the module's regions are nested more than {DEEPEST} deep, which XLA cannot compile"
        )
    called(code)


def _deepest_region(op: mlir.Operation) -> int:
    """How many regions lie one in another."""
    depth, level = 0, [op]
    while level := [op for each in level for op in _inside(each) if len(op.regions)]:
        depth += 1
    return depth


def _inside(op: mlir.Operation) -> list[mlir.Operation]:
    return [each for region in op.regions for b in region.blocks for each in mlir.operations(b)]


def _verify(code: mlir.Module) -> None:
    try:
        valid = code.operation.verify()
    except mlir.ir.MLIRError as problem:
        raise ValueError(f"the module does not verify: {' '.join(str(problem).split())}") from None
    if not valid:
        raise ValueError("the module does not verify")


def _from_export(data: bytes, problem: Exception) -> mlir.Module:
    """A `jax.export` artifact holds the module among other things."""
    held = module_in_artifact(data)
    if held is None or not mlir.is_bytecode(held):
        raise ValueError(unreadable(data, str(problem))) from None
    try:
        return mlir.parse(held)
    except ValueError as damaged:
        raise ValueError(unreadable(held, str(damaged))) from None


def _checked(module: Module) -> Module:
    block = mlir.body(mlir.main_function(module.code))
    for kind, ports, values in (
        ("argument", module.arguments, block.arguments),
        ("output", module.outputs, mlir.returned(block)),
    ):
        for port, value in zip(ports, values, strict=True):
            if mlir.is_token(value):
                refuse_effects(module.code)
            if port.dtype == object:
                help = f": {SHAPES_HELP}" if not is_static(value.type) else ""
                said = f"{kind} {port.name} has type {value.type}"
                raise ValueError(f"{said}; only tensors of static shape are supported{help}")
    return module


def _argument_name(main: Any, argument: Any, number: int) -> str:
    """The name in its location, or, for what JAX adds in front, that in its attributes."""
    added = _port_attribute(main, "arg_attrs", number, "jax.global_constant")
    if added:
        return added
    location = argument.location
    return str(location.name_str) if isinstance(location, ir.NameLoc) else f"arg{number}"


def _told_apart(names: Sequence[str]) -> list[str]:
    """The names, but where all of several arguments are called the same, as by TensorFlow."""
    alike = len(names) > 1 and len(set(names)) == 1
    return [f"arg{i}" for i in range(len(names))] if alike else list(names)


def _output_name(main: Any, number: int) -> str:
    info = _port_attribute(main, "res_attrs", number, "jax.result_info")
    return f"result{number}" if info is None else re.sub(r"^result", "", info) or "result"


def _port_attribute(main: Any, ports: str, number: int, name: str) -> str | None:
    """A string attribute of one argument or result of main."""
    if ports not in main.attributes or number >= len(main.attributes[ports]):
        return None
    attributes = ir.DictAttr(main.attributes[ports][number])
    return str(cast(Any, attributes[name]).value) if name in attributes else None
