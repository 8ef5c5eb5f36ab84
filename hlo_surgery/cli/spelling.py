"""Spelling: what the library says of its keywords, in the words of the command line's options."""

import ast
import re
import shlex

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
VALUE = r"""\[\.\.\.\]|\[(?:\d+|"(?:[^"\\]|\\.)*"|, )+\]|\.\.\.|"[^"]*"|'[^']*'|[\w.:-]*\w"""
# Written with a value, a seed is a statistic's own.
VALUED = "|".join(name for name in SPELLED if name != "seed")
KEYWORD = re.compile(rf"(?<![\w.'\[])({VALUED})=({VALUE})(?: \(--[\w-]+\))?")
SUBJECT = re.compile(rf"^({NAMES})(?= (?:is|must|names|picks|holds|has)\b)")
ARGUMENTS = re.compile(r"\bbatch_argnums\b")


def spelled(message: str) -> str:
    """A message with the options in place of the keywords that it names, quoted for the shell.

    >>> spelled('or pass on_mixing="contribution" to treat such values as constants')
    'or pass --on-mixing contribution to treat such values as constants'
    >>> spelled('pass gradients=["[1]"]')
    "pass --gradient '[1]'"
    >>> spelled("loss_reduction is 'total'; it is one of 'mean', 'sum'")
    "--loss-reduction is 'total'; it is one of 'mean', 'sum'"
    """
    subject = SUBJECT.sub(lambda found: SPELLED[found[1]], message)
    return ARGUMENTS.sub("--batch", KEYWORD.sub(_as_option, subject))


def _as_option(found: re.Match[str]) -> str:
    option, value = SPELLED[found[1]], found[2].strip("'\"")
    if value in ("...", "[...]"):
        return option
    each = ast.literal_eval(value) if found[2].startswith("[") else [value]
    return " ".join(f"{option} {_quoted(str(one))}" for one in each)


def _quoted(text: str) -> str:
    """For the shell; names with quotes of keys within double ones, which are easier to read."""
    return f'"{text}"' if "'" in text and not re.search(r'["$`\\!]', text) else shlex.quote(text)
