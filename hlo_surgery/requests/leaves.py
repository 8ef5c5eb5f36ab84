"""Leaves of pytrees: which are traced, their stand-ins, and what modules hide: keys, weak types.

Ambient target: the device that a program is being traced for, as the mesh in use tells.

Example shards: over how many devices a call's examples lie, as arguments and the mesh tell.

Real flags: which examples of a call are no padding, as arguments or the function's maker say.

Trace context: JAX's configuration as far as tracing rests on it, as a cache key.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from typing import Any, TypeGuard, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import AxisType, NamedSharding

from hlo_surgery.requests.options import ROOFLINES, row_of

# No implementations' of generators names.
WEAK, NO_GRADIENT = "weak type", "float0"


def is_array(leaf: Any) -> bool:
    """Whether a leaf is traced: arrays and numbers are, flags and whatever else JAX cannot hold are
    static.
    """
    held = isinstance(
        leaf, Array | jax.ShapeDtypeStruct | np.ndarray | np.number | int | float | complex
    )
    return held and not isinstance(leaf, bool)


def kind_of(leaf: Any) -> Any:
    """Shape, dtype and weak type of an array, a number, or what stands for one."""
    return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)


def explicit_sharding(kind: Any) -> Any:
    """The sharding that is part of an array's type, on meshes with explicit axes; else None."""
    sharding = kind.sharding
    typed = isinstance(sharding, NamedSharding) and AxisType.Explicit in sharding.mesh.axis_types
    return sharding if typed else None


def typed(output: Any, sharding: Any) -> Any:
    """An output of a module with the sharding that is to be part of its type, if one is."""
    fits = sharding is not None and len(sharding.spec) == output.ndim
    return jax.sharding.reshard(output, sharding) if fits else output


def signature(leaf: Any) -> Any:
    """What a rewriting depends on: kinds of arrays, and whatever is static itself."""
    if not is_array(leaf):
        # True equals Fraction(1), and text what is made of a class of texts.
        return type(leaf), leaf
    kind = kind_of(leaf)
    return kind.shape, kind.dtype, kind.weak_type, explicit_sharding(kind)


def numbered(shape: Any) -> Any:
    """The tree with its leaves' numbers for leaves."""
    return jax.tree.unflatten(jax.tree.structure(shape), range(len(jax.tree.leaves(shape))))


def is_key(leaf: Any) -> TypeGuard[Array]:
    """Whether a leaf is of keys of `jax.random`."""
    return isinstance(leaf, Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def flat_array(leaf: Any) -> Any:
    """PRNG keys travel as the integers that hold them."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def returned_kind(output: Any) -> str:
    """What a module hides of an output: a PRNG key's implementation, a weak type, that it is the
    gradient of an integer; else "".
    """
    if jnp.result_type(output) == jax.dtypes.float0:
        return NO_GRADIENT
    if is_key(output):
        return str(jax.random.key_impl(output))
    return WEAK if jax.typeof(output).weak_type else ""


def as_returned(kind: str, output: Array) -> Any:
    """An output of a module as the function returned it."""
    if kind == NO_GRADIENT:
        return np.zeros(output.shape, jax.dtypes.float0)
    if kind == WEAK:
        primitive, params = _weak_conversion()
        return primitive.bind(output, **{**params, "new_dtype": output.dtype})
    return jax.random.wrap_key_data(output, impl=kind) if kind else output


@cache
def _weak_conversion() -> tuple[Any, dict[str, Any]]:
    """The op that makes arrays weakly typed, as JAX writes it; no public function does."""
    with jax.numpy_dtype_promotion("standard"):
        equations = jax.make_jaxpr(lambda n: n * 1.5)(3).eqns
    return next((e.primitive, e.params) for e in equations if e.params.get("weak_type"))


def ambient_target() -> str | None:
    """Its row among the rooflines, as of a mesh of `jax.set_mesh` for a topology that is not here;
    or of the only device here, where a plan may take a kernel for it.

    None where there is no mesh, it is of the devices that JAX uses anyway, or of a kind without a
    row.

    >>> with jax.set_mesh(jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])):
    ...     ambient_target() is None
    True
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        told: Any = jax.config
        return alone(jax.devices()) if told.jax_default_device is None else None
    row = mesh.abstract_device and row_of(mesh.abstract_device)
    return row if row in ROOFLINES and row != row_of(jax.devices()[0]) else None


def alone(devices: Sequence[Any]) -> str | None:
    """The row of a device that is the only one, and has kernels that were measured."""
    row = row_of(devices[0])
    measured = row in ROOFLINES and ROOFLINES[row].kernel_rate > 0
    return row if measured and len(devices) == 1 else None


def example_shards(arrays: Sequence[Any], axes: Mapping[int, int]) -> int:
    """Shards of the batch arguments along their example axes; `axes`: by number of the array.

    Of arrays that are being traced the type may tell; where it does not, the mesh of `jax.set_mesh`
    is taken to have the examples along all its axes that XLA partitions for.
    """
    found = [_shards_of(arrays[number], axis) for number, axis in axes.items()]
    counts = [count for count in found if count is not None]
    return math.lcm(*counts) if counts else _ambient()


def _shards_of(array: Any, axis: int) -> int | None:
    """None where nothing is known of an array's sharding."""
    is_traced = isinstance(array, Tracer)
    sharding: Any = kind_of(array).sharding if is_traced else getattr(array, "sharding", None)
    # A leaf of the host's; shapes from which one compiles may say where they will lie.
    if sharding is None:
        return 1
    if is_traced and AxisType.Explicit not in sharding.mesh.axis_types:
        return None
    return max(array.shape[axis] // max(sharding.shard_shape(array.shape)[axis], 1), 1)


def _ambient() -> int:
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return 1
    sizes = zip(mesh.axis_sizes, mesh.axis_types, strict=True)
    return math.prod(size for size, kind in sizes if kind != AxisType.Manual)


def flags_among(is_real: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The flags [B]: an array, an argument's position, or what a function picks of the arguments.

    Raises TypeError or ValueError where that is no array of one dimension.
    """
    found = _picked(is_real, args, kwargs)
    if isinstance(found, jax.ShapeDtypeStruct):
        return found
    try:
        flags = jnp.asarray(found)
    except (TypeError, ValueError):
        flags = jnp.zeros(())
    if flags.ndim != 1:
        raise TypeError(
            f"is_real must be or pick one array [B] of flags or 0/1, not {_shapes(found)}"
        )
    return flags


def _shapes(found: Any) -> str:
    """A pytree with the shapes of its arrays for these, which may be long."""
    return str(jax.tree.map(lambda x: jax.typeof(x).str_short() if is_array(x) else x, found))


def check_flags(is_real: Any, flags: Any) -> None:
    """Raises ValueError where flags that can be read hold what is neither 0 nor 1."""
    if isinstance(flags, Tracer) or not getattr(flags, "is_fully_addressable", True):
        return
    others = np.setdiff1d(np.asarray(flags), (0, 1))
    if others.size:
        where = f"is_real (argument {is_real})" if isinstance(is_real, int) else "is_real"
        raise ValueError(
            f"{where} holds {others[0]}; it is 1 or True for a real example, and 0 or False for "
            "padding (a weight belongs in the loss)"
        )


def _picked(is_real: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if callable(is_real):
        return cast(Callable[..., Any], is_real)(*args, **kwargs)
    if not isinstance(is_real, int) or isinstance(is_real, bool):
        return is_real
    if not -len(args) <= is_real < len(args):
        raise ValueError(
            f"is_real names argument {is_real}; {len(args)} positional ones were given"
        )
    return args[is_real]


def trace_context() -> Hashable:
    """Equal where `jax.jit` would not trace anew and every option of JAX has the value it had.

    JAX keeps what it traced of a function for each context: numerics, the mesh in use, axes that
    `jax.vmap` names. A few options that tracing rests on, such as the default generator of random
    numbers, are no part of that.

    >>> outside = trace_context()
    >>> with jax.default_matmul_precision("highest"):
    ...     outside == trace_context()
    False
    >>> outside == trace_context()
    True
    """
    return _nothing.trace().jaxpr, tuple(jax_options().values())


def jax_options() -> dict[str, Any]:
    """The value that every option of JAX has here, by name."""
    config: Any = jax.config
    return {name: getattr(config, name, None) for name in config.values}


@jax.jit
def _nothing() -> None:
    return
