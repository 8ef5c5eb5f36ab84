"""Spelling: what the library says of its keywords, in the words of the command line's options."""

import re

SPELLED = {
    "batch": "--batch",
    "batch_argnums": "--batch",
    "statistics": "--statistic",
    "gradients": "--gradient",
    "loss": "--loss",
    "loss_reduction": "--loss-reduction",
    "on_mixing": "--on-mixing",
    "is_real": "--is-real",
    "custom_calls": "--custom-call",
    "rows_per_example": "--rows-per-example",
    "segments": "--segments",
    "strategy": "--strategy",
    "memory_budget": "--memory-budget",
    "target": "--target",
    "reuse_gradient": "--reuse-gradient",
    "shards": "--shards",
    "seed": "--seed",
}
NAMES = "|".join(SPELLED)
VALUE = r"""\[\.\.\.\]|\.\.\.|"[^"]*"|'[^']*'|[\w.:-]*\w"""
# Written with a value, a seed is a statistic's own.
VALUED = "|".join(name for name in SPELLED if name != "seed")
KEYWORD = re.compile(rf"(?<![\w.'\[])({VALUED})=({VALUE})(?: \(--[\w-]+\))?")
SUBJECT = re.compile(rf"^({NAMES})(?= (?:is|must|names|picks|holds|has)\b)")
ARGUMENTS = re.compile(r"\bbatch_argnums\b")


def spelled(message: str) -> str:
    """A message with the options in place of the keywords that it names.

    >>> spelled('or pass on_mixing="contribution" to treat such values as constants')
    'or pass --on-mixing contribution to treat such values as constants'
    >>> spelled("loss_reduction is 'total'; it is one of 'mean', 'sum'")
    "--loss-reduction is 'total'; it is one of 'mean', 'sum'"
    """
    subject = SUBJECT.sub(lambda found: SPELLED[found[1]], message)
    return ARGUMENTS.sub("--batch", KEYWORD.sub(_as_option, subject))


def _as_option(found: re.Match[str]) -> str:
    value = found[2].strip("'\"")
    return SPELLED[found[1]] if value in ("...", "[...]") else f"{SPELLED[found[1]]} {value}"
