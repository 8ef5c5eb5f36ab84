"""Pipelines: microbatches go from stage to stage, so that at a step each stage has another one, or
none. One example after the other, through all layers, is the oracle.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import hlo_surgery as hs

STAGES, MICROBATCHES, SIZE, WIDTH = 3, 4, 2, 5
B, STEPS = MICROBATCHES * SIZE, MICROBATCHES + STAGES - 1
RNG = np.random.default_rng(0)
PARAMS = {
    "w": RNG.normal(size=(STAGES, WIDTH, WIDTH)).astype(np.float32) / 2,
    "b": RNG.normal(size=(STAGES, WIDTH)).astype(np.float32),
    "head": RNG.normal(size=WIDTH).astype(np.float32),
}
X = RNG.normal(size=(B, WIDTH)).astype(np.float32)
Y = RNG.normal(size=B).astype(np.float32)
STATISTICS = {
    "each": hs.per_example(),
    "norms": hs.norms(),
    "clipped": hs.clipped_mean(0.5),
    "square": hs.second_moment(),
}


def layer(h, w, b):
    return jnp.tanh(h @ w + b)


def through_stages(p, state):
    return jax.vmap(layer)(state, p["w"], p["b"])


def concatenated(state, new):
    return jnp.concatenate([new[None], state[:-1]])


def rolled(state, new):
    return jnp.roll(state, 1, 0).at[0].set(new)


def written_out(shift, p, x):
    """A register of stages in a Python loop."""
    state, outputs = jnp.zeros((STAGES, SIZE, WIDTH)), []
    for step in range(STEPS):
        new = x[step] if step < MICROBATCHES else jnp.zeros((SIZE, WIDTH))
        state = through_stages(p, shift(state, new))
        outputs.append(state[-1])
    return jnp.stack(outputs[STAGES - 1 :])


def scanned(shift, p, x):
    """A register of stages in a scan."""

    def step(state, new):
        state = through_stages(p, shift(state, new))
        return state, state[-1]

    fed = jnp.concatenate([x, jnp.zeros((STAGES - 1, SIZE, WIDTH))])
    return lax.scan(step, jnp.zeros((STAGES, SIZE, WIDTH)), fed)[1][STAGES - 1 :]


def shifted_behind(p, x):
    """A register in a scan, which is shifted once its stages have run."""

    def step(state, new):
        made = through_stages(p, state.at[0].set(new))
        return jnp.roll(made, 1, 0), made[-1]

    fed = jnp.concatenate([x, jnp.zeros((STAGES - 1, SIZE, WIDTH))])
    return lax.scan(step, jnp.zeros((STAGES, SIZE, WIDTH)), fed)[1][STAGES - 1 :]


def fed_to_the_first(stage, x, number, state):
    """What a stage takes: a microbatch, the last one again behind it; or what it was handed."""
    fed = lax.dynamic_index_in_dim(x, jnp.minimum(number, MICROBATCHES - 1), 0, False)
    return jnp.where(stage == 0, fed, state)


def mesh_of(**sizes):
    kinds = (AxisType.Auto,) * len(sizes)
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds)


def on_a_grid(p, x):
    """Stages along one axis of a mesh, the last of which hands nothing on; examples along both its
    microbatches and the other axis.
    """
    onward = [(k, k + 1) for k in range(STAGES - 1)]

    def body(p, x):
        own, stage = jax.tree.map(lambda a: a[0], p), lax.axis_index("stage")

        def step(state, number):
            made = layer(fed_to_the_first(stage, x, number, state), own["w"], own["b"])
            return lax.ppermute(made, "stage", onward), made

        _, made = lax.scan(step, jnp.zeros(x.shape[1:]), jnp.arange(STEPS))
        return lax.psum(jnp.where(stage == STAGES - 1, made[STAGES - 1 :], 0.0), "stage")

    return mapped(body, mesh_of(data=SIZE, stage=STAGES), P(None, "data"), p, x)


def mapped(body, mesh, examples, p, x):
    layers = {"w": p["w"], "b": p["b"]}
    specs = (jax.tree.map(lambda _: P("stage"), layers), examples)
    over = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=examples, check_vma=False)
    return over(layers, x)


def on_devices(in_scan, p, x):
    """A stage on each device, which hands on what it made, as GPipe schedules it."""
    onward = [(k, (k + 1) % STAGES) for k in range(STAGES)]

    def body(p, x):
        own, stage = jax.tree.map(lambda a: a[0], p), lax.axis_index("stage")

        def step(carry, number):
            state, outputs = carry
            made = layer(fed_to_the_first(stage, x, number, state), own["w"], own["b"])
            place = jnp.maximum(number - (STAGES - 1), 0)
            before = lax.dynamic_index_in_dim(outputs, place, 0, False)
            kept = jnp.where(number >= STAGES - 1, made, before)
            outputs = lax.dynamic_update_index_in_dim(outputs, kept, place, 0)
            return (lax.ppermute(made, "stage", onward), outputs), None

        carry = jnp.zeros((SIZE, WIDTH)), jnp.zeros((MICROBATCHES, SIZE, WIDTH))
        if in_scan:
            carry, _ = lax.scan(step, carry, jnp.arange(STEPS))
        else:
            for number in range(STEPS):
                carry, _ = step(carry, jnp.int32(number))
        return lax.psum(jnp.where(stage == STAGES - 1, carry[1], 0.0), "stage")

    return mapped(body, mesh_of(stage=STAGES), P(), p, x)


FORMS = {
    "a register": partial(written_out, concatenated),
    "a register that is rolled": partial(written_out, rolled),
    "a register in a scan": partial(scanned, concatenated),
    "a rolled register in a scan": partial(scanned, rolled),
    "a register that is shifted behind": shifted_behind,
    "devices": partial(on_devices, False),
    "devices in a scan": partial(on_devices, True),
    "devices of a grid": on_a_grid,
}


def loss(form, p, x, y):
    found = form(p, x.reshape(MICROBATCHES, SIZE, WIDTH)).reshape(B, WIDTH)
    return jnp.mean((found @ p["head"] - y) ** 2)


def own_gradients():
    def one(p, x, y):
        for stage in range(STAGES):
            x = layer(x, p["w"][stage], p["b"][stage])
        return (x @ p["head"] - y) ** 2

    return jax.vmap(jax.grad(one), (None, 0, 0))(PARAMS, X, Y)


def found_of(name):
    """The statistics; those of devices by a module lowered for a mesh of none, run on one."""
    function = partial(loss, FORMS[name])
    if "devices" not in name:
        return hs.grad(function, batch_argnums=(1, 2), statistics=STATISTICS)(PARAMS, X, Y)[1]
    traced = jax.jit(jax.grad(function)).trace(PARAMS, X, Y)
    text = traced.lower(lowering_platforms=("cpu",)).as_text(debug_info=True)
    module = hs.rewrite_module(text, batch=["x", "y"], statistics=STATISTICS)
    outputs = module.call(*jax.tree.leaves((PARAMS, X, Y)))
    leaves = dict(zip([port.name for port in module.outputs], outputs, strict=True))
    of = {name: {leaf: leaves.get(f"{name}/['{leaf}']") for leaf in PARAMS} for name in STATISTICS}
    return of | {"norms": leaves["norms"]}


@pytest.mark.parametrize("name", FORMS)
def test_each_stage_has_its_microbatch(name):
    each = own_gradients()
    norms = np.linalg.norm(np.hstack([g.reshape(B, -1) for g in jax.tree.leaves(each)]), axis=1)
    scales = np.minimum(1, 0.5 / norms)
    expected = {
        "each": each,
        "norms": norms,
        "clipped": jax.tree.map(lambda g: np.tensordot(scales, g, 1) / B, each),
        "square": jax.tree.map(lambda g: np.mean(np.square(g), 0), each),
    }
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        found_of(name),
        expected,
    )


def mixed_in_a_stage(p, state):
    """The microbatches of all stages meet, as a norm over the register makes them."""
    return jax.vmap(layer)(state, p["w"], p["b"]) / (1 + jnp.mean(state**2))


@pytest.mark.parametrize("form", [written_out, scanned])
def test_microbatches_that_meet_in_the_register_are_refused(form, monkeypatch):
    monkeypatch.setitem(globals(), "through_stages", mixed_in_a_stage)
    function = partial(loss, partial(form, concatenated))
    with pytest.raises(hs.Refusal, match="of the whole batch, rearranged over"):
        hs.grad(function, batch_argnums=(1, 2), statistics=hs.norms())(PARAMS, X, Y)


def skewed(state, new):
    """Each stage takes what the one before it had, and a little of its own."""
    return concatenated(state, new) + 0.1 * state


def test_stages_that_keep_what_they_had_mix_microbatches():
    function = partial(loss, partial(scanned, skewed))
    with pytest.raises(hs.Refusal):
        hs.grad(function, batch_argnums=(1, 2), statistics=hs.norms())(PARAMS, X, Y)
