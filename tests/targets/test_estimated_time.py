"""Estimated time: trip counts, copies that queue on one channel, and what has no estimate."""

import jax
import jax.numpy as jnp
import pytest

from hlo_surgery.targets import trip_counts as trip_counts
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


# Up to 80 the next number is 80, and from then on one more.
AT_MOST = "%more = s32[] add(%i, %one)\n%next = s32[] maximum(%more, %big)"
CONDITIONS = (
    f"{until(7)}\n{until(5)}".replace("ROOT ", "").replace("%n", "%m", 2).replace("%c", "%d", 1)
)
FROM_CONDITION = {
    "less": (loop(until(7)), 7),
    "less, from 3": (loop(until(7), start=3), 4),
    "less, by twos": (loop(until(7), one=2), 4),
    "less or equal": (loop(until(7, "LE")), 8),
    "less or equal, by twos": (loop(until(7, "LE"), one=2), 4),
    "greater": (loop(until(0, "GT"), one=-1, start=7), 7),
    "greater or equal": (loop(until(0, "GE"), one=-2, start=7), 4),
    "until equal": (loop(until(6, "NE"), one=2), 3),
    "never": (loop(until(0)), 0),
    "endless": (loop(until(0, "GT"), start=1), None),
    "limit first": (
        loop("%n = s32[] constant(7)\nROOT %c = pred[] compare(%n, %i), direction=GT"),
        7,
    ),
    "subtracting": (loop(until(0, "GT"), step="%next = s32[] subtract(%i, %one)", start=5), 5),
    "not even": (loop(until(64), step="%next = s32[] multiply(%i, %one)", one=2, start=1), 6),
    "not even, then even": (
        loop(until(90), step=f"%big = s32[] constant(80)\n{AT_MOST}", start=3),
        11,
    ),
    "long": (loop(until(10_000_000), start=-20), 10_000_020),
    "to its type's end": (loop(until(2**31 - 1), one=3, start=2**31 - 301), 100),
    "beyond its type's end": (loop(until(2**31 - 1), one=3, start=2**31 - 299), None),
    "in 8 bits": (
        loop(
            "%n = u8[] constant(3)\n%j = u8[] convert(%i)\nROOT %c = pred[] compare(%n, %j), "
            "direction=NE",
            start=5,
        ),
        254,
    ),
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


def test_the_slowest_branch_counts():
    branch = "%p = f32[256]{0} parameter(0)\nROOT %r = f32[256]{0} negate(%p), "
    read = program(
        """
        %i = s32[] parameter(0)
        %x = f32[256]{0} parameter(1)
        ROOT %y = f32[256]{0} conditional(%i, %x, %x), branch_computations={%one, %two}""",
        computation("one", branch + cycles(80)),
        computation("two", branch + cycles(30)),
    )
    assert estimated_cycles(read, UNHINDERED) == 80


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
