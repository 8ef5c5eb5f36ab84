"""Estimated time: trip counts, copies that queue on one channel, and what has no estimate."""

import jax
import jax.numpy as jnp
import pytest

from hlo_surgery.targets import trip_counts as trip_counts
from hlo_surgery.targets.executed import flops
from hlo_surgery.targets.live_memory import staircase
from hlo_surgery.targets.program import parse
from hlo_surgery.targets.times import estimated_cycles, without_estimate
from hlo_surgery.targets.trip_counts import executed
from tests.targets.scheduled_programs import computation, loop, program, until

UNHINDERED = 1e30


def cycles(count):
    return f'backend_config={{"estimated_cycles":"{count}"}}'


def trips(read):
    """How often the loop's body runs, None where that is not known."""
    [times] = {each.times for each in executed(read) if each.instruction.name == "y"}
    [unknown] = {each.unknown for each in executed(read) if each.instruction.name == "w"}
    assert unknown == (times is None)
    return times


CONDITIONS = (
    f"{until(7)}\n{until(5)}".replace("ROOT ", "").replace("%n", "%m", 2).replace("%c", "%d", 1)
)
FROM_CONDITION = {
    "less": (loop(until(7)), 7),
    "less, by twos": (loop(until(7), one=2), 4),
    "less or equal": (loop(until(7, "LE")), 8),
    "greater": (loop(until(0, "GT"), one=-1, start=7), 7),
    "until equal": (loop(until(6, "NE"), one=2), 3),
    "endless": (loop(until(0, "GT"), start=1), None),
    "to its type's end": (loop(until(2**31 - 1), one=3, start=2**31 - 301), 100),
    "long": (loop(until(10**6), one=3), 333334),
    "two conditions": (loop(f"{CONDITIONS}\nROOT %b = pred[] and(%c, %d)"), 5),
    "by data": (loop("ROOT %c = pred[] custom-call(%i)"), None),
    "known to the compiler": (
        loop(until(7), text=', backend_config={"known_trip_count":{"n":"9"}}'),
        9,
    ),
}


@pytest.mark.parametrize("name", FROM_CONDITION)
def test_trip_counts(name):
    read, times = FROM_CONDITION[name]
    assert trips(read) == times


@pytest.mark.parametrize("rounds", [0, 1, 2, 7])
def test_a_loop_costs_its_rounds(rounds):
    read = loop(until(rounds), work=f"%y = f32[256]{{0}} negate(%x), {cycles(50)}")
    assert estimated_cycles(read, UNHINDERED) == rounds * 50


def test_what_has_no_estimate_is_listed_with_its_runs():
    gather = computation(
        "g",
        "%p = f32[9]{0} parameter(0)\n%i = s32[4]{0} parameter(1)\nROOT %g = f32[4]{0} gather(%p, "
        "%i)",
    )
    listed = without_estimate(
        program(
            f"""
            %x = f32[9]{{0}} parameter(0)
            %i = s32[4]{{0}} parameter(1)
            %f = f32[4]{{0}} fusion(%x, %i), kind=kCustom, calls=%g
            %s = f32[4]{{0}} sort(%f), to_apply=%less
            %n = f32[4]{{0}} negate(%s), {cycles(3)}
            %m = f32[4]{{0}} negate(%n), {cycles(2**63 - 1)}
            %r = f32[4]{{0}} all-reduce-start(%m), channel_id=1
            %d = f32[4]{{0}} all-reduce-done(%r)
            %c = f32[4]{{0}} custom-call(%d), custom_call_target="tpu_custom_call"
            %e = f32[4]{{0}} custom-call(), custom_call_target="AllocateBuffer"
            %k = s32[] add(%one, %one)
            %h = (f32[4]{{0:S(5)}}, f32[4]{{0}}, u32[]) copy-start(%c)
            ROOT %j = f32[4]{{0:S(5)}} copy-done(%h)""",
            gather,
        )
    )
    assert listed == {
        "gather": 1,
        "sort": 1,
        "negate": 1,
        "all-reduce": 1,
        "tpu_custom_call": 1,
        "copy": 1,
    }
    assert without_estimate(loop(until(7), work="%y = f32[256]{0} sort(%x)")) == {"sort": 7}


def test_scans_are_found_in_what_xla_compiles():
    def scanned(x, length):
        return jax.lax.scan(lambda c, _: (jnp.tanh(c @ c), None), x, None, length=length)[0]

    compiled = jax.jit(scanned, static_argnums=1).lower(jnp.ones((4, 4)), 7).compile()
    assert {each.times for each in executed(parse(compiled.as_text()))} == {1, 7}


def test_a_loop_by_data_is_not_known_in_what_xla_compiles():
    compiled = jax.jit(
        lambda x: jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2 + 1, x)
    ).lower(jnp.ones(4))
    read = parse(compiled.compile().as_text())
    assert [each.times for each in executed(read) if each.unknown] == [1]
    assert None in {each.times for each in executed(read)}


def total(read, count):
    return sum(
        each.times * count(read, each.computation, each.instruction) for each in executed(read)
    )


def struct(*shape, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype)


def mlp(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def convolutions(weights, x):
    first, second, third = weights
    dims = ("NHWC", "HWIO", "NHWC")
    x = jax.lax.conv_general_dilated(x, first, (1, 1), "SAME", dimension_numbers=dims)
    x = jax.lax.conv_general_dilated(
        x, second, (2, 2), "VALID", dimension_numbers=dims, feature_group_count=2
    )
    x = jax.lax.conv_general_dilated(
        x, third, (1, 1), "SAME", rhs_dilation=(2, 2), dimension_numbers=dims
    )
    return jnp.sum(x)


def pooled(x):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3), (1, 2, 2), "VALID")


KERNELS = [struct(3, 3, 4, 6), struct(3, 3, 3, 8), struct(3, 3, 8, 5)]
PROGRAMS = {
    "dense": (jax.grad(mlp), ([struct(64, 64)] * 3, struct(32, 64))),
    "batched": (lambda a, b: jnp.einsum("bij,bjk->bik", a, b), (struct(3, 5, 7), struct(3, 7, 11))),
    "convolutions": (convolutions, (KERNELS, struct(2, 12, 12, 4))),
    "their gradients": (jax.grad(convolutions), (KERNELS, struct(2, 12, 12, 4))),
    "pooling": (pooled, (struct(2, 9, 9),)),
    "sums": (lambda x: (x.sum(0), (x * x).sum()), (struct(50, 60),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_flops_are_those_that_xla_counts_where_nothing_loops(name):
    function, arguments = PROGRAMS[name]
    compiled = jax.jit(function).lower(*arguments).compile()
    assert total(parse(compiled.as_text()), flops) == pytest.approx(
        compiled.cost_analysis()["flops"], rel=1e-3
    )


@pytest.mark.parametrize("length", [2, 7])
def test_a_scan_computes_its_rounds(length):
    def scanned(x):
        return jax.lax.scan(lambda c, _: (jnp.tanh(c @ x), None), x, None, length=length)[0]

    read = parse(jax.jit(scanned).lower(struct(64, 64)).compile().as_text())
    assert total(read, flops) == pytest.approx(length * 2 * 64**3, rel=1e-3)


def live(read):
    return {step.instruction: step.bytes for step in staircase(read)}


def test_a_donated_argument_and_its_output_are_one():
    text = "%x = f32[256]{0} parameter(0)\nROOT %y = f32[256]{0} negate(%x)"
    assert live(program(text))["y"] == 2048
    assert live(program(text, header="input_output_alias={ {}: (0, {}, may-alias) }"))["y"] == 1024


def scanned_lm(params, tokens):
    def layer(h, w):
        scores = jax.nn.softmax(jnp.einsum("bld,bmd->blm", h @ w["q"], h))
        h = h + jnp.einsum("blm,bmd->bld", scores, h)
        return h + jax.nn.gelu(h @ w["up"]) @ w["down"], None

    h, _ = jax.lax.scan(layer, params["embedding"][tokens], params["layers"])
    logits = jax.nn.log_softmax(h @ params["embedding"].T)
    return -jnp.mean(jnp.take_along_axis(logits, tokens[..., None], -1))


LAYERS = {"q": struct(5, 128, 128), "up": struct(5, 128, 512), "down": struct(5, 512, 128)}
LM = ({"embedding": struct(1000, 128), "layers": LAYERS}, struct(4, 128, dtype="int32"))
GRADIENTS = {
    "mlp": (mlp, ([struct(256, 256)] * 3, struct(512, 256))),
    "scanned lm": (scanned_lm, LM),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_the_peak_is_what_xla_plans_on_cpu(name):
    """XLA lays some temporaries into outputs that are not made yet, and packs with gaps: within 3
    %.
    """
    function, arguments = GRADIENTS[name]
    compiled = jax.jit(jax.grad(function)).lower(*arguments).compile()
    memory = compiled.memory_analysis()
    planned = (
        memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    )
    peak = max(step.bytes for step in staircase(parse(compiled.as_text())))
    assert peak == pytest.approx(planned, rel=0.03)
    assert memory.temp_size_in_bytes > 0.3 * planned
