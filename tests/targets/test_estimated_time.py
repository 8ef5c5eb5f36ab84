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


def test_a_long_loop_that_is_not_even_is_not_known(monkeypatch):
    monkeypatch.setattr(trip_counts, "LONGEST", 100)
    step = f"%big = s32[] constant(1)\n{AT_MOST}"
    assert trips(loop(until(99), step=step)) == 99
    assert trips(loop(until(100), step=step)) is None


def split(condition, start, step):
    """A loop over a 64-bit counter as the compiler for TPU splits it: a low word, and a high one
    with its carry.
    """
    low, high = start % 2**32, start // 2**32 % 2**32
    body = computation(
        "body",
        f"""
        %p = (u32[], u32[], f32[256]{{0}}) parameter(0)
        %l = u32[] get-tuple-element(%p), index=0
        %h = u32[] get-tuple-element(%p), index=1
        %x = f32[256]{{0}} get-tuple-element(%p), index=2
        %sl = u32[] constant({step % 2**32})
        %sh = u32[] constant({step // 2**32 % 2**32})
        %one = u32[] constant(1)
        %nl = u32[] add(%l, %sl)
        %carries = pred[] compare(%nl, %l), direction=LT
        %hh = u32[] add(%h, %sh)
        %more = u32[] add(%hh, %one)
        %nh = u32[] select(%carries, %more, %hh)
        %y = f32[256]{{0}} negate(%x)
        ROOT %t = (u32[], u32[], f32[256]{{0}}) tuple(%nl, %nh, %y)""",
    )
    test = computation(
        "condition",
        f"""
        %q = (u32[], u32[], f32[256]{{0}}) parameter(0)
        %l = u32[] get-tuple-element(%q), index=0
        %h = u32[] get-tuple-element(%q), index=1
        %s = s32[] bitcast-convert(%h)
        {condition}""",
    )
    entry = f"""
        %a = f32[256]{{0}} parameter(0)
        %l = u32[] constant({low})
        %h = u32[] constant({high})
        %init = (u32[], u32[], f32[256]{{0}}) tuple(%l, %h, %a)
        %w = (u32[], u32[], f32[256]{{0}}) while(%init), condition=%condition, body=%body
        ROOT %r = f32[256]{{0}} get-tuple-element(%w), index=2"""
    return program(entry, body, test)


def until_in_words(limit, direction):
    """or(high < limit's, and(high == limit's, low < limit's))"""
    return f"""
        %lh = s32[] constant({limit // 2**32})
        %ll = u32[] constant({limit % 2**32})
        %beyond = pred[] compare(%s, %lh), direction={direction[:1]}T
        %level = pred[] compare(%s, %lh), direction=EQ
        %within = pred[] compare(%l, %ll), direction={direction}
        %both = pred[] and(%level, %within)
        ROOT %c = pred[] or(%beyond, %both)"""


IN_WORDS = {
    (0, 7, 1, "LT"): 7,
    (-3, 7, 2, "LE"): 6,
    (20, 2, -3, "GE"): 7,
    (2**32 - 2, 2**32 + 2, 1, "LT"): 4,
    (5, 5, 1, "LT"): 0,
}


@pytest.mark.parametrize("case", IN_WORDS)
def test_counters_of_64_bits_in_two_words(case):
    start, limit, step, direction = case
    assert trips(split(until_in_words(limit, direction), start, step)) == IN_WORDS[case]


def test_a_condition_and_a_step_may_be_fusions():
    compare = computation(
        "compare",
        """
        %b = s32[] parameter(1)
        %a = s32[] parameter(0)
        ROOT %lt = pred[] compare(%a, %b), direction=LT""",
    )
    add = computation(
        "add",
        "%a = s32[] parameter(0)\n%b = s32[] parameter(1)\nROOT %s = s32[] add(%a, %b)",
    )
    condition = "%n = s32[] constant(7)\nROOT %c = pred[] fusion(%i, %n), calls=%compare"
    text = loop(condition, step="%next = s32[] fusion(%i, %one), calls=%add")
    both = {
        **text.computations,
        **program("ROOT %x = f32[] parameter(0)", compare, add).computations,
    }
    assert trips(type(text)(text.entry, both, text.aliases)) == 7


def nested(inner_limit):
    """A loop of 3 rounds around one whose limit it carries along, or changes."""
    inner = computation(
        "inner",
        """
        %p = (s32[], s32[], f32[256]{0}) parameter(0)
        %i = s32[] get-tuple-element(%p), index=0
        %n = s32[] get-tuple-element(%p), index=1
        %x = f32[256]{0} get-tuple-element(%p), index=2
        %one = s32[] constant(1)
        %next = s32[] add(%i, %one)
        %y = f32[256]{0} negate(%x), """
        + cycles(100)
        + """
        ROOT %t = (s32[], s32[], f32[256]{0}) tuple(%next, %n, %y)""",
    )
    test = """
        %q = (s32[], s32[], f32[256]{0}) parameter(0)
        %i = s32[] get-tuple-element(%q), index=0
        %n = s32[] get-tuple-element(%q), index=1
        %three = s32[] constant(3)
        ROOT %c = pred[] compare(%i, LIMIT), direction=LT"""
    outer = computation(
        "outer",
        f"""
        %p = (s32[], s32[], f32[256]{{0}}) parameter(0)
        %i = s32[] get-tuple-element(%p), index=0
        %n = s32[] get-tuple-element(%p), index=1
        %x = f32[256]{{0}} get-tuple-element(%p), index=2
        %one = s32[] constant(1)
        %zero = s32[] constant(0)
        %next = s32[] add(%i, %one)
        %limit = s32[] {inner_limit}
        %init = (s32[], s32[], f32[256]{{0}}) tuple(%zero, %n, %x)
        %w = (s32[], s32[], f32[256]{{0}}) while(%init), condition=%test, body=%inner
        %z = f32[256]{{0}} get-tuple-element(%w), index=2
        ROOT %t = (s32[], s32[], f32[256]{{0}}) tuple(%next, %limit, %z)""",
    )
    return program(
        """
        %a = f32[256]{0} parameter(0)
        %zero = s32[] constant(0)
        %five = s32[] constant(5)
        %init = (s32[], s32[], f32[256]{0}) tuple(%zero, %five, %a)
        %v = (s32[], s32[], f32[256]{0}) while(%init), condition=%around, body=%outer
        ROOT %r = f32[256]{0} get-tuple-element(%v), index=2""",
        inner,
        outer,
        computation("test", test.replace("LIMIT", "%n")),
        computation("around", test.replace("LIMIT", "%three")),
    )


def test_loops_in_loops_multiply():
    assert estimated_cycles(nested("copy(%n)"), UNHINDERED) == 3 * 5 * 100


def test_a_limit_that_changes_from_round_to_round_is_not_known():
    read = nested("add(%n, %one)")
    assert [each.unknown for each in executed(read) if each.instruction.name == "w"] == [True]
    with pytest.raises(ValueError, match="depends on data"):
        estimated_cycles(read, UNHINDERED)


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


START = "(f32[256]{0:T(128)S(1)}, f32[256]{0:T(128)}, u32[]{:S(2)}) copy-start"
DONE = "f32[256]{0:T(128)S(1)} copy-done"


def test_copies_queue_on_one_channel():
    read = program(f"""
        %x = f32[256]{{0:T(128)}} parameter(0)
        %s1 = {START}(%x)
        %s2 = {START}(%x)
        %a = f32[256]{{0:T(128)S(1)}} fusion(%x), {cycles(30)}
        %d1 = {DONE}(%s1)
        %b = f32[256]{{0:T(128)S(1)}} fusion(%d1), {cycles(40)}
        %d2 = {DONE}(%s2)
        ROOT %c = f32[256]{{0:T(128)S(1)}} fusion(%d2, %b), {cycles(5)}""")
    # 1024 bytes at 10.24 a cycle are 100 cycles: the second copy ends at 200, behind the first.
    assert estimated_cycles(read, 10.24) == pytest.approx(205)
    assert estimated_cycles(read, 1024) == 30 + 40 + 5


def test_a_copy_within_main_memory_moves_twice_and_one_on_the_chip_nothing():
    def time(target, source):
        copied = (
            f"(f32[256]{{0:T(128){target}}}, f32[256]{{0:T(128){source}}}, u32[]{{:S(2)}}) "
            "copy-start(%x)"
        )
        done = f"f32[256]{{0:T(128){target}}} copy-done(%s)"
        return estimated_cycles(
            program(f"%x = f32[256]{{0}} parameter(0)\n%s = {copied}\nROOT %d = {done}"), 1
        )

    assert [time("", ""), time("S(1)", ""), time("", "S(1)"), time("S(1)", "S(1)")] == [
        2048,
        1024,
        1024,
        0,
    ]


def test_a_sliced_copy_moves_the_slice():
    read = program("""
        %x = f32[1024]{0} parameter(0)
        %s = ((f32[1024]{0}), f32[256]{0:S(1)}, s32[]{:S(2)}) slice-start(%x), slice={[0:256]}
        ROOT %d = f32[256]{0:S(1)} slice-done(%s)""")
    assert estimated_cycles(read, 1) == 1024


def test_a_loop_that_waits_for_its_copies_takes_their_time():
    work = f"%s = {START}(%x)\n%z = {DONE}(%s)\n%y = f32[256]{{0}} negate(%z), {cycles(10)}"
    assert estimated_cycles(loop(until(7), work=work), 10.24) == pytest.approx(7 * 110)


def test_a_loop_whose_copies_go_on_meanwhile_takes_the_longer_of_both():
    """The copy is never waited for, but the channel carries it before the program is over."""
    work = f"%s = {START}(%x)\n%y = f32[256]{{0}} negate(%x), "
    assert estimated_cycles(loop(until(7), work=work + cycles(10)), 10.24) == pytest.approx(700)
    assert estimated_cycles(loop(until(7), work=work + cycles(300)), 10.24) == pytest.approx(2100)


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
