"""Scheduled HLO as the compilers write it, cut down to what is read from it."""

from hlo_surgery.targets.program import parse


def program(entry, *computations, header=""):
    """A program from the lines of its entry, which takes as many parameters as they name, and other
    computations.
    """
    head = f"HloModule m, is_scheduled=true, {header}\n"
    return parse("\n".join([head, *computations, "ENTRY %main () -> f32[] {", *lines(entry), "}"]))


def computation(name, text):
    return "\n".join([f"%{name} () -> f32[] {{", *lines(text), "}", ""])


def lines(text):
    return [f"  {line.strip()}" for line in text.strip().splitlines()]


def loop(
    condition, step="%next = s32[] add(%i, %one)", work="", carried="", text="", one=1, start=0
):
    """A while loop over a counter and an array of 1 kB; `condition` compares %i, %n or
    constants.
    """
    body = computation(
        "body",
        f"""
        %p = (s32[], f32[256]{{0}}) parameter(0)
        %i = s32[] get-tuple-element(%p), index=0
        %x = f32[256]{{0}} get-tuple-element(%p), index=1
        %one = s32[] constant({one})
        {step}
        {work or "%y = f32[256]{0} negate(%x)"}
        ROOT %t = (s32[], f32[256]{{0}}) tuple(%next, %y)""",
    )
    test = computation(
        "condition",
        f"""
        %q = (s32[], f32[256]{{0}}) parameter(0)
        %i = s32[] get-tuple-element(%q), index=0
        {condition}""",
    )
    entry = f"""
        %a = f32[256]{{0}} parameter(0)
        %zero = s32[] constant({start})
        %copied = s32[] copy(%zero)
        %init = (s32[], f32[256]{{0}}) tuple(%copied, %a)
        %w = (s32[], f32[256]{{0}}) while(%init), condition=%condition, body=%body{text}
        ROOT %r = f32[256]{{0}} get-tuple-element(%w), index=1"""
    return program(entry, body, test)


def until(limit, direction="LT"):
    """A condition that compares the counter with a constant."""
    return f"%n = s32[] constant({limit})\nROOT %c = pred[] compare(%i, %n), direction={direction}"
