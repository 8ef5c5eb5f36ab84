"""The tables in the pages of `docs/findings`, written from the CSV files between two comments:

<!-- table: NAME --> and <!-- end -->

Above a table are the figures that its runs are drawn in, where there are any.
"""

import re
from pathlib import Path

from tools.experiments.paired.variants import SWEEPS
from tools.experiments.redraw.named import TABLES

FIGURES = Path(__file__).parents[1] / "figures"
FINDINGS = Path(__file__).parents[3] / "docs" / "findings"
BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
LEVELS = "Held-out losses by level, and differences: filled where told from none"
DRAWN = {
    **{f"sweep_{name}": {f"sweep_{name}": LEVELS} for name in SWEEPS},
    "critical_batch_size": {
        "critical_batch_size": "Noise scales by kind of layer along training, and over that of all"
    },
    "batch_sizes": {
        "batch_sizes": "Training losses against samples by batch size, and differences from B = 16",
        "batch_sizes_clipped": "The same, clipped",
        "batch_sizes_quarter": "Training losses by batch size, at a quarter of the rates",
        "batch_sizes_clipped_quarter": "The same, clipped, at a quarter of the rates",
    },
}
"""By table the figures and what they show."""


def fill_all(runs: Path, pages: Path = FINDINGS) -> None:
    """All pages of a folder, from a folder of CSV files and the figures that are drawn."""
    for page in sorted(pages.glob("*.md")):
        page.write_text(filled(page.read_text(), runs))


def filled(page: str, runs: Path) -> str:
    """The page with its tables made anew. Raises KeyError for one that there is not."""

    def made(found: re.Match[str]) -> str:
        parts = [*_figures(found[2]), TABLES[found[2]](runs)]
        return found[1] + "\n" + "\n\n".join(parts) + "\n\n" + found[3]

    return BLOCK.sub(made, page)


def _figures(table: str) -> list[str]:
    """Links to those that are drawn, as from a page."""
    drawn = {name: text for name, text in DRAWN.get(table, {}).items() if _is_drawn(name)}
    return [
        f"![{text}](../../tools/experiments/figures/{name}.svg)" for name, text in drawn.items()
    ]


def _is_drawn(name: str) -> bool:
    return (FIGURES / f"{name}.svg").exists()
