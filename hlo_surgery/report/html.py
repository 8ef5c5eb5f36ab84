"""HTML: tables and keys, whatever text holds escaped."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()) -> str:
    """A table of text, lines within a cell kept; `numbers`: the columns to be set on the right."""
    kinds = ["number" if title in numbers else "name" for title in titles]
    head = "".join(
        f'<th class="{kind}">{escape(title)}</th>'
        for kind, title in zip(kinds, titles, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{kind}">{"<br>".join(map(escape, cell.splitlines()))}</td>'
            for kind, cell in zip(kinds, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def keys(each: Mapping[str, str]) -> str:
    """What colours mean."""
    items = (
        f'<li><span class="key {kind}"></span>{escape(words)}</li>' for kind, words in each.items()
    )
    return f'<ul class="keys">{"".join(items)}</ul>'
