"""Drawing: boxes, curves and text of SVG, sized by characters, whatever text holds escaped.

HTML: tables and keys, whatever text holds escaped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape


def keys(each: Mapping[str, str]) -> str:
    """What colours mean."""
    items = (
        f'<li><span class="key {kind}"></span>{escape(words)}</li>' for kind, words in each.items()
    )
    return f'<ul class="keys">{"".join(items)}</ul>'


# Pixels that a character of 12 px in a font of equal widths takes, at most.
CHARACTER = 7.4
LINE_HEIGHT = 16
PADDING = 9


@dataclass(frozen=True)
class Box:
    """A rectangle with lines of text, the first of which is its title; `kind` names its colours."""

    x: float
    y: float
    width: float
    kind: str
    lines: Sequence[str]
    name: str = ""

    @property
    def height(self) -> float:
        """By its lines."""
        return height_of(len(self.lines))

    @property
    def middle(self) -> float:
        """Where curves meet it."""
        return self.y + self.height / 2

    @property
    def right(self) -> float:
        """Where curves leave it."""
        return self.x + self.width

    def svg(self) -> str:
        """Drawn, with all of its text to be read where the pointer rests."""
        style = f'class="box {self.kind}"' + (f' id="{self.name}"' if self.name else "")
        place = f'x="{self.x:g}" y="{self.y:g}" width="{self.width:g}" height="{self.height:g}"'
        texts = [self._text(number, line) for number, line in enumerate(self.lines)]
        whole = escape("\n".join(self.lines))
        return f'<g {style}><title>{whole}</title><rect {place} rx="5"/>{"".join(texts)}</g>'

    def _text(self, number: int, line: str) -> str:
        shown = shortened(line, int((self.width - 2 * PADDING) / CHARACTER))
        x, y = self.x + PADDING, self.y + PADDING + 11 + number * LINE_HEIGHT
        return text(x, y, shown, "title" if number == 0 else "detail")


def height_of(lines: int) -> float:
    """What a box with so many lines of text takes."""
    return 2 * PADDING + lines * LINE_HEIGHT - 2


def text(x: float, y: float, words: str, kind: str) -> str:
    """A line of text."""
    return f'<text class="{escape(kind)}" x="{x:g}" y="{y:g}">{escape(words)}</text>'


def curve(x0: float, y0: float, x1: float, y1: float, kind: str) -> str:
    """From the right of one box to the left of another."""
    bend = max((x1 - x0) / 2, 20)
    path = f"M{x0:g} {y0:g}C{x0 + bend:g} {y0:g} {x1 - bend:g} {y1:g} {x1:g} {y1:g}"
    return f'<path class="curve {escape(kind)}" d="{path}"/>'


def picture(width: float, height: float, parts: Sequence[str], label: str) -> str:
    """An image of its own size in CSS pixels; `label`: what it shows, for who hears the page."""
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    return f'<svg role="img" aria-label="{escape(label)}" {size}>{"".join(parts)}</svg>'


def shortened(line: str, most: int) -> str:
    """At most so many characters, the middle left out.

    >>> shortened("params['layers']['query']", 15)
    "params[…query']"
    """
    if len(line) <= most:
        return line
    head = max((most - 1) // 2, 0)
    return line[:head] + "…" + line[len(line) - (most - 1 - head) :]
